"""A real Postfix for a test, with its own configuration, queue and log, on loopback.

`smtp_port` takes mail from clients, `back_port` takes it back from spamguard; mail for anna and ben
at example.net is delivered into Maildirs. The snippets of config/postfix are used unchanged but for
their ports.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.support.waiting import COMMAND_SECONDS
from tests.unit.folders.maildirs import came

SNIPPETS = Path(__file__).parents[2] / "config" / "postfix"

_MAIN = """compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
myhostname = mx.example.org
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
local_recipient_maps =
alias_maps =
alias_database =
virtual_mailbox_domains = example.net
virtual_mailbox_base = {root}
virtual_mailbox_maps =
  inline:{{ {{anna@example.net = mail/anna/}}, {{ben@example.net = mail/ben/}} }}
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
mydestination =
maillog_file = {root}/maillog
maillog_file_prefixes = {root}
message_size_limit = 52428800
virtual_mailbox_limit = 0
smtputf8_enable = yes
default_destination_concurrency_limit = 50
in_flow_delay = 0
minimal_backoff_time = 1s
maximal_backoff_time = 2s
queue_run_delay = 1s
"""

_SERVICES = """postlog   unix-dgram n  -       n       -       1       postlogd
pickup    unix  n       -       n       60      1       pickup
cleanup   unix  n       -       n       -       0       cleanup
qmgr      unix  n       -       n       1       1       qmgr
tlsmgr    unix  -       -       n       1000?   1       tlsmgr
rewrite   unix  -       -       n       -       -       trivial-rewrite
bounce    unix  -       -       n       -       0       bounce
defer     unix  -       -       n       -       0       bounce
trace     unix  -       -       n       -       0       bounce
verify    unix  -       -       n       -       1       verify
flush     unix  n       -       n       1000?   0       flush
proxymap  unix  -       -       n       -       -       proxymap
smtp      unix  -       -       n       -       -       smtp
relay     unix  -       -       n       -       -       smtp
error     unix  -       -       n       -       -       error
retry     unix  -       -       n       -       -       error
discard   unix  -       -       n       -       -       discard
virtual   unix  -       n       n       -       -       virtual
lmtp      unix  -       -       n       -       -       lmtp
anvil     unix  -       -       n       -       1       anvil
scache    unix  -       -       n       -       1       scache
"""
_PLAIN_DOOR = "smtp      inet  n       -       n       -       -       smtpd\n"


@dataclass(frozen=True, slots=True)
class Postfix:
    """A running Postfix."""

    root: Path
    smtp_port: int
    filter_port: int
    back_port: int

    def maildir(self, user: str = "anna") -> Path:
        """Where mail for user@example.net lies."""
        return self.root / "mail" / user

    def delivered(self, count: int = 1, user: str = "anna", seconds: float = 30) -> list[bytes]:
        """The messages delivered to a user, oldest first; waits until there are `count`.
        AssertionError when they do not come.
        """
        until = time.monotonic() + seconds
        while len(found := sorted((self.maildir(user) / "new").glob("*"), key=came)) < count:
            assert time.monotonic() < until, (
                f"{len(found)} of {count} messages came; the log ends:\n{self.log()[-4000:]}"
            )
            time.sleep(0.05)
        return [path.read_bytes() for path in found]

    def log(self) -> str:
        """The mail log so far."""
        file = self.root / "maillog"
        return file.read_text(errors="replace") if file.exists() else ""

    def queue(self) -> str:
        """The queue as `postqueue` lists it."""
        return subprocess.run(
            ["postqueue", "-c", self.root / "etc", "-p"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout


@contextmanager
def running(
    position: str, *, replace: dict[str, str] | None = None, main: str = ""
) -> Iterator[Postfix]:
    """A Postfix with the snippets of a position. replace: texts changed in them.
    main: more lines of main.cf.
    """
    with open_directory() as root:
        postfix = Postfix(root, free_port(), free_port(), free_port())
        _configure(postfix, position, replace or {}, main)
        _postfix(root, "start")
        try:
            wait_for_port(postfix.back_port if position == "standalone" else postfix.smtp_port)
            yield postfix
        finally:
            _postfix(root, "stop")


def _postfix(root: Path, what: str) -> None:
    done = subprocess.run(
        ["postfix", "-c", root / "etc", what],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, f"postfix {what}: {done.stdout}{done.stderr}"


def _configure(postfix: Postfix, position: str, replace: dict[str, str], more: str) -> None:
    root = postfix.root
    for name in ("etc", "queue", "data", "mail"):
        (root / name).mkdir(parents=True)
    shutil.chown(root / "data", "postfix")
    os.chown(root / "mail", pwd.getpwnam("nobody").pw_uid, -1)
    main, master = _snippet(position, "main"), _snippet(position, "master")
    door = "" if position in ("before-queue", "standalone") else _PLAIN_DOOR
    (root / "etc" / "main.cf").write_text(
        _MAIN.format(root=root) + _moved(main, postfix, replace) + more
    )
    (root / "etc" / "master.cf").write_text(_SERVICES + _moved(door + master, postfix, replace))


def _snippet(position: str, kind: str) -> str:
    file = SNIPPETS / f"{position}.{kind}.cf"
    return file.read_text() if file.exists() else ""


def _moved(text: str, postfix: Postfix, replace: dict[str, str]) -> str:
    """A snippet with the ports of this test."""
    ports = {
        "smtp      inet": f"127.0.0.1:{postfix.smtp_port} inet",
        "127.0.0.1:10025": f"127.0.0.1:{postfix.filter_port}",
        "[127.0.0.1]:10025": f"[127.0.0.1]:{postfix.filter_port}",
        "127.0.0.1:10026": f"127.0.0.1:{postfix.back_port}",
        "127.0.0.1:11332": f"127.0.0.1:{postfix.filter_port}",
    }
    for old, new in (ports | replace).items():
        text = text.replace(old, new)
    return text
