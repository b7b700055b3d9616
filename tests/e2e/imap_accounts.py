"""Accounts for tests: a Dovecot with the usual folders, a daemon that reaches it by IMAP only, and
mail programs.
"""

from __future__ import annotations

import imaplib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spamguard.config.accounts import Account, AccountTls, Mode
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import Daemon
from tests.e2e.dovecot import Dovecot
from tests.e2e.moving import mail_program, ok
from tests.e2e.ports import free_port

# Where inotify is used up by others, IDLE would tell of changes every 30 seconds only.
FOLDERS = "mailbox_idle_check_interval = 1s\n" + "".join(
    f"namespace inbox {{\n mailbox {name} {{\n special_use = \\{name}\n auto = create\n }}\n}}\n"
    for name in ("Archive", "Trash", "Sent", "Drafts")
)
BARE = "protocol imap {{\n imap_capability = {}\n}}\n"
"""Dovecot says that it can do only this; it can all the same."""


@contextmanager
def server(extra: str = "") -> Iterator[Dovecot]:
    with dovecot.running(FOLDERS + extra) as running:
        yield running


def account(where: Dovecot, directory: Path, name: str = "anna", **options: object) -> Account:
    password = directory / "password"
    password.touch(0o600)
    password.write_text("anything\n")
    values: dict[str, object] = {
        "name": f"{name}@example.net",
        "server": "127.0.0.1",
        "user": name,
        "password_file": password,
        "port": where.imap_port,
        "tls": AccountTls.NONE,
        "mode": Mode.MOVE,
    }
    return Account(**values | options)  # type: ignore[arg-type]


@contextmanager
def running(
    state: Path, where: Dovecot, *names: str, mode: str = "move", **options: str
) -> Iterator[Daemon]:
    """The daemon with these people's accounts, and nothing else."""
    (state.parent / "password").touch(0o600)
    (state.parent / "password").write_text("anything\n")
    port = free_port()
    entries = [
        {
            "name": f"{name}@example.net",
            "server": "127.0.0.1",
            "user": name,
            "password_file": str(state.parent / "password"),
            "port": where.imap_port,
            "tls": "none",
            "mode": mode,
        }
        | options
        for name in names
    ]
    settings = {"state": str(state), "metrics": f"127.0.0.1:{port}", "accounts": entries}
    file = state.parent / "spamguard.yaml"
    file.write_text(json.dumps(settings))
    with daemon.running(state, "--config", str(file), port=port) as started:
        yield started


def append(client: imaplib.IMAP4, *messages: bytes, folder: str = "INBOX") -> None:
    """A message comes: by APPEND with the time of now, as no mail is sent here."""
    for raw in messages:
        ok(client.append(folder, "", "", raw))


def names(where: Dovecot, user: str, folder: str) -> list[str]:
    """The subjects in a folder, in the order in which they came there."""
    with mail_program(where, user) as client:
        ok(client.select(folder, readonly=True))
        uids = client.uid("SEARCH", "ALL")[1][0].split()
        answers = [client.uid("FETCH", uid.decode(), "(BODY.PEEK[])")[1][0][1] for uid in uids]
    return [_subject(raw) for raw in answers]


def _subject(raw: bytes) -> str:
    return raw.partition(b"Subject: ")[2].partition(b"\r\n")[0].decode()
