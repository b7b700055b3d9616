"""Moving mail teaches whatever servers, administrators and accidents do to a mailbox: with a real
Dovecot, and by hand.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e import daemon
from tests.e2e.daemon import Daemon
from tests.e2e.moving import (
    all_seen,
    said,
    sibling,
)
from tests.e2e.ports import free_port
from tests.unit.folders.maildirs import deliver, maildir
from tests.unit.folders.maildirs import move as rename

LARGE = 100 << 20  # bytes


@contextmanager
def configured(state: Path, watch: str) -> Iterator[tuple[Daemon, int]]:
    """The daemon with an entry of `watch:`, and its port; mail it takes goes into a Maildir that
    nobody watches.
    """
    port = free_port()
    file = state.with_name("spamguard.yaml")
    file.write_text(
        f"listeners: [{{listen: 'smtp://127.0.0.1:{port}', position: standalone, next_hop: "
        f"'maildir:{state}/elsewhere'}}]\n"
        f"watch: [{watch}]\n"
    )
    with daemon.running(state, "--config", str(file), port=port) as running:
        yield running, port


def test_a_mailbox_full_of_traps(state: Path, tmp_path: Path) -> None:
    """Links out of the tree, names that are no UTF-8, 100 MB, pipes, what is half written, and
    folders that go while they are read.
    """
    box = maildir(tmp_path / "home" / "anna", ".Junk", ".Archive")
    outside = maildir(tmp_path / "outside", ".Junk")
    secret = deliver(outside, sibling(50))
    messages = [deliver(box, sibling(number)) for number in range(3)]
    odd = os.fsdecode(b"1700000000.M1P1.h\xf6st")
    (box / "new" / odd).write_bytes(sibling(3))
    with configured(state, f"{tmp_path}/home/*") as (running, _):
        all_seen(state, box, 4)
        (box / ".Linked").symlink_to(outside)
        (box / ".Junk" / "cur" / "1.link:2,S").symlink_to(secret)
        os.mkfifo(box / ".Junk" / "cur" / "2.pipe:2,S")
        (box / ".Junk" / "cur" / "3.directory:2,S").mkdir()
        maildir(box, os.fsdecode(b".Tr\xf6del"), ".Junk.deep.er")
        half = box / ".Junk" / "new" / f"4.half,S={len(sibling(4))}"
        half.write_bytes(sibling(4)[:70])
        large = deliver(box, sibling(5) + b"x" * 76 + b"\r\n")
        with large.open("ab") as file:
            file.truncate(LARGE)
        large = large.rename(large.with_name(large.name.partition(",")[0]))
        all_seen(state, box, 5)
        rename(large, box / ".Junk")
        rename(messages[0], box / os.fsdecode(b".Tr\xf6del"))
        rename(messages[1], box / ".Junk.deep.er")
        rename(box / "new" / odd, box / ".Junk")
        running.lines("class=spam", 3)
        for number in range(20):
            there = maildir(box / f".Archive.{number}")
            message = deliver(there, sibling(60 + number))
            if number % 2:
                time.sleep(0.02)
            shutil.rmtree(there)
            assert not message.exists()
        (box / ".Archive").rename(box / ".Kept")
        half.write_bytes(sibling(4))
        rename(messages[2], box / ".Junk")
        running.lines("class=spam", 4)
        running.lines("is a symbolic link, which is not followed", 2)
        for _ in range(2):  # the mailbox is looked at again
            (box / "again").mkdir()
            (box / "again").rmdir()
            time.sleep(1.5)
        log = running.log()
    assert said(state) == {"anna": "spam spam spam spam"}
    assert "Traceback" not in log
    told = [
        line.partition(": ")[2]
        for line in log.splitlines()
        if "WARNING" in line or " warning " in line
    ]
    assert len(told) == len(set(told))
    assert sum("is a symbolic link, which is not followed" in line for line in told) == 2
    assert str(secret) not in log
