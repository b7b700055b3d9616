"""What `setup` puts into the files of Postfix, Exim and Dovecot, and takes out of them.

For each server there is a function from the files as they are to the files as they shall be: first
all that is ours is taken out, then what the new position needs is put in. So a change of position,
a removal and a second run are one mechanism. What is ours stands between two marked lines, or is a
whole file, or is a setting that is known by its value: snippets that people copied have no
marks.

Must never change a file of a server itself: `setup` writes what these functions return.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from spamguard.errors import SpamguardError, UsageError
from spamguard.process import run_command

SMTP, BACK, MILTER = "127.0.0.1:10025", "127.0.0.1:10026", "127.0.0.1:11332"
_BEGIN, _END = "# spamguard: begin", "# spamguard: end"
_BLOCK = re.compile(rf"\n{_BEGIN}\b.*?\n{_END}\n", re.DOTALL)
_EXIM = Path("/etc/exim4")
_DOVECOT = Path("/etc/dovecot")

Command = tuple[str, ...]


@dataclass
class Change:
    """What one server needs. files: their whole text; None: it shall not be there. commands: run in
    this order once the files are there; the first ones check them. ours: texts of which no copy is
    needed. is_step: on the way only.
    """

    files: dict[Path, str | None] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ours: set[str] = field(default_factory=set)
    is_step: bool = False

    def set_own(self, path: Path, text: str, is_used: bool) -> None:
        """A file that is ours as a whole is to be there, or not."""
        self.files[path] = text if is_used else None
        self.ours.add(text)

    def open_files(self) -> dict[Path, tuple[str | None, str | None]]:
        """Those that are not yet as they shall be: the text that is there, and the new one."""
        texts = {path: (read_text(path), text) for path, text in self.files.items()}
        return {path: both for path, both in texts.items() if both[0] != both[1]}


def read_text(path: Path) -> str | None:
    """The text of a file, any bytes kept; None: there is none."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def write_text(path: Path, text: str) -> None:
    """The same way back, at once: a server may read the file at any time."""
    path = path.resolve()  # a link stays one
    draft = path.with_name(f"{path.name}.spamguard-draft")
    draft.write_bytes(text.encode("utf-8", "surrogateescape"))
    if path.exists():
        status = path.stat()
        os.chown(draft, status.st_uid, status.st_gid)
        draft.chmod(status.st_mode & 0o7777)
    draft.replace(path)


@cache
def snippet(name: str) -> str:
    """A file of config/: beside the package in its sources, else in the installation."""
    sources = Path(__file__).parents[2]
    shared = Path(sysconfig.get_path("data")) / "share" / "spamguard"
    file = (sources if (sources / "pyproject.toml").exists() else shared) / "config" / name
    return file.read_text("utf-8")


def _block(text: str) -> str:
    return f"\n{_BEGIN} (`spamguard setup --remove` takes this out)\n{text}{_END}\n"


def _without_ours(text: str) -> str:
    return _BLOCK.sub("", text)


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# ---- Postfix

_POSTFIX_FILES = ("main.cf", "master.cf")
_FILTER = f"spamguard:[127.0.0.1]:{SMTP.rpartition(':')[2]}"
_OUR_MILTER = f"{{ inet:{MILTER}, default_action=tempfail }}"
_MILTERS = re.compile(r"\{[^{}]*\}|[^\s,{}]+")
_QUEUE_PATIENCE = 60.0  # seconds until mail under way must have left or be deferred


def plan_postfix(position: str, *, one_recipient: bool) -> list[Change]:
    """Postfix's files with spamguard in a position, or in none (""); []: there is no Postfix.

    In three steps, if something has to change. First mail passes by spamguard, while our services
    stay for mail under way; then come the services of the new position, and spamguard has to start
    anew, because it keeps connections to the old ones; then mail goes to it. one_recipient: it
    needs one in each transaction. UsageError: it cannot be put in.
    """
    directory = Path(run_command("postconf", "-h", "config_directory").strip() or "/etc/postfix")
    if not (shutil.which("postconf") and (directory / "main.cf").is_file()):
        return []
    reload: list[Command] = [("postfix", "reload")] if succeeds("postfix", "status") else []
    steps: list[Change] = []
    with TemporaryDirectory() as copy:
        postfix = _PostfixFiles(directory, Path(copy), position)

        check = ("postfix", "check")
        postfix.pass_by()
        steps.append(Change(postfix.files(), reload, is_step=True))
        postfix.replace_services()
        steps.append(Change(postfix.files(), [check, *reload], is_step=True))
        postfix.use(one_recipient=one_recipient)
        steps.append(Change(postfix.files(), [check, *reload]))
    return steps if steps[-1].open_files() else steps[-1:]


class _PostfixFiles:
    """Copies of main.cf and master.cf, which postconf edits."""

    def __init__(self, directory: Path, place: Path, position: str) -> None:
        self._directory, self._place, self._position = directory, place, position
        for name in _POSTFIX_FILES:
            write_text(place / name, read_text(directory / name) or "")

    def files(self) -> dict[Path, str | None]:
        return {self._directory / name: read_text(self._place / name) for name in _POSTFIX_FILES}

    def _postconf(self, *words: str) -> str:
        line = ["postconf", "-c", str(self._place), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SpamguardError(f"postconf {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _edit(self, name: str, change: Callable[[str], str]) -> None:
        write_text(self._place / name, change(read_text(self._place / name) or ""))

    def _parameters(self) -> dict[str, str]:
        """Those of services, such as smtp/inet/smtpd_proxy_filter."""
        lines = self._postconf("-P").splitlines()
        return dict(line.split(" = ", 1) for line in lines if " = " in line)

    def pass_by(self) -> None:
        """No mail goes to spamguard."""
        after_queue = snippet("postfix/after-queue.main.cf")
        self._edit("main.cf", lambda text: _without_ours(text).replace(after_queue, ""))
        if self._postconf("-h", "content_filter").startswith("spamguard:"):
            self._postconf("-X", "content_filter", "spamguard_destination_recipient_limit")
        for name in ("smtpd_milters", "non_smtpd_milters"):
            milters = _MILTERS.findall(self._postconf("-h", name))
            others = [milter for milter in milters if milter != _OUR_MILTER]
            if not others and milters:
                self._postconf("-X", name)
            elif others != milters:
                self._postconf("-e", f"{name} = {', '.join(others)}")
        present, (ours, _) = self._parameters(), _before_queue()
        for parameter, value in present.items():
            service, _, name = parameter.rpartition("/")
            if present.get(f"{service}/smtpd_proxy_filter") == SMTP and ours.get(name) == value:
                self._postconf("-PX", parameter)

    def replace_services(self) -> None:
        """The way to spamguard, and back."""
        after_queue = snippet("postfix/after-queue.master.cf")
        self._edit("master.cf", lambda text: _without_ours(text).replace(after_queue, ""))
        if self._parameters().get(f"{BACK}/inet/syslog_name") == "postfix/back":
            self._postconf("-MX", f"{BACK}/inet")
        self._postconf("-MX", "spamguard/unix", "spamguard-back/unix")
        services = {"after-queue": after_queue, "before-queue": _before_queue()[1]}
        if new := services.get(self._position):
            self._edit("master.cf", lambda text: text + _block(new))

    def use(self, *, one_recipient: bool) -> None:
        """Mail goes to spamguard."""
        if self._position == "after-queue":
            if used := self._postconf("-h", "content_filter"):
                raise UsageError(
                    f"Postfix passes its mail to {used} already (content_filter in "
                    f"{self._directory / 'main.cf'}): remove that first, or choose "
                    "--position milter"
                )
            main = snippet("postfix/after-queue.main.cf")
            if one_recipient:
                main = main.replace("\n#spamguard_", "\nspamguard_")
            self._edit("main.cf", lambda text: text + _block(main))
        elif self._position == "before-queue":
            for name, value in _before_queue()[0].items():
                self._postconf("-P", f"{self._door()}/{name}={value}")
        elif self._position == "milter":
            for name in ("smtpd_milters", "non_smtpd_milters"):
                if _OUR_MILTER not in self._postconf("-xh", name):  # it may be $smtpd_milters
                    milters = [*_MILTERS.findall(self._postconf("-h", name)), _OUR_MILTER]
                    self._postconf("-e", f"{name} = {', '.join(milters)}")

    def _door(self) -> str:
        """The service that takes mail from outside: `smtpd pass` where postscreen has port 25."""
        lines = [line.split() for line in self._postconf("-M").splitlines()]
        smtpds = ["/".join(words[:2]) for words in lines if words[7] == "smtpd"]
        for name in ("smtp/inet", "smtpd/pass"):
            if name in smtpds:
                return name
        raise UsageError(
            "Postfix has no service `smtp inet … smtpd` or `smtpd pass … smtpd` in master.cf: put "
            "in the lines of config/postfix/before-queue.master.cf by hand"
        )


def _before_queue() -> tuple[dict[str, str], str]:
    """Parameters of the service that takes mail, and the service to which it comes back."""
    front, begin, back = snippet("postfix/before-queue.master.cf").partition("\n# Back from")
    return dict(re.findall(r"^    -o (\w+)=(\S+)$", front, re.MULTILINE)), begin + back


def sessions() -> set[str]:
    """Sessions of Postfix with clients. Those of before a reload go on as they began."""
    lines = run_command("pgrep", "-a", "-x", "smtpd").splitlines()
    return {line.split()[0] for line in lines if f" {BACK} " not in line}


def requeue(old_sessions: set[str]) -> str:
    """Wait for mail that Postfix has begun to pass to our content_filter, and take up anew what it
    deferred: each queue file names its filter, and without that it would wait, and bounce after
    days.

    old_sessions: may still queue such mail. Returns what is left to do, if anything.
    """
    until = time.monotonic() + _QUEUE_PATIENCE
    while time.monotonic() < until:
        under_way = _filtered("incoming", "active")
        if deferred := _filtered("deferred"):
            lines = "\n".join(deferred)
            words = ["postsuper", "-r", "-", "deferred"]
            subprocess.run(words, input=lines, text=True, capture_output=True, check=False)
            run_command("postkick", "public", "pickup", "W")  # which else looks once a minute
        elif not under_way and not old_sessions & sessions():
            return ""
        time.sleep(0.2)
    return (
        'Some clients are still connected from before. If `mailq` later says "mail transport '
        'unavailable", run this command again.\n'
    )


def _filtered(*queues: str) -> list[str]:
    """Ids of queue files that name our content_filter."""
    directory = Path(run_command("postconf", "-h", "queue_directory").strip())
    found = []
    for path in (path for queue in queues for path in (directory / queue).rglob("*")):
        with suppress(IsADirectoryError, FileNotFoundError), path.open("rb") as file:
            if _FILTER.encode() in file.read(1 << 12):  # it stands near the beginning
                found.append(path.name)
    return found


# ---- Exim

_EXIM_BACK = BACK.replace(":", ".")
_EXIM_ALL = "::0 ; 0.0.0.0"  # where Exim listens when nothing is said
_EXIM_INTERFACES = re.compile(r"^(\s*dc_local_interfaces=)(['\"]?)(.*?)\2$", re.MULTILINE)
_EXIM_FILES = {"main": "00_spamguard", "router": "050_spamguard", "transport": "30_spamguard"}


def plan_exim(*, is_used: bool) -> Change | None:
    """Debian's Exim with spamguard after its queue, or without it; None: there is none. Elsewhere
    the parts are only shown.
    """
    parts = {name: snippet(f"exim/{name}.conf") for name in _EXIM_FILES}
    settings = _EXIM / "update-exim4.conf.conf"
    text = read_text(settings)
    if text is None or (_EXIM / "exim4.conf").exists():  # which Debian's tool leaves alone
        where = "Put this into Exim's configuration"
        notes = [f"{where} ({name}):\n{part}" for name, part in parts.items()]
        return Change(notes=notes) if is_used else None
    lines = parts["main"].splitlines(True)
    parts["main"] = "".join(line for line in lines if not line.startswith("local_interfaces"))
    parts["main"] += "IGNORE_SMTP_LINE_LENGTH_LIMIT = 1\n"
    is_split = re.search(r"(?m)^\s*dc_use_split_config=['\"]?true", text) is not None
    change = Change({settings: _set_interfaces(text, is_used=is_used)})
    for part, name in _EXIM_FILES.items():
        change.set_own(_EXIM / "conf.d" / part / name, parts[part], is_used and is_split)
    macros, template = _EXIM / "exim4.conf.localmacros", _EXIM / "exim4.conf.template"
    is_whole = is_used and not is_split
    block = _block(parts["main"]) if is_whole else ""
    change.files[macros] = _without_ours(read_text(macros) or "") + block or None
    if (text := read_text(template)) is not None:
        text = _without_ours(text)
        for part in ("router", "transport") if is_whole else ():
            begin = f"\nbegin {part}s\n"
            text = text.replace(begin, begin + _block(parts[part]), 1)
        change.files[template] = text
    if shutil.which("update-exim4.conf"):
        change.commands = [
            ("update-exim4.conf",),
            ("exim4", "-bV"),
            ("service", "exim4", "restart"),
            # What waits for spamguard is tried at once; the queue may be long.
            ("sh", "-c", "exim4 -qf >/dev/null 2>&1 </dev/null &"),
        ]
    return change


def _set_interfaces(text: str, *, is_used: bool) -> str:
    """Debian's settings with our port beside the addresses that Exim listens on, or without it. Its
    own tool rewrites these lines, so they can have no marks.
    """

    def change(found: re.Match[str]) -> str:
        value = re.sub(rf"\s*[^\w\s.]\s*{re.escape(_EXIM_BACK)}", "", found[3])
        value = "" if value == _EXIM_ALL else value
        if is_used:
            separator = ":" if ":" in value and ";" not in value else ";"
            value = f"{value or _EXIM_ALL} {separator} {_EXIM_BACK}"
        return found[0] if value == found[3] else f"{found[1]}'{value}'"

    if is_used and not _EXIM_INTERFACES.search(text):
        text += "dc_local_interfaces=''\n"
    return _EXIM_INTERFACES.sub(change, text)


# ---- Dovecot


def has_dovecot_sieve() -> bool:
    """Whether the snippets fit: Dovecot 2.3 with Pigeonhole, in its usual place."""
    version = run_command("dovecot", "--version")
    return bool(shutil.which("sievec")) and version.startswith("2.3") and _DOVECOT.is_dir()


def plan_dovecot(*, is_used: bool) -> Change | None:
    """Dovecot files what spamguard calls spam into Junk; or nothing of ours is there. None: there
    is no Dovecot for which the snippets are.
    """
    if not (has_dovecot_sieve() if is_used else _DOVECOT.is_dir()):
        return None
    change = Change()
    sieve = _DOVECOT / "spamguard/file-by-header.sieve"
    lmtp = _DOVECOT / "conf.d/95-spamguard-lmtp.conf"
    change.set_own(lmtp, snippet("dovecot/lmtp.conf"), is_used)
    change.set_own(sieve, snippet("dovecot/file-by-header.sieve"), is_used)
    if is_used:
        change.commands.append(("sievec", str(sieve)))
    elif compiled := read_text(sieve.with_suffix(".svbin")):
        change.set_own(sieve.with_suffix(".svbin"), compiled, False)
    if shutil.which("doveconf"):
        change.commands.append(("doveconf", "-n"))
    if succeeds("doveadm", "who"):  # it runs
        change.commands.append(("doveadm", "reload"))
    return change
