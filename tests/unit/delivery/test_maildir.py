"""Delivery into a Maildir: every byte, every recipient, and never half a message."""

from __future__ import annotations

import asyncio
import mailbox
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spamguard.delivery.maildir import MaildirNextHop
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView
from tests.support import disks
from tests.support.waiting import PATIENCE

HEAD = b"X-Spam-Status: No, score=-3.1 required=5.0 tests=SPAMGUARD_HAM\r\nX-Spamguard: ham\r\n"
SPAM = b"X-Spam-Flag: YES\r\n" + HEAD
TEXT = b"Subject: x\r\n\r\nline\r\n.dot\r\n\r\n"


def content(raw: bytes, head: bytes = HEAD, place: Path = Path("/tmp")) -> SpoolView:
    spool = Spool(place)
    spool.write(raw)
    return SpoolView(head, spool, 0)


def deliver(
    hop: MaildirNextHop, message: SpoolView, *recipients: str, sender: str = "a@example.org"
) -> Sequence[Reply]:
    async def transaction() -> Sequence[Reply]:
        running = hop.transaction(Client())
        assert (await running.mail(Sender(sender))).encode() == b"250 2.1.0 Ok\r\n"
        for address in recipients or ("b@example.org",):
            assert (await running.recipient(Recipient(address))).encode() == b"250 2.1.5 Ok\r\n"
        replies = await running.send(message)
        await running.end()
        await running.end()
        return replies

    try:
        return asyncio.run(transaction())
    finally:
        message.spool.close()


def files(directory: Path) -> list[bytes]:
    """What is in the mailbox, in order of delivery; nothing lies about in it that is no message."""
    assert not list((directory / "tmp").iterdir())
    assert not list((directory / "cur").iterdir())
    order = sorted(
        (directory / "new").iterdir(),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.name.split("R")[0])],
    )
    return [path.read_bytes() for path in order]


def test_the_mailbox_is_private_and_readable_as_one(tmp_path: Path) -> None:
    deliver(MaildirNextHop(tmp_path / "a" / "Maildir", "mx"), content(TEXT, SPAM))
    made = tmp_path / "a" / "Maildir"
    for directory in (
        made,
        *(made / name for name in ("cur", "new", "tmp")),
        made / ".Junk",
        made / ".Junk" / "new",
    ):
        assert directory.stat().st_mode & 0o777 == 0o700
    (path,) = (made / ".Junk" / "new").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (made / ".Junk" / "maildirfolder").read_bytes() == b""
    box = mailbox.Maildir(made)
    assert box.list_folders() == ["Junk"]
    assert [message["Subject"] for message in box.get_folder("Junk")] == ["x"]


def test_names_are_unlike_and_harmless(tmp_path: Path) -> None:
    hop = MaildirNextHop(tmp_path, "mx-1." + "x" * 248)
    deliver(hop, content(TEXT), *["b@x"] * 50)
    names = [path.name for path in (tmp_path / "new").iterdir()]
    assert len(set(names)) == 50
    assert all(re.fullmatch(r"\d+\.M\d{6}R[0-9a-f]{16}\.mx-1\.x{100,}", name) for name in names)


def test_a_cancelled_delivery_waits_until_its_message_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = threading.Event(), threading.Event()
    original = os.fsync

    def slow(descriptor: int) -> None:
        started.set()
        assert go.wait(PATIENCE)
        original(descriptor)

    hop = MaildirNextHop(tmp_path, "mx")
    deliver(hop, content(TEXT))
    monkeypatch.setattr(os, "fsync", slow)

    async def cancelled() -> None:
        message = content(TEXT)
        running = hop.transaction(Client())
        await running.mail(Sender("a@x"))
        await running.recipient(Recipient("b@x"))
        sending = asyncio.create_task(running.send(message))
        await asyncio.to_thread(started.wait, 30)
        sending.cancel()
        await asyncio.sleep(0.05)
        sending.cancel()
        await asyncio.sleep(0.05)
        assert not sending.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await sending
        message.spool.close()

    asyncio.run(cancelled())
    assert len(files(tmp_path)) == 2


# ---- trouble


@pytest.mark.parametrize("failing", ["link", "fsync"])
def test_all_recipients_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The last step of several fails."""
    hop = MaildirNextHop(tmp_path, "mx")
    deliver(hop, content(TEXT))
    left = [2 if failing == "link" else 3]
    original: Callable[..., None] = getattr(os, failing)

    def fail(*arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(os, failing, fail)
    replies = deliver(hop, content(TEXT), "b@x", "c@x", "d@x")
    assert [reply.encode() for reply in replies] == [
        b"451 4.3.0 Mailbox cannot be written now\r\n"
    ] * 3
    assert len(files(tmp_path)) == 1


def test_a_file_in_the_way_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("secrets.token_hex", lambda _: "0")
    hop = MaildirNextHop(tmp_path, "mx")
    deliver(hop, content(TEXT))
    (there,) = (tmp_path / "new").iterdir()
    before = there.read_bytes()
    assert deliver(hop, content(b"Other: x\r\n\r\n"))[0].code == 451
    assert [there.read_bytes()] == [before] == files(tmp_path)


@disks.needs_disks
def test_a_full_disk(small_disk: Path) -> None:
    hop = MaildirNextHop(small_disk / "Maildir", "mx")
    assert deliver(hop, content(TEXT))[0].code == 250
    large = content(TEXT + b"x" * (40 << 10), SPAM)
    replies = deliver(hop, large, *["b@x"] * 8)
    assert {reply.code for reply in replies} == {451}
    assert files(small_disk / "Maildir" / ".Junk") == []
    assert deliver(hop, content(TEXT))[0].code == 250


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", "128k") as place:
        yield place
