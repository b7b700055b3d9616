"""The quarantine: visibility, release, the next hop of a release, and the lesson that comes with
it.
"""

from __future__ import annotations

import asyncio
import fcntl
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import TeachSettings
from spamguard.delivery.quarantine import DIRECTORY, Quarantine
from spamguard.errors import BusyError, NotAllowedError, NotThereError, UsageError
from spamguard.web import history
from spamguard.web.auth import Person
from spamguard.web.history import Search
from spamguard.web.preview import MAX_CHARACTERS
from spamguard.web.service import Service
from tests.unit.filters import READER, opened
from tests.unit.web.office import (
    ANNA,
    BEN,
    CARL,
    LISTENER,
    MAIL,
    NOW,
    OPERATOR,
    PASSED,
    asked,
    digest,
    hold,
    name,
    serving,
    settings,
)

RAW = PASSED[0][1].replace(b"\n", b"\r\n")


@pytest.fixture
def held(state: Path) -> Path:
    """0: anna's, 1: both's, 2: ben's."""
    hold(state, 0, RAW, "anna@example.org")
    hold(state, 1, RAW, "anna@example.org", "ben@example.org")
    hold(state, 2, RAW, "ben@example.org")
    return state


def delivered(place: Path) -> int:
    return len(list((place / "new").iterdir())) if (place / "new").exists() else 0


def label(state: Path, raw: bytes, user: str) -> str | None:
    with opened(state) as spam_filter:
        vote = spam_filter.ledger.get_vote(READER.digest(raw), user)
        return f"{vote.label} by {vote.origin}" if vote else None


def test_a_long_list_is_looked_through_in_pieces(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_READS", 1)
    assert [
        message.id for message in asked(held, lambda service: service.quarantine(BEN)).rows
    ] == [
        name(1),
        name(2),
    ]


def test_a_header_is_shown_in_its_own_lines(state: Path) -> None:
    """Line ends of Unicode alone begin no line; joiners stay, as parts of words."""
    hold(
        state,
        0,
        "Subject: می\u200cخواهم\r\nX: a\x85From: b\u2028Received: c\r\n\r\nbody".encode(),
        "anna@example.org",
    )
    result = asked(state, lambda service: service.held(OPERATOR, name(0)))
    assert result.subject == "می\u200cخواهم"
    assert result.header == "Subject: می\u200cخواهم\nX: a\ufffdFrom: b\ufffdReceived: c"


def test_mail_that_the_history_lacks_is_read_again(state: Path, tmp_path: Path) -> None:
    raw = MAIL[120][1].replace(b"\n", b"\r\n")
    hold(state, 500, b"X-Spam-Flag: YES\r\n" + raw, "anna@example.org")
    released = asked(
        settings(state, hops=(f"maildir:{tmp_path / 'Maildir'}",)),
        lambda service: service.release(OPERATOR, name(500)),
    )
    assert released.taught
    assert label(state, raw, "") == "ham by quarantine"
    assert digest(b"X-Spam-Flag: YES\r\n" + raw) == digest(raw)


def test_releasing_mail_of_several_recipients(held: Path, tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        with pytest.raises(NotAllowedError, match="other people wait"):
            await service.release(ANNA, name(1))
        assert not delivered(tmp_path / "Maildir")
        assert (await service.release(OPERATOR, name(1))).released
        assert (await service.held(ANNA, name(1))).waiting == ()

    asked(settings(held, hops=(f"maildir:{tmp_path / 'Maildir'}",)), work)
    assert delivered(tmp_path / "Maildir") == 2
    assert label(held, RAW, "") is None or label(held, PASSED[1][1], "") == "ham by quarantine"


def test_the_next_hop_of_a_release(state: Path, tmp_path: Path) -> None:
    """To the next hop of the listener that held it; without that listener only if there is no
    choice.
    """
    hold(state, 0, RAW, "anna@example.org", listener="smtp://127.0.0.1:10026")
    hold(state, 1, RAW, "anna@example.org", listener="smtp://127.0.0.1:9999")
    hold(state, 2, RAW, "anna@example.org", listener=LISTENER)
    hops = (f"maildir:{tmp_path / 'first'}", f"maildir:{tmp_path / 'second'}")

    async def work(service: Service) -> None:
        assert (await service.release(OPERATOR, name(0))).released
        assert (delivered(tmp_path / "first"), delivered(tmp_path / "second")) == (0, 1)
        assert (await service.release(OPERATOR, name(2))).released
        assert (delivered(tmp_path / "first"), delivered(tmp_path / "second")) == (1, 1)
        with pytest.raises(UsageError, match="--next-hop"):
            await service.release(OPERATOR, name(1))

    asked(settings(state, hops=hops), work)
    assert asked(
        settings(state, hops=hops[:1] * 2), lambda service: service.release(OPERATOR, name(1))
    ).released


def test_a_next_hop_that_is_down_teaches_nothing(state: Path, tmp_path: Path) -> None:
    hold(state, 0, RAW, "anna@example.org")
    released = asked(
        settings(state, hops=(f"lmtp:{tmp_path / 'nobody'}",)),
        lambda service: service.release(ANNA, name(0)),
    )
    assert (released.released, released.taught) == (False, False)
    assert released.recipients[0].reply.startswith("451 ")
    assert label(state, RAW, "anna") is None


def test_a_used_up_quota_does_not_hinder_a_release(state: Path, tmp_path: Path) -> None:
    hold(state, 0, RAW, "anna@example.org")
    configuration = settings(
        state, hops=(f"maildir:{tmp_path / 'Maildir'}",), teach=TeachSettings(lessons_per_day=1)
    )

    async def work(service: Service) -> None:
        await service.learn_passed(ANNA, name(3), "spam")
        released = await service.release(ANNA, name(0))
        assert (released.released, released.taught) == (True, False)

    asked(configuration, work)


def test_only_one_at_a_time(state: Path, tmp_path: Path) -> None:
    hold(state, 0, RAW, "anna@example.org")

    async def run() -> None:
        async with serving(settings(state, hops=(f"maildir:{tmp_path / 'Maildir'}",))) as service:
            results = await asyncio.gather(
                *(service.release(ANNA, name(0)) for _ in range(4)), return_exceptions=True
            )
            assert all(
                isinstance(one, BusyError) or not isinstance(one, Exception) for one in results
            )

    asyncio.run(run())
    assert delivered(tmp_path / "Maildir") == 1


def test_a_release_goes_on_when_the_client_hangs_up(state: Path, tmp_path: Path) -> None:
    hold(state, 0, RAW, "anna@example.org")

    async def run() -> None:
        async with serving(settings(state, hops=(f"maildir:{tmp_path / 'Maildir'}",))) as service:
            asking = asyncio.create_task(service.release(ANNA, name(0)))
            while not asking.done() and not delivered(tmp_path / "Maildir"):
                await asyncio.sleep(0.001)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(run())
    assert delivered(tmp_path / "Maildir") == 1
    assert Quarantine(state / DIRECTORY).entry(name(0)).released


def test_mail_under_release_is_not_deleted(held: Path) -> None:
    async def work(service: Service) -> None:
        with Quarantine(held / DIRECTORY).file(name(0)).open("rb") as message:
            fcntl.flock(message, fcntl.LOCK_EX)  # as whoever releases it does
            with pytest.raises(BusyError, match="being released"):
                await service.delete(OPERATOR, name(0))
        await service.delete(OPERATOR, name(0))

    asked(held, work)


def test_held_mail_is_found_by_what_the_person_may_see(held: Path) -> None:
    def found(person: Person, **search: Any) -> list[str]:
        page = asked(held, lambda service: service.quarantine(person, Search(**search)))
        return [message.id for message in page.rows]

    everything = found(OPERATOR)
    assert found(OPERATOR, sender="A@EXAMPLE") == found(OPERATOR, words=("a@ex",)) == everything
    assert found(OPERATOR, words=("nobody-writes-this",)) == []
    assert found(OPERATOR, since=NOW + 60) == found(OPERATOR, until=1.0) == []
    theirs = found(OPERATOR, recipient="ben@")
    assert 0 < len(theirs) < len(everything)
    assert found(ANNA, recipient="ben@") == found(ANNA, words=("ben@",)) == []
    messages = asked(held, lambda service: service.quarantine(OPERATOR)).rows
    assert all(0 <= message.probability <= 1 for message in messages)


def test_the_text_of_held_mail_is_shown_as_plain_text(held: Path) -> None:
    """By a process of its own; the plain part first, else the page's visible text."""
    page = b"<p>Hello <b>friend</b></p><img src=http://t.example/x.png><p hidden>unseen</p>"
    html = b"Subject: x\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    mail = {
        10: html + b64encode(page) + b"\r\n",
        11: b"Subject: x\r\n\r\n\x1b[31mred http://a.example/ \tend\r\n" + b"x" * 100_000,
        12: b"Subject: x\r\n\r\n",
    }
    ids = [hold(held, number, raw, "anna@example.org") for number, raw in mail.items()]

    async def work(service: Service) -> list[str]:
        with pytest.raises(NotThereError):
            await service.preview_held(CARL, ids[0])
        return [await service.preview_held(ANNA, name) for name in ids]

    from_page, plain, empty = asked(held, work)
    assert from_page.split() == ["hello", "friend"]
    assert plain.startswith("\ufffd[31mred http://a.example/  end\nxxx")
    assert len(plain) <= MAX_CHARACTERS
    assert empty == ""
