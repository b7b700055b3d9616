"""`setup`: the configuration for this mail server, and the lines that the server itself needs.

It looks at what is installed here and at the present configuration, and plans what to change:
spamguard.yaml and the service, and the files of mail servers (`mail_servers`). It shows that;
--apply does it. --remove plans the opposite: nothing of ours in the files of mail servers.

It must never change anything without --apply, write a configuration that `check` refuses, or change
a file of somebody else of which it keeps no copy. A server whose new files are refused gets its old
ones back.
"""

from __future__ import annotations

import difflib
import os
import pwd
import re
import shutil
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import yaml

from spamguard.cli import arguments, common, mail_servers
from spamguard.cli.arguments import argument, command, flag
from spamguard.cli.mail_servers import BACK, MILTER, SMTP, Change
from spamguard.config.load import parse_yaml
from spamguard.config.options import Position, Protocol, Settings
from spamguard.errors import ConfigError, SpamguardError, UsageError
from spamguard.process import run_command

SERVERS = ("postfix", "exim", "other")
POSITIONS = ("after-queue", "before-queue", "milter")
ACCOUNT = "spamguard"
_COPY_SUFFIX = time.strftime(".before-spamguard-%Y%m%d-%H%M%S")  # one copy for all steps
_DROP_IN = Path("/etc/systemd/system/spamguard.socket.d/setup.conf")
_FRONT = (Position.AFTER_QUEUE, Position.BEFORE_QUEUE)


class Answers(NamedTuple):
    """What the user wants. position: of spamguard in the path of mail."""

    server: str
    position: str
    mailboxes: str


@command(
    "setup",
    """\
Set spamguard up for the mail server of this machine. It shows what it would change: spamguard.yaml,
the service, and the files of Postfix, Exim or Dovecot.

With --apply it does that, in place of what an earlier `setup` did, has the servers read their
files, starts the service where systemd and its units are there, and ends with `doctor`. It keeps a
copy of each file that it changes, as FILE.before-spamguard-TIME.
--remove takes spamguard out of these servers; what it has learnt and spamguard.yaml stay.

The files of Postfix are changed, those of Exim where Debian configures it; otherwise you get the
lines, or the two addresses between which mail has to pass. Positions, of which Postfix has all:
  after-queue   mail is queued first, then judged and tagged; none can be refused
  before-queue  mail is judged while its sender waits, so spam can be refused
  milter        as before-queue, but mail does not pass through spamguard""",
    argument("--server", "the mail server (default: what is installed)", choices=SERVERS),
    argument("--position", "default: the present one, or after-queue", choices=POSITIONS),
    argument(
        "--mailboxes",
        "Maildirs in which moving mail teaches, such as /home/*/Maildir (default: the present "
        "ones, or those of Dovecot)",
        "PATTERN",
    ),
    flag("--remove", "take spamguard out of Postfix, Exim and Dovecot"),
    flag("--apply", "do it: without this option nothing is changed"),
    example="""  spamguard setup
  spamguard setup --apply
  spamguard setup --server postfix --position after-queue --mailboxes '/home/*/Maildir' --apply
  spamguard setup --remove --apply""",
)
def run_setup(options: Namespace) -> int:
    if options.apply:
        os.umask(0o022)  # servers must be able to read what root writes
    else:
        print("This changes nothing, it shows what --apply would do.\n")
    options.config = path = (options.config or common.SERVICE_CONFIG).absolute()
    if options.remove:
        changes = [
            *mail_servers.plan_postfix("", one_recipient=False),
            mail_servers.plan_exim(is_used=False),
            mail_servers.plan_dovecot(is_used=False),
        ]
        _carry_out(changes, apply=options.apply, takes_out_filter=True)
        return 0
    old = common.config_reader(options, path)() if path.exists() else None
    answers = _find_answers(options, old)
    print(f"Server {answers.server}, position {answers.position}, mailboxes {answers.mailboxes}.\n")
    if is_root := os.geteuid() == 0:
        find_account(ACCOUNT)
    text = make_config(path, old, answers, is_root=is_root)
    settings = check_config(options, path, text)
    one_recipient = bool(settings.listeners) and (
        settings.personal or str(settings.listeners[0].next_hop.to).startswith(("lmtp", "maildir"))
    )
    position = answers.position if answers.server == "postfix" else ""
    postfix = mail_servers.plan_postfix(position, one_recipient=one_recipient)
    changes = [
        *postfix[:-1],
        _plan_service(path, text, answers.position),
        *postfix[-1:],
        mail_servers.plan_exim(is_used=answers.server == "exim"),
        mail_servers.plan_dovecot(is_used=True),
    ]
    _carry_out(changes, apply=options.apply, takes_out_filter=position != "after-queue")
    if answers.server == "other":
        print(f"Let the mail server pass its mail to smtp://{SMTP}, and take it back on {BACK}.")
    status = 0
    if options.apply:
        print("\nspamguard doctor:", flush=True)
        doctor = arguments.build_parser(["doctor"]).parse_args(["doctor", "--config", str(path)])
        status = int(doctor.run(doctor))
    _show_next_steps(path, applied=options.apply)
    return status


def find_account(name: str) -> pwd.struct_passwd:
    """The account of the daemon; UsageError: there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise UsageError(
            f"there is no account {name!r} for the daemon: make it with "
            f"`useradd --system --home-dir /var/lib/spamguard {name}`"
        ) from None


# ---- the answers


def _find_answers(options: Namespace, old: Settings | None) -> Answers:
    """What the options say, else the present configuration, else what is installed."""
    programs = {"postconf": "postfix", "exim4": "exim", "exim": "exim"}
    found = next((name for word, name in programs.items() if shutil.which(word)), "other")
    server = options.server or found
    positions = POSITIONS if server == "postfix" else POSITIONS[:1]
    if options.position and options.position not in positions:
        raise UsageError(f"the position for {server} is {' or '.join(positions)}")
    present = [str(each.position) for each in old.listeners] if old else []
    if old and any(each.listen.protocol is Protocol.MILTER for each in old.scanners):
        present.append("milter")
    position = next((each for each in (options.position, *present) if each in positions), "")
    location = run_command("doveconf", "-h", "mail_location").strip()
    mailboxes = "/home/*/Maildir"
    if old and old.watch:
        mailboxes = old.watch[0].maildir
    elif location.startswith("maildir:/"):
        path = location.removeprefix("maildir:").partition(":")[0]
        mailboxes = re.sub(r"%(\w|\{\w+\})", "*", path)
    return Answers(server, position or positions[0], options.mailboxes or mailboxes)


# ---- the configuration


def make_config(path: Path, old: Settings | None, answers: Answers, *, is_root: bool) -> str:
    """The new text of spamguard.yaml. UsageError: setup cannot change what it says.

    old: what the file says now. is_root: it is for the service, not for one person.
    """
    text = mail_servers.read_text(path) or "# Written by `spamguard setup`.\n"
    values = dict(parse_yaml(text.encode("utf-8", "surrogateescape")).value or {})
    if is_root and old is None:
        values = {"state": "/var/lib/spamguard", "user": ACCOUNT}
        if _has_units():
            values["watch_socket"] = "/run/spamguard-watch/mailboxes.sock"
    listeners, scanners = (list(values.get(key) or []) for key in ("listeners", "scanners"))
    front = [each for each in listeners if each.get("position") in _FRONT][:1]
    asked = [each for each in scanners if each["listen"].startswith("milter:")][:1]
    ours = ((front, listeners, f"smtp://{SMTP}"), (asked, scanners, f"milter://{MILTER}"))
    for found, entries, expected in ours:
        for door in found:
            if door["listen"] != expected:
                raise UsageError(
                    f"the configuration listens on {door['listen']}, and setup knows {expected} "
                    "alone: put in the lines of config/ by hand"
                )
            entries.remove(door)
    if answers.position == "milter":
        scanners[:0] = asked or [{"listen": f"milter://{MILTER}"}]
    else:  # the listener of another position becomes that of this one, with its rules
        usual = {"listen": f"smtp://{SMTP}", "position": "", "next_hop": f"smtp://{BACK}"}
        listeners.insert(0, {**usual, **dict(*front), "position": answers.position})
    values |= {"listeners": listeners or None, "scanners": scanners or None}
    watch = list(values.get("watch") or [{}])
    entry = dict(watch[0]) if isinstance(watch[0], dict) else {"maildir": watch[0]}
    if old is None or not old.watch or old.watch[0].maildir != answers.mailboxes:
        entry["maildir"] = answers.mailboxes
    if mail_servers.has_dovecot_sieve():
        entry.setdefault("we_file", True)
    if entry != {"maildir": watch[0]}:
        watch[0] = entry
    values["watch"] = watch
    values.setdefault("web", "127.0.0.1:10088")
    return edit_yaml(text, values)


def check_config(options: Namespace, path: Path, text: str) -> Settings:
    """What the new text says. ConfigError: it has mistakes."""
    with NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            return common.config_reader(options, Path(file.name))()
        except ConfigError as error:
            problems = (problem.replace(file.name, str(path)) for problem in error.problems)
            text = "what would be written has mistakes, and nothing was changed:"
            raise ConfigError(text, *problems) from error


def edit_yaml(text: str, values: Mapping[str, Any]) -> str:
    """A document with these values, None for a key that is not to be there. What is equal keeps its
    text, with its comments.
    """
    old = parse_yaml(text.encode("utf-8", "surrogateescape")).value or {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    missing = {key: value for key, value in values.items() if value is not None and key not in old}
    for key, node in reversed(root.value if root is not None else []):
        name = key.value
        if values[name] == old[name]:
            continue
        begin, end = key.start_mark.index, node.end_mark.index
        if text[end - 1] != "\n":  # a word or brackets; other values end where the next key begins
            end = text.find("\n", end) + 1 or len(text)
        lines = text[begin:end].splitlines(True)
        while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
            end -= len(lines.pop())  # what stands before the next key belongs to it
        new = "" if values[name] is None else _dump({name: values[name]})
        text = text[:begin] + new + text[end:]
    return f"{text.rstrip()}\n{_dump(missing)}" if missing else text


def _dump(values: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=1000))


# ---- the service


def _plan_service(path: Path, text: str, position: str) -> Change:
    change = Change({path: text})
    if not (_has_units() and Path("/run/systemd/system").is_dir()):
        change.notes.append(
            f"Start spamguard before mail comes: spamguard run --config {path} "
            "(there is no service on this machine)"
        )
        return change
    milter = f"[Socket]\nListenStream=\nListenStream={MILTER}\n"
    change.set_own(_DROP_IN, milter, position == "milter")
    door = ("spamguard.socket", "spamguard.service")
    change.commands = [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", *door, "spamguard-watch.service"),
        ("systemctl", "stop", *door),  # `restart` would open the socket while its service runs
        ("systemctl", "restart", "spamguard-watch.service"),
        ("systemctl", "start", *door),
    ]
    return change


def _has_units() -> bool:
    directories = ("/etc/systemd/system", "/lib/systemd/system")
    return any(Path(each, "spamguard-watch.service").exists() for each in directories)


# ---- doing it


def _carry_out(changes: Sequence[Change | None], *, apply: bool, takes_out_filter: bool) -> None:
    """Show the changes, or make them in this order: spamguard starts anew while no mail passes
    through it, and is ready before a server asks it.

    takes_out_filter: mail in Postfix's queue may name a filter that is no longer there.
    """
    has_filter = run_command("postconf", "-h", "content_filter").startswith("spamguard:")
    before = mail_servers.sessions() if apply and takes_out_filter and has_filter else set()
    is_done = True
    for change in filter(None, changes):
        open_files = change.open_files()
        is_service = ("systemctl", "daemon-reload") in change.commands
        if apply and (open_files or is_service):
            _apply(change)
        elif open_files and not change.is_step:
            _show(change)
        if apply and change.is_step:
            mail_servers.requeue(set())
        is_done &= not open_files
        for note in change.notes:
            print(note)
    if is_done:
        print("The files are as they shall be.")
    if apply and takes_out_filter and mail_servers.succeeds("postfix", "status"):
        print(mail_servers.requeue(before), end="")


def _show(change: Change) -> None:
    for path, (old, new) in change.open_files().items():
        print(f"{path}:")
        lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), n=0)
        for line in list(lines)[2:]:
            if line[0] in "+-" and line[1:].strip() and not line[1:].lstrip().startswith("#"):
                print(f"  {line[0]} {line[1:]}")
        if new is None:
            print("    (the file goes)")
    if change.commands:
        print("then run:")
        print("\n".join("    " + " ".join(command) for command in change.commands))
    print()


def _apply(change: Change) -> None:
    files = change.open_files()
    for path, (old, new) in files.items():
        copy = path.with_name(path.name + _COPY_SUFFIX)
        if old is not None and old not in change.ours and not copy.exists():
            shutil.copy2(path, copy)
            print(f"  kept {copy}")
        _put(path, new)
    try:
        for command in change.commands:
            line = " ".join(command)
            print(f"  {line}", flush=True)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                reason = (done.stderr or done.stdout).strip()
                raise SpamguardError(f"`{line}` failed, and nothing after it ran: {reason}")
    except (OSError, SpamguardError) as error:
        for path, (old, _) in files.items():
            _put(path, old)
        for command in change.commands:
            mail_servers.succeeds(*command)
        raise SpamguardError(f"{error}; these files are as they were before") from error


def _put(path: Path, text: str | None) -> None:
    """Write a file, or take it away with the directories of ours that are then empty."""
    if text is None:
        path.unlink(missing_ok=True)
        if "spamguard" in path.parent.name and not any(path.parent.iterdir()):
            path.parent.rmdir()
        print(f"  removed {path}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mail_servers.write_text(path, text)
    print(f"  wrote {path}")


def _show_next_steps(path: Path, *, applied: bool) -> None:
    if not applied:
        print("`spamguard setup --apply` does all of this.")
        return
    # root's commands take that of the service
    where = "" if path == common.SERVICE_CONFIG else f" --config {path}"
    print(
        f"\nNext:\n  spamguard teach-folders --dry-run{where}\n"
        "      shows what is filed already and would teach; without --dry-run it is learnt\n"
        "  spamguard setup --remove --apply\n"
        "      undoes it: takes spamguard out of the mail servers\n"
        f"  spamguard login-link --operator{where}\n"
        "      prints a link into the page"
    )
