"""The quarantine holds whole messages or none, and each recipient gets a message once."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.delivery.maildir import MaildirNextHop
from spamguard.delivery.quarantine import Quarantine
from spamguard.errors import QuarantineError
from spamguard.keys import new_id
from spamguard.smtp.envelope import Client, Envelope, EsmtpParameter, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.support import disks

HEAD = b"X-Spam-Flag: YES\r\n"
TEXT = b"Subject: x\r\n\r\n.\r\n\xff..\r\n" + b"x" * 2000 + b"\r\n"
NOTE = '{"envelope": {"sender": {"address": ""}, "recipients": [], "client": {}}, "reason": ""'
WITHOUT_DELIVERED = NOTE + ', "when": 0, "size": 1}'
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
    with closing(quarantine.open(wanted)) as message:
        assert message.size == len(HEAD + TEXT)
        return message.read()


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


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "{}", "\xff", '{"envelope": 1}', WITHOUT_DELIVERED]
)
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


# ---- release


# ---- trouble


def test_what_was_stored_by_half_goes_with_the_next_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine, place = Quarantine(tmp_path / "q"), tmp_path / "q"
    for number in (1, 2, 3, 4):
        quarantine.store(name(number), content(tmp_path), ENVELOPE, "spam", 0)
    (place / f"{name(1)}.json").unlink()  # where a process killed between the two names leaves it
    with (place / f"{name(1)}.eml").open("rb") as storing:  # or one that is at it still
        fcntl.flock(storing, fcntl.LOCK_EX)
        quarantine.delete(name(2))
    assert (place / f"{name(1)}.eml").exists()
    later = Quarantine(place)
    listed = later.ids
    monkeypatch.setattr(
        later, "ids", lambda *ending: (one for one in listed(*ending) if ending or one != name(4))
    )
    # while the note of the fourth is just being replaced, and the list lacks it
    later.delete(name(3))
    assert {path.name for path in place.iterdir()} == {f"{name(4)}.eml", f"{name(4)}.json"}


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
