"""The digest: when it is due, who gets one, what it says, and that nobody gets it twice."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from spamguard.config.options import DigestPeriod, HostPort, Web
from spamguard.database import Database
from spamguard.shared.peers import PeerClient, PeerNode
from spamguard.smtp.envelope import Reply
from spamguard.web.auth import Person
from spamguard.web.digest import (
    DIGEST_FILE,
    DIGEST_SCHEMA,
    HOUR,
    MAX_LINES,
    DigestSender,
    last_hour,
    write_digest,
)
from spamguard.web.mailer import Mailer
from spamguard.web.models import HeldMessage
from spamguard.web.nodes import NodeService
from tests.unit.filters import opened, teach
from tests.unit.web.office import MAIL, NOW, PASSED, hold, name, passed, remember, serving, settings

WEB = Web(HostPort("127.0.0.1", 8080), mail_from="spamguard@example.org")
DAY = 86_400.0
DUE = last_hour(NOW, DigestPeriod.DAILY) + DAY
FIRST = int((NOW - DUE + 3600) // 60)  # number of a message that comes an hour before that
RAW = b"From: Eve <eve@evil.example>\r\nSubject: Win =?utf-8?q?_a=0Ab?=\r\n\r\ntext\r\n"


# ---- the clock


@pytest.mark.parametrize(
    ("now", "period", "due"),
    [
        ("2026-11-28 06:00", DigestPeriod.DAILY, "2026-11-28"),
        ("2026-11-28 23:59", DigestPeriod.DAILY, "2026-11-28"),
        ("2026-11-28 05:59", DigestPeriod.DAILY, "2026-11-27"),
        ("2026-11-28 12:00", DigestPeriod.WEEKLY, "2026-11-23"),
        ("2026-11-23 06:00", DigestPeriod.WEEKLY, "2026-11-23"),
        ("2026-11-23 05:59", DigestPeriod.WEEKLY, "2026-11-16"),
    ],
)
def test_when_it_is_due(now: str, period: DigestPeriod, due: str) -> None:
    found = last_hour(datetime.fromisoformat(now).timestamp(), period)
    assert datetime.fromtimestamp(found) == datetime.fromisoformat(f"{due} {HOUR:02}:00")


# ---- who gets what


class Box(Mailer):
    """Notes what is sent, in the place of the next hop."""

    reply = Reply.from_text(250, "2.0.0 Ok")

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    async def send(self, mailbox: str, subject: str, text: str) -> Reply:
        self.sent.append((mailbox, subject, text))
        return self.reply


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def waiting(state: Path) -> Path:
    """A held message of anna and one of ben; unsure ones of both, and of a stranger; a file that
    says that no digest was sent for days.
    """
    hold(state, FIRST, RAW, "anna@example.org")
    hold(state, FIRST + 1, RAW, "ben@example.org")
    hold(state, FIRST + 2, RAW, "eve@evil.example")
    with opened(state) as spam_filter:
        teach(spam_filter, MAIL[:1], "ben@example.org")
        extra = [
            passed(spam_filter, FIRST - number, PASSED[number][1], label="unsure", recipients=(to,))
            for number, to in enumerate(
                ["anna@example.org", "ben@example.org", "eve@evil.example"], 1
            )
        ]
    remember(state, extra)
    sent_until(state, NOW - 9 * DAY)
    return state


def sent_until(state: Path, hour: float) -> None:
    with closing(Database.open(state / DIGEST_FILE, DIGEST_SCHEMA)) as db:
        db.query("INSERT OR REPLACE INTO digests VALUES ('', ?, ?)", (hour, hour))


def run(state: Path, box: Box, *times: float) -> list[str]:
    """The mailboxes that got a digest at these times."""

    async def work() -> None:
        async with serving(settings(state)) as service:
            for now in times:
                sender = DigestSender(state, WEB, DigestPeriod.DAILY, box, service)
                await sender.send_due(now)

    asyncio.run(work())
    return [mailbox for mailbox, _, _ in box.sent]


def test_everybody_is_told_of_their_own_mail(waiting: Path, box: Box) -> None:
    assert run(waiting, box, DUE + 300) == ["anna@example.org", "ben@example.org"]
    anna, ben = (text for _, _, text in box.sent)
    for text, held, unsure in ((anna, FIRST, FIRST - 1), (ben, FIRST + 1, FIRST - 2)):
        assert f"\n  http://127.0.0.1:8080/quarantine/{name(held)}\n" in text
        assert f"\n  http://127.0.0.1:8080/history/{name(unsure)}\n" in text
    assert name(FIRST - 1) not in ben
    assert name(FIRST + 1) not in anna
    (line,) = (line for line in anna.splitlines() if "Eve" in line)
    assert line.partition("  ")[2].startswith("Eve <eve@evil.example>  Win")
    assert line.endswith("  [spam]")
    assert "link=" not in anna + ben


def test_other_machines_tell_of_their_own_mail(waiting: Path, box: Box) -> None:
    """They are not asked, because each user would be told of a message by every machine."""
    asked: list[int] = []

    def nodes() -> list[PeerNode]:
        asked.append(1)
        return []

    async def work() -> None:
        client = PeerClient(bytes(32), "here", nodes, None)
        service = NodeService(settings(waiting), lambda: None, dict, client)
        await service.start()
        try:
            await DigestSender(waiting, WEB, DigestPeriod.DAILY, box, service).send_due(DUE + 300)
            assert not asked
            await service.quarantine(Person("anna"))
            assert asked
        finally:
            await service.close()

    asyncio.run(work())
    assert [mailbox for mailbox, _, _ in box.sent] == ["anna@example.org", "ben@example.org"]


def test_nobody_is_told_twice(waiting: Path, box: Box) -> None:
    times = (DUE + 300, DUE + 360, DUE + 300 + DAY, DUE + 300 + 2 * DAY)
    assert run(waiting, box, *times) == ["anna@example.org", "ben@example.org"]


def test_what_was_refused_is_told_the_next_time(waiting: Path, box: Box) -> None:
    box.reply = Reply.from_text(451, "4.3.0 later")
    assert len(run(waiting, box, DUE + 300, DUE + 360)) == 2
    box.reply = Reply.from_text(250, "2.0.0 Ok")
    assert len(run(waiting, box, DUE + 300 + DAY)) == 4
    assert box.sent[0][2] == box.sent[2][2]


def test_a_digest_that_was_interrupted_goes_on(waiting: Path, box: Box) -> None:
    class Killed(Box):
        async def send(self, mailbox: str, subject: str, text: str) -> Reply:
            await super().send(mailbox, subject, text)
            raise KeyboardInterrupt

    killed = Killed()
    with pytest.raises(KeyboardInterrupt):
        run(waiting, killed, DUE + 300)
    assert [mailbox for mailbox, _, _ in killed.sent] == ["anna@example.org"]
    assert run(waiting, box, DUE + 360) == ["ben@example.org"]


def test_a_new_file_waits_for_the_next_hour(waiting: Path, box: Box) -> None:
    (waiting / DIGEST_FILE).unlink()
    assert run(waiting, box, DUE - 60) == []
    assert len(run(waiting, box, DUE + 300)) == 2


def test_nothing_to_tell(state: Path, box: Box) -> None:
    sent_until(state, NOW - 9 * DAY)
    labels = {label for label, _ in PASSED}
    assert "unsure" not in labels
    unsure_users = run(state, box, NOW + 10 * DAY)  # all mail is older than two days
    assert unsure_users == []


# ---- the text


def held_message(number: int, text: str) -> HeldMessage:
    to = ("anna@example.org",)
    return HeldMessage(
        name(number),
        time.time(),
        text,
        text,
        to,
        to,
        text,
        1,
        text,
        released=False,
        probability=0.9,
    )


def test_hostile_texts_stay_on_their_line() -> None:
    text = "x\r\n\u2028https://evil.example www.evil.example \u202e" + "y" * 10_000
    found = write_digest("anna", "https://spam.example.org", 0.0, [held_message(1, text)], [])
    lines = [line for line in found.splitlines() if "evil" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 300
    assert lines[0].isprintable()
    assert "https://evil" not in found
    assert "www.evil" not in found


def test_many_messages_are_counted() -> None:
    held = [held_message(number, "x") for number in range(MAX_LINES + 7)]
    found = write_digest("anna", "https://spam.example.org", 0.0, held, [])
    assert found.count("/quarantine/") == MAX_LINES
    assert "… and 7 more" in found
    assert f"{MAX_LINES + 7} held" in found
