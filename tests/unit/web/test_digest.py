"""The digest: when it is due, who gets one, what it says, and that nobody gets it twice."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.config.options import DigestPeriod, HostPort, Web
from spamguard.database import Database
from spamguard.smtp.envelope import Reply
from spamguard.web.auth import Person
from spamguard.web.mail import (
    DIGEST_FILE,
    DIGEST_SCHEMA,
    MAX_LINES,
    DigestSender,
    Mailer,
    last_hour,
    write_digest,
)
from tests.unit.filters import opened, teach
from tests.unit.web.fixed import HELD
from tests.unit.web.office import MAIL, NOW, PASSED, hold, name, passed, remember, serving, settings

WEB = Web(HostPort("127.0.0.1", 8080), mail_from="spamguard@example.org", digest=DigestPeriod.DAILY)
DAY = 86_400.0
DUE = last_hour(NOW, DigestPeriod.DAILY, 6) + DAY
FIRST = int((NOW - DUE + 3600) // 60)  # number of a message that comes an hour before that
RAW = b"From: Eve <eve@evil.example>\r\nSubject: Win =?utf-8?q?_a=0Ab?=\r\n\r\ntext\r\n"


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


def run(state: Path, box: Box, *times: float, web: Web = WEB) -> list[str]:
    """The mailboxes that got a digest at these times."""

    async def work() -> None:
        async with serving(settings(state)) as service:
            for now in times:
                sender = DigestSender(web, box, service)
                await sender.send_due(now)

    asyncio.run(work())
    return [mailbox for mailbox, _, _ in box.sent]


def test_nobody_is_told_twice(waiting: Path, box: Box) -> None:
    times = (DUE + 300, DUE + 360, DUE + 300 + DAY, DUE + 300 + 2 * DAY)
    assert run(waiting, box, *times) == ["anna@example.org", "ben@example.org"]


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


def test_an_operator_is_told_what_is_held_for_all(waiting: Path, box: Box) -> None:
    told = {"digest": DigestPeriod.NONE, "digest_to": "root@example.org", "digest_hour": 9}
    web = replace(WEB, **told)
    later = DUE + 3 * 3600
    times = (DUE + 300, later + 300, later + 360, later + 300 + DAY)
    assert run(waiting, box, *times, web=web) == ["root@example.org"]
    ((_, subject, text),) = box.sent
    assert subject == "3 messages held"
    assert all(f"to {user}@" in text for user in ("anna", "ben", "eve"))
    assert "/queue" not in text


# ---- the text


def test_many_messages_are_counted() -> None:
    held = [replace(HELD, id=name(number)) for number in range(MAX_LINES + 7)]
    found = write_digest(Person("anna"), "https://spam.example.org", 0.0, held, [])
    assert found.count("/quarantine/") == MAX_LINES
    assert "… and 7 more" in found
    assert f"{MAX_LINES + 7} held" in found
