"""`setup`: the configuration for this mail server, and the lines that the server itself needs.

It looks at what is installed here, asks at most three questions, and makes a `Plan`: files to write
or to append to, and commands to run. The lines for servers are the snippets of `config/`, which the
installation holds in `share/spamguard`, so nothing about a server is said twice. The configuration
of spamguard is written in any case; everything else is only shown, unless --apply is given. At the
end `doctor` says what works.

It must never change a file of which it keeps no copy, and never do anything twice: a snippet that
is there already stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spamguard.cli import arguments
from spamguard.errors import SpamguardError, UsageError
from spamguard.web.documentation import read_shared_file

SETUP_ABOUT = """\
Set spamguard up for the mail server of this machine. It asks three questions, writes
spamguard.yaml, shows the lines that the mail server needs, and ends with `doctor`.

With --apply it also puts these lines into the files of Postfix, Exim or Dovecot, has them read, and
starts the service where systemd and its units are there. It keeps a copy of each file that it
changes, as FILE.before-spamguard. An option answers a question; without a terminal, what it
proposes is the answer."""
SETUP_EXAMPLE = """  spamguard setup
  spamguard setup --apply
  spamguard setup --server postfix --position after-queue --mailboxes '/home/*/Maildir' --apply"""

SERVERS = ("postfix", "exim", "other")
POSITIONS = {"postfix": ("after-queue", "before-queue", "milter"), "exim": ("after-queue",)}
CONFIG = Path("/etc/spamguard/spamguard.yaml")
ACCOUNT = "spamguard"
_COPY_SUFFIX = ".before-spamguard"
_SMTP, _BACK, _MILTER = "127.0.0.1:10025", "127.0.0.1:10026", "127.0.0.1:11332"
_UNIT_DIRECTORIES = tuple(map(Path, ("/etc/systemd/system", "/lib/systemd/system")))
_EXIM = Path("/etc/exim4")
_DOVECOT = Path("/etc/dovecot")


def add_setup(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "setup", run_setup, SETUP_ABOUT, SETUP_EXAMPLE)
    about = "the mail server: " + ", ".join(SERVERS)
    parser.add_argument("--server", choices=SERVERS, metavar="NAME", help=about)
    about = "where spamguard stands: after-queue, before-queue or milter"
    parser.add_argument("--position", choices=POSITIONS["postfix"], metavar="POSITION", help=about)
    about = "Maildirs in which moving mail teaches, such as /home/*/Maildir"
    parser.add_argument("--mailboxes", metavar="PATTERN", help=about)
    about = "change the files of the mail server too, and start the service"
    parser.add_argument("--apply", action="store_true", help=about)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user wants. position: of spamguard in the path of the mail."""

    server: str
    position: str
    mailboxes: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one file. append: the text goes to its end; otherwise it is the whole file."""

    path: Path
    text: str
    append: bool = False

    def is_done(self) -> bool:
        """Whether the file has the text already."""
        try:
            content = self.path.read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return False
        return self.text in content if self.append else content == self.text


@dataclass(slots=True)
class Plan:
    """What is to be done on this machine, in order: `copies` are made first, then the edits, then
    the commands run.
    """

    copies: list[Path] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_setup(options: argparse.Namespace) -> int:
    """Ask, write, show or apply, and prove."""
    answers = _ask(options)
    if is_root := os.geteuid() == 0:
        _check_account()
    config = Edit((options.config or CONFIG).absolute(), make_config(answers, is_root=is_root))
    plan = make_plan(answers)
    print(f"{config.path}:\n{_indent(config.text)}")
    _write(config)
    if options.apply:
        _apply(plan)
    else:
        _show(plan)
    for note in plan.notes:
        print(note)
    print("\nspamguard doctor:", flush=True)
    words = ["doctor", "--config", str(config.path)]
    doctor = arguments.build_parser(words).parse_args(words)
    return int(doctor.run(doctor))


def _check_account() -> None:
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise UsageError(
            f"there is no account {ACCOUNT!r} for the daemon: make it with "
            f"`useradd --system --home-dir /var/lib/spamguard {ACCOUNT}`"
        ) from None


# ---- the answers


def _ask(options: argparse.Namespace) -> Answers:
    server = options.server or _question("Mail server", _find_server(), SERVERS)
    positions = POSITIONS.get(server, POSITIONS["exim"])
    if options.position and options.position not in positions:
        raise UsageError(f"the position for {server} is {' or '.join(positions)}")
    position = options.position or _question("Position", positions[0], positions)
    title = "Mailboxes in which moving mail teaches"
    mailboxes = options.mailboxes or _question(title, _find_mailboxes())
    return Answers(server, position, mailboxes)


def _question(title: str, proposal: str, choices: Sequence[str] = ()) -> str:
    """The answer of the person at the terminal. Without a terminal, or choice: the proposal."""
    if len(choices) == 1 or not sys.stdin.isatty():
        return proposal
    choice = f" ({', '.join(choices)})" if choices else ""
    while True:
        try:
            answer = input(f"{title}{choice} [{proposal}]: ").strip() or proposal
        except EOFError:
            return proposal
        if not choices or answer in choices:
            return answer
        print(f"There is no {answer!r} here.")


def _find_server() -> str:
    if shutil.which("postconf"):
        return "postfix"
    return "exim" if shutil.which("exim4") or shutil.which("exim") else "other"


def _find_mailboxes() -> str:
    """The pattern of Dovecot's Maildirs, where it says so; otherwise the usual one."""
    location = _output("doveconf", "-h", "mail_location").strip()
    path = location.removeprefix("maildir:").partition(":")[0]
    if not location.startswith("maildir:/"):
        return "/home/*/Maildir"
    for variable in ("%d", "%n", "%u", "%{user}", "%{domain}"):
        path = path.replace(variable, "*")
    return path


def _output(*command: str) -> str:
    from spamguard.doctor import run_command

    return run_command(*command)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# ---- what follows from them


def make_config(answers: Answers, *, is_root: bool) -> str:
    """The text of spamguard.yaml. is_root: it is for the service, not for one person."""
    lines = ["# Written by `spamguard setup`. Check it: spamguard check FILE"]
    if is_root:
        lines += ["state: /var/lib/spamguard", f"user: {ACCOUNT}"]
        if _has_units():
            lines.append("watch_socket: /run/spamguard-watch/mailboxes.sock")
    if answers.position == "milter":
        lines += ["scanners:", f"  - listen: milter://{_MILTER}"]
    else:
        lines += [
            "listeners:",
            f"  - listen: smtp://{_SMTP}",
            f"    position: {answers.position}",
            f"    next_hop: smtp://{_BACK}",
        ]
        if answers.position == "before-queue":
            lines.append("    speed_adjust: true")
    filing = ", we_file: true" if _has_dovecot_sieve() else ""
    lines += [
        "watch:",
        f"  - {{maildir: {json.dumps(answers.mailboxes)}{filing}}}",
        "web: 127.0.0.1:10088",
    ]
    return "\n".join(lines) + "\n"


def make_plan(answers: Answers) -> Plan:
    """What the mail server and the service need."""
    plan = Plan()
    if answers.server == "postfix":
        _plan_postfix(plan, answers.position)
    elif answers.server == "exim":
        _plan_exim(plan)
    else:
        plan.notes.append(
            f"Let the mail server pass its mail to smtp://{_SMTP}, and take it back on {_BACK}."
        )
    if _has_dovecot_sieve():
        _plan_dovecot(plan)
    _plan_service(plan, answers.position)
    return plan


def _plan_postfix(plan: Plan, position: str) -> None:
    directory = Path(_output("postconf", "-h", "config_directory").strip() or "/etc/postfix")
    plan.copies += [directory / "main.cf", directory / "master.cf"]
    if position == "after-queue":
        used = _output("postconf", "-h", "content_filter").strip()
        if used and not used.startswith("spamguard:"):
            raise UsageError(
                f"Postfix passes its mail to {used} already (content_filter in "
                f"{directory / 'main.cf'}): remove that first, or choose --position milter"
            )
        for part in ("main", "master"):
            text = read_shared_file(f"config/postfix/after-queue.{part}.cf")
            plan.edits.append(Edit(directory / f"{part}.cf", text, append=True))
    elif position == "before-queue":
        snippet = read_shared_file("config/postfix/before-queue.master.cf")
        front, _, back = snippet.partition("\n# Back from spamguard")
        plan.edits.append(
            Edit(directory / "master.cf", f"# Back from spamguard{back}", append=True)
        )
        settings = [
            line.split("-o ", 1)[1] for line in front.splitlines() if line.startswith("    -o ")
        ]
        plan.commands += [("postconf", "-P", f"smtp/inet/{setting}") for setting in settings]
        plan.commands.append(("postconf", "-F", "smtp/inet/process_limit=20"))
    else:
        milter = f"inet:{_MILTER}"
        for name in ("smtpd_milters", "non_smtpd_milters"):
            others = _output("postconf", "-h", name).split()
            milters = ", ".join(dict.fromkeys((*(each.strip(",") for each in others), milter)))
            plan.commands.append(("postconf", "-e", f"{name} = {milters}"))
        plan.commands.append(("postconf", "-e", "milter_default_action = tempfail"))
    plan.commands.append(("postfix", "check"))
    if _succeeds("postfix", "status"):
        plan.commands.append(("postfix", "reload"))


def _plan_exim(plan: Plan) -> None:
    """Debian's Exim with its split configuration; elsewhere the three parts are only shown."""
    parts = {
        name: read_shared_file(f"config/exim/{name}.conf")
        for name in ("main", "router", "transport")
    }
    if not (_EXIM / "conf.d").is_dir():
        plan.notes += [
            f"Put this into Exim's configuration ({name}):\n{_indent(text)}"
            for name, text in parts.items()
        ]
        return
    main = parts["main"].replace("\nlocal_interfaces", "\nMAIN_LOCAL_INTERFACES")
    debian = _EXIM / "update-exim4.conf.conf"
    plan.copies.append(debian)
    plan.edits += [
        Edit(_EXIM / "conf.d/main/00_spamguard", main + "IGNORE_SMTP_LINE_LENGTH_LIMIT = 1\n"),
        Edit(_EXIM / "conf.d/router/050_spamguard", parts["router"]),
        Edit(_EXIM / "conf.d/transport/30_spamguard", parts["transport"]),
        Edit(debian, "dc_use_split_config='true'\n", append=True),
    ]
    plan.commands += [("update-exim4.conf",), ("exim4", "-bV"), ("service", "exim4", "restart")]


def _plan_dovecot(plan: Plan) -> None:
    """Dovecot files what spamguard calls spam into Junk."""
    sieve = _DOVECOT / "spamguard/file-by-header.sieve"
    lmtp = read_shared_file("config/dovecot/lmtp.conf")
    plan.edits += [
        Edit(_DOVECOT / "conf.d/95-spamguard-lmtp.conf", lmtp),
        Edit(sieve, read_shared_file("config/dovecot/file-by-header.sieve")),
    ]
    plan.commands.append(("sievec", str(sieve)))
    if _succeeds("doveadm", "who"):  # it runs
        plan.commands.append(("doveadm", "reload"))


def _plan_service(plan: Plan, position: str) -> None:
    if not (_has_units() and Path("/run/systemd/system").is_dir()):
        plan.notes.append(
            "Start spamguard before mail comes: spamguard run --config FILE "
            "(there is no service on this machine)"
        )
        return
    if position == "milter":
        drop_in = Path("/etc/systemd/system/spamguard.socket.d/setup.conf")
        plan.edits.append(Edit(drop_in, f"[Socket]\nListenStream=\nListenStream={_MILTER}\n"))
    door = ("spamguard.socket", "spamguard.service")
    plan.commands[:0] = [  # before the mail server passes mail on
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", *door, "spamguard-watch.service"),
        ("systemctl", "stop", *door),  # `restart` would open the socket while its service runs
        ("systemctl", "restart", "spamguard-watch.service"),
        ("systemctl", "start", *door),
    ]


def _has_units() -> bool:
    return any((directory / "spamguard-watch.service").exists() for directory in _UNIT_DIRECTORIES)


def _has_dovecot_sieve() -> bool:
    """Whether the snippets fit: Dovecot 2.3 with Pigeonhole, in its usual place."""
    version = _output("dovecot", "--version")
    return bool(shutil.which("sievec")) and version.startswith("2.3") and _DOVECOT.is_dir()


# ---- doing it


def _show(plan: Plan) -> None:
    for edit in plan.edits:
        if not edit.is_done():
            lines = (line for line in edit.text.splitlines(True) if not line.startswith("#"))
            text = "".join(lines).strip("\n")
            print(f"{'add to ' if edit.append else ''}{edit.path}:\n{_indent(text)}\n")
    print("then run:")
    print("\n".join("    " + " ".join(command) for command in plan.commands))
    print("\n`spamguard setup --apply` does all of this.")


def _apply(plan: Plan) -> None:
    for path in plan.copies:
        _keep_copy(path)
    for edit in plan.edits:
        _write(edit)
    for command in plan.commands:
        print("  " + " ".join(command), flush=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SpamguardError(f"{command[0]}: {error.strerror}") from error
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip()
            raise SpamguardError(
                f"`{' '.join(command)}` failed, and nothing after it ran: {reason}"
            )


def _write(edit: Edit) -> None:
    if edit.is_done():
        print(f"  {edit.path} is as it shall be")
        return
    try:
        _keep_copy(edit.path)
        edit.path.parent.mkdir(parents=True, exist_ok=True)
        with edit.path.open("a" if edit.append else "w", encoding="utf-8") as file:
            file.write(("\n" if edit.append else "") + edit.text)
    except OSError as error:
        raise SpamguardError(
            f"{edit.path} cannot be written: {error.strerror}; run this as root, or name another "
            "file with --config"
        ) from error
    print(f"  {'added to' if edit.append else 'wrote'} {edit.path}")


def _keep_copy(path: Path) -> None:
    """Keep the file as it was before the first change."""
    copy = path.with_name(path.name + _COPY_SUFFIX)
    if path.exists() and not copy.exists():
        shutil.copy2(path, copy)
        print(f"  kept {copy}")


def _indent(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(True))
