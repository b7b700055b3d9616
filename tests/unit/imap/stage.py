"""An account on a scripted server, step by step: what is cheap is spam. As a program, one that goes
on until its standard input ends, and then says how often it looked and how many kB it took.
"""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spamguard import log
from spamguard.config.accounts import Account, AccountTls, Mode
from spamguard.imap.account import AccountWatch
from spamguard.imap.bodies import Body, RecentBodies
from spamguard.imap.hub import Hub
from spamguard.imap.judge import Answer
from spamguard.imap.records import FolderRow
from tests.support.scripted_imap import OBJECTS, Change, ScriptedImap, Ways, playing

# What a command may be: by UIDs, and never one that takes more than what it names.
MEANT = re.compile(
    r"(CAPABILITY|LOGIN .*|ID \(.*\)|NOOP|IDLE|DONE|LIST .*|STATUS .*|EXAMINE .*|"
    r"UID (SEARCH (RETURN \(ALL\) )?(ALL|UNSEEN|DELETED)|FETCH [\d,]+ \((?!.*BODY\[).*\))|"
    r"(?P<writes>SELECT \"?INBOX\"?|UID (MOVE|COPY) \d+ .*|UID EXPUNGE \d+|"
    r"UID STORE \d+ \+FLAGS.SILENT \((\\Deleted|\$Junk|\$NotJunk)\)))"
)


def cheap(number: int) -> bytes:
    return b"Message-ID: <%d@x>\r\nSubject: %d\r\n\r\ncheap\r\n" % (number, number)


def letter(number: int) -> bytes:
    return cheap(number).replace(b"cheap", b"hello")


def whole(body: Body) -> bytes:
    return b"".join(body.pieces())


def judge(body: Body, user: str) -> Answer:
    label = "spam" if b"cheap" in next(body.pieces(), b"") else "ham"
    return Answer(f"X-Spamguard: {label};".encode(), label == "spam", label)


def account(port: int, directory: Path, **options: object) -> Account:
    file = directory / "password"
    file.write_text("secret\n")
    values = {"name": "anna", "server": "127.0.0.1", "user": "anna", "password_file": file}
    values |= {"port": port, "tls": AccountTls.NONE, "mode": Mode.MOVE}
    return Account(**values | options)  # type: ignore[arg-type]


def make_watch(asked: Account, directory: Path) -> AccountWatch:
    return AccountWatch(asked, directory, judge, lambda *_: None, RecentBodies())


class _OverError(Exception):
    pass


@contextmanager
def running(hub: Hub) -> Iterator[None]:
    """The accounts are kept in step by threads of this process."""
    over = threading.Event()

    def beat() -> None:
        if over.is_set():
            raise _OverError

    def run() -> None:
        with suppress(_OverError):
            hub.run(beat)

    threading.Thread(target=run, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def check_commands(server: ScriptedImap, mode: Mode) -> None:
    """Nothing was asked that may not be."""
    for command in server.commands:
        found = MEANT.fullmatch(command)
        assert found, command
        assert mode is not Mode.LOOK or not found["writes"], command


@contextmanager
def stage(
    directory: Path, ways: Ways = OBJECTS, **options: object
) -> Iterator[tuple[ScriptedImap, AccountWatch]]:
    with playing(ways) as server:
        watch = make_watch(account(server.port, directory, **options), directory)
        try:
            yield server, watch
        finally:
            watch.close()
        check_commands(server, watch.account.mode)
        assert server.most <= 2  # connections


def look(watch: AccountWatch) -> None:
    assert fails(watch) == ""


def fails(watch: AccountWatch) -> str:
    """Look at all folders, and do what follows: what is wrong then."""
    for _ in range(2):
        watch._poll_at = 0.0
        watch.step()
    return watch.status.trouble


def read(watch: AccountWatch, folder: FolderRow, name: str) -> bytes:
    with os.fdopen(watch.read(folder, name), "rb") as file:
        return file.read()


def on(command: str, change: Callable[[bytes], bytes | Iterator[bytes] | None]) -> Change:
    """Answers to such commands are others."""
    return lambda asked, answer: change(answer) if asked == command else answer


def tagged(answer: bytes) -> bytes:
    """The end of an answer."""
    return answer.rstrip().rpartition(b"\r\n")[2] + b"\r\n"


def main(directory: Path, port: int, mode: Mode, silence: float) -> None:
    log.configure()
    watch, steps = make_watch(account(port, directory, mode=mode), directory), 0
    watch.line.silence = silence
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        fails(watch)
        steps += 2
        for row in watch.folders():
            for name, _ in watch.records.shown(row, hide_unread=False)[-2:]:
                with suppress(OSError):
                    os.close(watch.read(row, name))
    watch.close()
    print(steps, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Mode(sys.argv[3]), float(sys.argv[4]))
