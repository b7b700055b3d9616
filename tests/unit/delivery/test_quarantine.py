"""The quarantine holds whole messages or none, and each recipient gets a message once."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import Hop
from spamguard.delivery.next_hop import MaildirNextHop
from spamguard.delivery.quarantine import Quarantine, QuarantineEntry, encode_note
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.errors import QuarantineError
from spamguard.keys import new_id
from spamguard.smtp.envelope import Client, Envelope, EsmtpParameter, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.support import disks
from tests.support.hops import Act, Delivered, FakeHop, Script
from tests.support.killing import killed_at
from tests.unit.filters import python

HEAD = b"X-Spam-Flag: YES\r\n"
TEXT = b"Subject: x\r\n\r\n.\r\n\xff..\r\n" + b"x" * 2000 + b"\r\n"
ENVELOPE = Envelope(
    Sender(
        "a@example.org",
        (
            EsmtpParameter("SIZE", "4711"),
            EsmtpParameter("ENVID", "Qx+2B"),
            EsmtpParameter("SMTPUTF8", None),
        ),
    ),
    (
        Recipient("b@x", (EsmtpParameter("ORCPT", "rfc822;B@x"),)),
        Recipient("c@x"),
        Recipient("ü@x"),
    ),
    Client("192.0.2.1", "mx.example.org", helo="mx", protocol="ESMTP", forwarded=True),
)


def name(number: int) -> str:
    return new_id(1.7e9 + number, number.to_bytes(4, "big"))


def content(place: Path) -> SpoolView:
    spool = Spool(place)
    spool.write(b"forged" + TEXT)
    return SpoolView(HEAD, spool, len(b"forged"))


@pytest.fixture
def held(tmp_path: Path) -> Quarantine:
    """With one message in it."""
    quarantine = Quarantine(tmp_path / "quarantine")
    quarantine.store(name(1), content(tmp_path), ENVELOPE, "spam", 1.7e9)
    return quarantine


def read(quarantine: Quarantine, wanted: str) -> bytes:
    view = quarantine.open(wanted)
    try:
        assert view.size == len(HEAD + TEXT)
        return b"".join(view.chunks())
    finally:
        view.spool.close()


def test_what_is_held_is_as_it_was(held: Quarantine, tmp_path: Path) -> None:
    (entry,) = held.entries()
    assert (entry.id, entry.reason, entry.when, entry.size) == (
        name(1),
        "spam",
        1.7e9,
        len(HEAD + TEXT),
    )
    assert entry.envelope == ENVELOPE
    assert (entry.waiting, entry.released) == ((0, 1, 2), False)
    assert read(held, name(1)) == HEAD + TEXT
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [
        f"{name(1)}.eml",
        f"{name(1)}.json",
    ]


def test_any_byte_is_kept(tmp_path: Path) -> None:
    odd = bytes(range(256)) + b"\r\r\n\n\0 no end of line"
    quarantine, spool = Quarantine(tmp_path), Spool(tmp_path)
    spool.write(odd)
    quarantine.store(name(1), SpoolView(b"", spool, 0), ENVELOPE, "spam", 0)
    assert (tmp_path / f"{name(1)}.eml").read_bytes() == odd


def test_a_file_system_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EISDIR, as from a kernel that does not know the flag
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    quarantine = Quarantine(tmp_path / "quarantine")
    for _ in range(2):
        with suppress(FileExistsError):
            quarantine.store(name(1), content(tmp_path), ENVELOPE, "spam", 1.7e9)
    assert read(quarantine, name(1)) == HEAD + TEXT
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "quarantine").iterdir()}
    assert modes == {f"{name(1)}.eml": 0o600, f"{name(1)}.json": 0o600}


def test_what_was_written_by_half_goes_where_it_needs_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    place = tmp_path / "quarantine"
    for step in range(3, 12):
        killed_at(
            step,
            partial(Quarantine(place).store, name(step), content(tmp_path), ENVELOPE, "spam", 0),
        )
    left = [path for path in place.iterdir() if path.suffix not in (".eml", ".json")]
    assert len(left) > 1
    for path in left[1:]:
        os.utime(path, (0, 0))
    Quarantine(place).store(name(99), content(tmp_path), ENVELOPE, "spam", 0)
    assert [path for path in place.iterdir() if path.suffix not in (".eml", ".json")] == left[:1]


def test_an_address_in_no_charset_is_kept(tmp_path: Path) -> None:
    odd = Envelope(Sender(b"\xff@x".decode("utf-8", "surrogateescape")), (), Client())
    Quarantine(tmp_path).store(name(1), content(tmp_path), odd, "spam", 0)
    assert Quarantine(tmp_path).entry(name(1)).envelope == odd


def test_it_is_private(held: Quarantine, tmp_path: Path) -> None:
    assert (tmp_path / "quarantine").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "quarantine").iterdir()} == {0o600}


def test_newest_first_and_bounded(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine")
    assert list(quarantine.entries()) == []
    for number in (3, 1, 5, 2, 4):
        quarantine.store(name(number), content(tmp_path), ENVELOPE, "spam", 0)
    for odd in (
        "x.json",
        "../x.json".replace("/", "_"),
        f"{name(9)}.eml",
        f"{name(8)}.json",
        f"{name(7)}.new",
    ):
        (tmp_path / "quarantine" / odd).write_text("{}")
    assert [entry.id for entry in quarantine.entries()] == [
        name(number) for number in (5, 4, 3, 2, 1)
    ]
    assert [entry.id for entry in quarantine.entries(2, before=name(4))] == [name(3), name(2)]


@pytest.mark.parametrize(
    "text", ["", "../../../etc/passwd", "0" * 15 + "/", "A" * 16, "0" * 16 + "\0", "0" * 16 + "\n"]
)
def test_what_is_no_id_never_becomes_a_path(held: Quarantine, tmp_path: Path, text: str) -> None:
    calls = (
        held.entry,
        held.open,
        held.delete,
        lambda text: held.store(text, content(tmp_path), ENVELOPE, "spam", 0),
    )
    for call in calls:
        with pytest.raises(QuarantineError, match="is no id"):
            call(text)


def test_a_link_in_the_place_of_a_message_is_not_followed(held: Quarantine, tmp_path: Path) -> None:
    """Whoever owns the directory might put one there, to what only root may read, and root release
    it to anybody.
    """
    secret = tmp_path / "secret"
    secret.write_text("root:x")
    held.file(name(1)).unlink()
    held.file(name(1)).symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        held.open(name(1))


def test_what_is_not_there(held: Quarantine, tmp_path: Path) -> None:
    for call in (held.entry, held.open, held.delete):
        with pytest.raises(QuarantineError, match="no such message"):
            call(name(2))
    with pytest.raises(QuarantineError, match="no such message"):
        asyncio.run(held.release(name(2), MaildirNextHop(tmp_path / "Maildir", "mx")))


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", "\xff", '{"envelope": 1}'])
def test_a_damaged_note_is_logged_and_hides_no_other(
    held: Quarantine, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    held.store(name(2), content(tmp_path), ENVELOPE, "spam", 0)
    (tmp_path / "quarantine" / f"{name(2)}.json").write_text(damage, "latin-1")
    with pytest.raises(QuarantineError, match="is damaged"):
        held.entry(name(2))
    assert [entry.id for entry in held.entries()] == [name(1)]
    assert f"{name(2)}.json: is damaged" in caplog.text


def test_the_same_id_twice_changes_nothing(held: Quarantine, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        held.store(name(1), SpoolView(b"other\r\n", Spool(tmp_path), 0), ENVELOPE, "other", 0)
    assert read(held, name(1)) == HEAD + TEXT
    assert held.entry(name(1)).reason == "spam"


def test_deleting(held: Quarantine, tmp_path: Path) -> None:
    held.delete(name(1))
    assert list((tmp_path / "quarantine").iterdir()) == []


# ---- release


ADDRESSES = [recipient.address for recipient in ENVELOPE.recipients]
Released = tuple[list[tuple[str, int]], list[Delivered], list[str]]


def release(quarantine: Quarantine, script: Script | None = None, *, lmtp: bool = True) -> Released:
    """By a real session: the replies by recipient, what the next hop has taken, and what it has
    heard.
    """

    async def released() -> Released:
        async with FakeHop(script or {}, lmtp=lmtp).running() as fake:
            hop = SmtpNextHop(Hop(fake.endpoint), "me.example")
            try:
                replies = await quarantine.release(name(1), hop)
            finally:
                await hop.close()
            return (
                [(recipient.address, reply.code) for recipient, reply in replies],
                fake.messages,
                fake.commands,
            )

    return asyncio.run(released())


@pytest.mark.parametrize("lmtp", [True, False])
def test_a_release_gives_it_to_everybody_once(held: Quarantine, lmtp: bool) -> None:
    replies, (message,), commands = release(held, lmtp=lmtp)
    assert replies == [(address, 250) for address in ADDRESSES]
    assert (message.sender, message.recipients, message.data) == (
        "a@example.org",
        ADDRESSES,
        HEAD + TEXT,
    )
    (mail,) = [command for command in commands if command.startswith("MAIL")]
    assert "4711" not in mail  # the size it came in with
    assert "ENVID=Qx+2B" in mail
    assert commands[-1] == "QUIT"  # the session was given back
    assert held.entry(name(1)).released
    assert release(held, lmtp=lmtp) == ([], [], [])


def test_only_refused_recipients_are_tried_again(held: Quarantine) -> None:
    replies, _, _ = release(
        held,
        {"RCPT": (b"450 later\r\n", b"250 yes\r\n"), "DOT": (b"250 yes\r\n", b"452 later\r\n")},
    )
    assert replies == [("b@x", 450), ("c@x", 250), ("ü@x", 452)]
    assert (held.entry(name(1)).waiting, held.entry(name(1)).released) == ((0, 2), False)
    replies, (message,), _ = release(held)
    assert replies == [("b@x", 250), ("ü@x", 250)]
    assert (message.recipients, message.data) == (["b@x", "ü@x"], HEAD + TEXT)
    assert held.entry(name(1)).released


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize("lmtp", [True, False])
def test_a_release_that_fails_can_be_repeated(held: Quarantine, step: str, lmtp: bool) -> None:
    for answer, code in ((b"554 no\r\n", 554), (Act.DROP, 451)):
        assert release(held, {step: answer}, lmtp=lmtp)[0] == [
            (address, code) for address in ADDRESSES
        ]
        assert held.entry(name(1)).waiting == (0, 1, 2)
    assert len(release(held, lmtp=lmtp)[1]) == 1
    assert held.entry(name(1)).released


def test_into_a_maildir(held: Quarantine, tmp_path: Path) -> None:
    replies = asyncio.run(held.release(name(1), MaildirNextHop(tmp_path / "Maildir", "mx")))
    assert [reply.code for _, reply in replies] == [250, 250, 250]
    copies = [path.read_bytes() for path in (tmp_path / "Maildir" / "new").iterdir()]
    assert len(copies) == 3  # and not in Junk: it was released
    assert all(copy.endswith((HEAD + TEXT).replace(b"\r\n", b"\n")) for copy in copies)


def test_two_at_once_give_it_out_once(held: Quarantine, tmp_path: Path) -> None:
    class Busy(MaildirNextHop):
        """Somebody else comes while it delivers."""

        def deliver(self, *arguments: Any) -> None:
            with pytest.raises(QuarantineError, match="at this moment"):
                asyncio.run(
                    Quarantine(tmp_path / "quarantine").release(
                        name(1), MaildirNextHop(tmp_path / "Other", "mx")
                    )
                )
            super().deliver(*arguments)

    assert len(asyncio.run(held.release(name(1), Busy(tmp_path / "Maildir", "mx")))) == 3


def test_what_is_being_released_is_not_deleted_beneath(held: Quarantine, tmp_path: Path) -> None:
    """Delivered recipients are noted afterwards: without its message, nobody could read or delete
    the note.
    """

    class Busy(MaildirNextHop):
        """Somebody deletes the message while it delivers."""

        def deliver(self, *arguments: Any) -> None:
            with pytest.raises(QuarantineError, match="at this moment"):
                Quarantine(tmp_path / "quarantine").delete(name(1))
            super().deliver(*arguments)

    asyncio.run(held.release(name(1), Busy(tmp_path / "Maildir", "mx")))
    assert held.entry(name(1)).released
    held.delete(name(1))
    assert list((tmp_path / "quarantine").iterdir()) == []


def test_what_goes_at_the_last_moment_is_not_there(held: Quarantine, tmp_path: Path) -> None:
    class Raced(Quarantine):
        """Somebody deletes the message once it was seen."""

        def entry(self, name: str) -> QuarantineEntry:
            found = super().entry(name)
            held.delete(name)
            return found

    with pytest.raises(QuarantineError, match="no such message"):
        Raced(tmp_path / "quarantine").delete(name(1))


# ---- trouble


def test_killed_at_any_step_of_storing_nothing_half_is_shown(tmp_path: Path) -> None:
    seen = set()
    for step in range(60):
        place = tmp_path / str(step)
        place.mkdir()
        quarantine, message = Quarantine(place / "q"), content(place)
        status = killed_at(step, partial(quarantine.store, name(1), message, ENVELOPE, "spam", 0))
        found = list(quarantine.entries())
        for entry in found:
            assert entry.envelope == ENVELOPE
            assert read(quarantine, entry.id) == HEAD + TEXT
        assert all(path.suffix in (".eml", ".json") for path in place.glob("q/*"))
        seen.add((status, len(found)))
        if status == 0:
            break
    assert seen == {(-9, 0), (-9, 1), (0, 1)}


def test_what_was_stored_by_half_goes_a_day_later_with_the_next_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine, place = Quarantine(tmp_path / "q"), tmp_path / "q"
    for number in (1, 2, 3, 4):
        quarantine.store(name(number), content(tmp_path), ENVELOPE, "spam", 0)
    (place / f"{name(1)}.json").unlink()  # where a process killed between the two names leaves it
    quarantine.delete(name(2))
    assert (place / f"{name(1)}.eml").exists()  # it may be at it still
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 90_000)
    later = Quarantine(place)
    listed = later.ids
    monkeypatch.setattr(later, "ids", lambda: (one for one in listed() if one != name(4)))
    # while the note of the fourth is just being replaced, and the list lacks it
    later.delete(name(3))
    assert {path.name for path in place.iterdir()} == {f"{name(4)}.eml", f"{name(4)}.json"}


def test_what_is_being_stored_stays_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been set meanwhile, or be another one's, as that of a server of files: 250 would
    then be the answer to nothing.
    """
    place, now = tmp_path / "q", time.time()
    Quarantine(place).store(name(1), content(tmp_path), ENVELOPE, "spam", 0)

    def between_the_two_names(entry: QuarantineEntry) -> bytes:
        monkeypatch.setattr(time, "time", lambda: now + 90_000)
        Quarantine(place).delete(name(1))
        return encode_note(entry)

    monkeypatch.setattr("spamguard.delivery.quarantine.encode_note", between_the_two_names)
    Quarantine(place).store(name(2), content(tmp_path), ENVELOPE, "spam", 0)
    assert {path.name for path in place.iterdir()} == {f"{name(2)}.eml", f"{name(2)}.json"}


def test_a_message_whose_note_cannot_be_looked_up_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine, place, now, stat = (
        Quarantine(tmp_path / "q"),
        tmp_path / "q",
        time.time(),
        Path.stat,
    )
    for number in (1, 2):
        quarantine.store(name(number), content(tmp_path), ENVELOPE, "spam", 0)

    def failing(path: Path, **settings: bool) -> os.stat_result:
        if path.name == f"{name(2)}.json":
            raise OSError(errno.EIO, "a bad sector")
        return stat(path, **settings)

    monkeypatch.setattr(quarantine, "ids", lambda: iter(()))
    monkeypatch.setattr(time, "time", lambda: now + 90_000)
    monkeypatch.setattr(Path, "stat", failing)
    quarantine.delete(name(1))
    assert {path.name for path in place.iterdir()} == {f"{name(2)}.eml", f"{name(2)}.json"}


def test_killed_at_any_step_of_deleting_no_unlisted_file_stays(tmp_path: Path) -> None:
    """What is left goes with the next message that is deleted."""
    seen = set()
    for step in range(60):
        place = tmp_path / str(step)
        place.mkdir()
        quarantine = Quarantine(place / "q")
        for number in (1, 2):
            quarantine.store(name(number), content(place), ENVELOPE, "spam", 0)
        status = killed_at(step, partial(quarantine.delete, name(1)))
        ids = {entry.id for entry in quarantine.entries()}
        assert ids in ({name(2)}, {name(1), name(2)})
        quarantine.delete(name(2))
        left = {path.stem for path in place.glob("q/*")}
        assert left == ids - {name(2)}
        seen.add((status, len(left)))
        if status == 0:
            break
    assert seen == {(-9, 1), (-9, 0), (0, 0)}


@pytest.mark.slow
def test_killed_at_any_step_of_releasing_it_is_given_out_at_least_once(tmp_path: Path) -> None:
    counts = set()
    for step in range(80):
        place = tmp_path / str(step)
        place.mkdir()
        quarantine = Quarantine(place / "q")
        quarantine.store(
            name(1), content(place), Envelope(Sender(""), (Recipient("b@x"),), Client()), "spam", 0
        )
        hop = MaildirNextHop(place / "Maildir", "mx")
        status = killed_at(step, lambda: asyncio.run(quarantine.release(name(1), hop)))  # noqa: B023  done before the next step
        asyncio.run(quarantine.release(name(1), hop))
        assert quarantine.entry(name(1)).released
        assert asyncio.run(quarantine.release(name(1), hop)) == ()
        copies = [path.read_bytes() for path in (place / "Maildir" / "new").iterdir()]
        assert len(copies) in (1, 2)
        assert len(set(copies)) == 1
        counts.add((status, len(copies)))
        if status == 0:
            break
    assert {(-9, 1), (0, 1)} <= counts


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
place = Path(sys.argv[1])
try:
    Quarantine(place / "q").store(name(1), content(place), ENVELOPE, "spam", 0)
except OSError as error:
    print(error.errno)
"""
    done = python(code, str(tmp_path), module=__name__)
    assert (done.stdout, done.stderr) == ("27\n", "")
    assert list((tmp_path / "q").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", "64k") as place:
        yield place


@disks.needs_disks
def test_a_full_disk_holds_what_it_held_and_nothing_half(small_disk: Path, tmp_path: Path) -> None:
    quarantine = Quarantine(small_disk / "q")

    def fill() -> None:
        for number in range(100):
            quarantine.store(name(number), content(tmp_path), ENVELOPE, "spam", 0)

    with pytest.raises(OSError, match="No space left"):
        fill()
    held = len(list(quarantine.entries()))
    assert held > 2
    assert len(list((small_disk / "q").iterdir())) == 2 * held

    def give_out() -> None:
        asyncio.run(quarantine.release(name(0), MaildirNextHop(tmp_path / "Maildir", "mx")))

    with pytest.raises(OSError, match="No space left"):
        give_out()
    assert not quarantine.entry(name(0)).released
    quarantine.delete(name(1))
    give_out()
    assert json.loads((small_disk / "q" / f"{name(0)}.json").read_text())["delivered"] == [0, 1, 2]
