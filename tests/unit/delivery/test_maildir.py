"""Delivery into a Maildir: every byte, every recipient, and never half a message."""

from __future__ import annotations

import asyncio
import mailbox
import os
import re
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from spamguard.delivery.next_hop import MaildirNextHop
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import MAX_MEMORY_BYTES, Spool, SpoolView
from tests.support import disks
from tests.support.killing import killed_at
from tests.support.waiting import PATIENCE
from tests.unit.filters import python

run = partial(python, module=__name__)
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


def test_a_message_with_its_envelope_on_top_and_lines_of_a_unix_file(tmp_path: Path) -> None:
    (reply,) = deliver(MaildirNextHop(tmp_path / "Maildir", "mx.example.org"), content(TEXT))
    assert reply.code == 250
    expected = b"Return-Path: <a@example.org>\nDelivered-To: b@example.org\n" + (
        HEAD + TEXT
    ).replace(b"\r\n", b"\n")
    assert files(tmp_path / "Maildir") == [expected]


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


def test_a_mailbox_that_is_there_already_is_used_as_it_is(tmp_path: Path) -> None:
    mailbox.Maildir(tmp_path / "Maildir").close()
    (tmp_path / "Maildir" / "cur").rmdir()
    (tmp_path / "Maildir").chmod(0o750)
    assert deliver(MaildirNextHop(tmp_path / "Maildir", "mx"), content(TEXT))[0].code == 250
    assert len(files(tmp_path / "Maildir")) == 1
    assert (tmp_path / "Maildir").stat().st_mode & 0o777 == 0o750


def test_each_recipient_has_a_copy_duplicates_included(tmp_path: Path) -> None:
    replies = deliver(MaildirNextHop(tmp_path, "mx"), content(TEXT), "b@x", "c@x", "b@x", sender="")
    assert [reply.code for reply in replies] == [250, 250, 250]
    heads = [raw.split(b"\n")[:2] for raw in files(tmp_path)]
    assert heads == [
        [b"Return-Path: <>", b"Delivered-To: " + to] for to in (b"b@x", b"c@x", b"b@x")
    ]


def test_addresses_in_any_script_and_in_no_charset(tmp_path: Path) -> None:
    deliver(
        MaildirNextHop(tmp_path, "mx"),
        content(TEXT),
        "ü@x",
        sender=b"\xff@x".decode("utf-8", "surrogateescape"),
    )
    assert files(tmp_path)[0].startswith(b"Return-Path: <\xff@x>\nDelivered-To: \xc3\xbc@x\n")


@pytest.mark.parametrize(
    ("head", "junk"),
    [
        (SPAM, True),
        (HEAD, False),
        (b"", False),
        (b"x-spam-flag : yes\r\nX-Spamguard: spam\r\n", True),
        (b"Received: from x\r\n\tby y\r\n" + SPAM, True),
        (b"From a Thu Jan  4 10:11:12 2024\r\n" + SPAM, True),
        (HEAD + b"X-Spam-Flag: YES\r\n\r\n", False),  # somebody else's
        (b"X-Spamguard: not-scanned; reason=timeout\r\nX-Spam-Flag: YES\r\n", False),
        (b"\r\nX-Spam-Flag: YES\r\n", False),
        (b"X-Spam-Flag: NO\r\n", False),
        (b"Subject: X-Spam-Flag: YES\r\n X-Spam-Flag: YES\r\n", False),
    ],
)
def test_spam_goes_to_junk_on_our_own_word_only(tmp_path: Path, head: bytes, junk: bool) -> None:
    deliver(MaildirNextHop(tmp_path, "mx"), content(TEXT, head))
    assert len(files(tmp_path)) == (not junk)
    assert (tmp_path / ".Junk").exists() == junk


class _Pieces(Spool):
    """A spool that is read in pieces of a chosen length."""

    length = 1

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        raw = b"".join(super().chunks(start))
        return (raw[at : at + self.length] for at in range(0, len(raw), self.length))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 1000])
def test_line_ends_are_found_across_pieces(tmp_path: Path, length: int) -> None:
    raw = b"A: b\r\n\r\nx\ry\r\r\nz\n\r\n\r\n\0\xff\r"
    spool = _Pieces(tmp_path)
    spool.length = length
    spool.write(raw)
    deliver(MaildirNextHop(tmp_path / "Maildir", "mx"), SpoolView(b"", spool, 0))
    assert files(tmp_path / "Maildir")[0].endswith(b"b@example.org\n" + raw.replace(b"\r\n", b"\n"))


def test_only_what_is_handed_on_of_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write(b"X-Spam-Flag: YES\r\n" + TEXT)
    deliver(
        MaildirNextHop(tmp_path / "Maildir", "mx"),
        SpoolView(HEAD, spool, len(b"X-Spam-Flag: YES\r\n")),
    )
    assert files(tmp_path / "Maildir")[0].endswith((HEAD + TEXT).replace(b"\r\n", b"\n"))


def test_a_large_message_is_never_in_memory(tmp_path: Path) -> None:
    code = """
place = Path(sys.argv[1])
spool = Spool(place)
for _ in range(400):
    spool.write(b"0123456789abcde\\r\\n" * 10_000)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
content = SpoolView(b"A: b\\r\\n\\r\\n", spool, 0)
MaildirNextHop(place / "Maildir", "mx").deliver(Sender("a@x"), [Recipient("b@x")], content)
"""
    done = run(code, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(files(tmp_path / "Maildir")[0]) > 400 * 10_000 * 16


def test_names_are_unlike_and_harmless(tmp_path: Path) -> None:
    hop = MaildirNextHop(tmp_path, "../mx:1/é" + "x" * 300)
    deliver(hop, content(TEXT), *["b@x"] * 50)
    names = [path.name for path in (tmp_path / "new").iterdir()]
    assert len(set(names)) == 50
    assert all(
        re.fullmatch(r"\d+\.M\d+P\d+Q\d+R[0-9a-f]{16}\.\.\._mx_1__x+", name) for name in names
    )


def test_many_at_once(tmp_path: Path) -> None:
    hop = MaildirNextHop(tmp_path, "mx")

    async def one(number: int) -> int:
        message = content(
            b"Number: %d\r\n\r\n" % number + b"x" * (MAX_MEMORY_BYTES // 8),
            SPAM if number % 2 else HEAD,
        )
        running = hop.transaction(Client())
        await running.mail(Sender("a@x"))
        for to in ("b@x", "c@x"):
            await running.recipient(Recipient(to))
        codes = {reply.code for reply in await running.send(message)}
        await running.end()
        message.spool.close()
        return codes.pop()

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*map(one, range(60)))

    assert asyncio.run(all_of_them()) == [250] * 60
    for folder, odd in ((tmp_path, 0), (tmp_path / ".Junk", 1)):
        numbers = sorted(int(re.search(rb"Number: (\d+)", raw)[1]) for raw in files(folder))
        assert numbers == sorted([*range(odd, 60, 2)] * 2)


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    code = """
place = Path(sys.argv[1])
for n in range(50):
    content = SpoolView(b"A: b\\r\\n", Spool(place), 0)
    MaildirNextHop(place, "mx").deliver(Sender("a@x"), [Recipient("b@x")], content)
"""
    threads = [
        threading.Thread(target=run, args=(code, str(tmp_path / "Maildir"))) for _ in range(3)
    ]
    (tmp_path / "Maildir").mkdir()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path / "Maildir")) == 150


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


def test_a_failed_delivery_gives_the_client_no_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    replies = deliver(
        MaildirNextHop(tmp_path / "file" / "Maildir", "mx"), content(TEXT), "b@x", "c@x"
    )
    assert [reply.encode() for reply in replies] == [
        b"451 4.3.0 Mailbox cannot be written now\r\n"
    ] * 2
    assert str(tmp_path) in caplog.text


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
    hop = MaildirNextHop(tmp_path, "mx")
    deliver(hop, content(TEXT))
    (there,) = (tmp_path / "new").iterdir()
    monkeypatch.setattr(hop, "_unique_name", lambda: there.name)
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


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = """
place = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
spool = Spool(place)
spool.write(b"x" * 20_000)
hop = MaildirNextHop(place / "Maildir", "mx")
async def send():
    running = hop.transaction(Client())
    await running.mail(Sender("a@x"))
    await running.recipient(Recipient("b@x"))
    return await running.send(SpoolView(b"A: b\\r\\n\\r\\n", spool, 0))
print(asyncio.run(send())[0].code)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    assert run(code, str(tmp_path)).stdout == "451\n"
    assert files(tmp_path / "Maildir") == []


def test_killed_at_any_step_nothing_half_is_visible(tmp_path: Path) -> None:
    whole = [b"Return-Path: <a@x>\nDelivered-To: %s@x\nA: b\n\nwhole\n" % to for to in (b"b", b"c")]
    outcomes = set()
    for step in range(60):
        place = tmp_path / str(step)
        place.mkdir()
        hop, message = (
            MaildirNextHop(place / "Maildir", "mx"),
            SpoolView(b"A: b\r\n\r\nwhole\r\n", Spool(place), 0),
        )
        status = killed_at(
            step, partial(hop.deliver, Sender("a@x"), [Recipient("b@x"), Recipient("c@x")], message)
        )
        new = place / "Maildir" / "new"
        seen = sorted(path.read_bytes() for path in new.iterdir()) if new.exists() else []
        assert seen in ([], whole[:1], whole)
        outcomes.add((status, len(seen)))
        if status == 0:
            break
    assert outcomes >= {(-9, 0), (-9, 2), (0, 2)}


def test_what_it_offers_is_known_at_once(tmp_path: Path) -> None:
    hop = MaildirNextHop(tmp_path, "mx")
    asyncio.run(hop.probe())
    asyncio.run(hop.close())
    assert hop.answers_each
    assert set(hop.extensions or ()) == {"8BITMIME", "SMTPUTF8", "SIZE"}
