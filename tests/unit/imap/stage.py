"""An account on a scripted server, step by step: what is cheap is spam."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spamguard.config.accounts import Account, AccountTls, Mode
from spamguard.imap.account import AccountWatch, RecentMessages
from spamguard.imap.judge import Answer
from tests.support.scripted_imap import ScriptedImap, Ways, playing

CHEAP = b"Message-ID: <%d@x>\r\nSubject: %d\r\n\r\ncheap\r\n"
LETTER = b"Message-ID: <%d@x>\r\nSubject: %d\r\n\r\nhello\r\n"
# What a command may be: by UIDs, and never one that takes more than what it names.
MEANT = re.compile(
    r"(CAPABILITY|LOGIN .*|ID \(.*\)|NOOP|LOGOUT|IDLE|DONE|LIST .*|STATUS .*|EXAMINE .*|"
    r"UID (SEARCH (RETURN \(ALL\) )?(ALL|UNSEEN|DELETED)|FETCH [\d,]+ \((?!.*BODY\[).*\))|"
    r"(?P<writes>SELECT \"?INBOX\"?|UID (MOVE|COPY) \d+ .*|UID EXPUNGE \d+|"
    r"UID STORE \d+ \+FLAGS.SILENT \((\\Deleted|\$Junk|\$NotJunk)\)))"
)


def cheap(number: int) -> bytes:
    return CHEAP % (number, number)


def letter(number: int) -> bytes:
    return LETTER % (number, number)


def judge(raw: bytes, user: str) -> Answer:
    is_spam = b"cheap" in raw
    label = "spam" if is_spam else "ham"
    return Answer(f"X-Spamguard: {label};".encode(), is_spam, label)


def account(where: ScriptedImap, directory: Path, **options: object) -> Account:
    password = directory / "password"
    password.write_text("secret\n")
    values: dict[str, object] = {
        "name": "anna@example.net",
        "server": "127.0.0.1",
        "user": "anna",
        "password_file": password,
        "port": where.port,
        "tls": AccountTls.NONE,
        "mode": Mode.MOVE,
    }
    return Account(**values | options)  # type: ignore[arg-type]


@contextmanager
def watching(server: ScriptedImap, directory: Path, **options: object) -> Iterator[AccountWatch]:
    """The account; afterwards, nothing was asked that may not be."""
    asked = account(server, directory, **options)
    watch = AccountWatch(asked, directory, judge, lambda *_: None, RecentMessages())
    watch.silence = 5.0
    try:
        yield watch
    finally:
        watch.close()
        for command in server.commands:
            found = MEANT.fullmatch(command)
            assert found, command
            assert not found["writes"] or asked.mode is not Mode.LOOK, command
        assert server.most <= 2


@contextmanager
def stage(
    ways: Ways, directory: Path, **options: object
) -> Iterator[tuple[ScriptedImap, AccountWatch]]:
    with playing(ways) as server, watching(server, directory, **options) as watch:
        yield server, watch


def look(watch: AccountWatch) -> None:
    """Look at all folders, and do what follows."""
    for _ in range(2):
        watch._poll_at = 0.0
        watch.step()
    assert watch.status.trouble == ""


def fails(watch: AccountWatch) -> str:
    """What is wrong, once it was tried twice."""
    for _ in range(2):
        watch._poll_at = 0.0
        watch.step()
    return watch.status.trouble


def once(command: str, answer: bytes | None) -> Callable[[str, bytes], bytes | None]:
    """The first answer to such a command is another one."""
    left = [answer]
    return lambda asked, usual: left.pop() if asked == command and left else usual
