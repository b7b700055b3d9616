"""The service behind scanner doors: verdicts, records, signatures, personal verdicts, lessons."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import Protocol
from spamguard.learning.lessons import TrainingOutcome
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import DeliveryRecord
from spamguard.servers.scanner import ScanRequest, ScanResult, ScanService
from spamguard.smtp.envelope import Client
from spamguard.storage import Spool
from spamguard.users import QueuedLesson, UserResolver
from tests.support.scanners import ScriptedJudge, scan_service, scanner

MAIL = (
    b"Subject: some =?utf-8?q?th=C3=ADng?=\n"
    b"From: =?utf-8?q?=C3=81nna?=\n <anna@z.example>\n\nhello\n"
)
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"


class ServiceCase:
    """A scan service, and what came of its requests."""

    def __init__(
        self, state: Path, judge: Any = None, resolver: UserResolver | None = None, **settings: Any
    ) -> None:
        self.state = state
        self.judge = judge or ScriptedJudge()
        self.entries: list[DeliveryRecord] = []
        self.settled: list[bool] = []
        configured = scanner(Protocol.RSPAMD, **settings)
        self.service: ScanService = scan_service(
            state,
            configured,
            self.judge,
            entries=self.entries,
            settled=self.settled,
            resolver=resolver,
        )

    def question(self, raw: bytes = MAIL, peer: str = HERE, **said: Any) -> ScanRequest:
        spool = Spool(self.state)
        spool.write(raw)
        return ScanRequest(spool, peer, **said)

    def judged(self, raw: bytes = MAIL, **said: Any) -> ScanResult:
        return asyncio.run(self.service.scan(self.question(raw, **said)))

    def taught(
        self, label: str, raw: bytes = MAIL, password: str = "", **said: Any
    ) -> TrainingOutcome:
        return asyncio.run(self.service.teach(self.question(raw, **said), label, password))

    def lessons(self) -> list[QueuedLesson]:
        queue = LessonQueue(self.state / QUEUE_DIRECTORY)
        return [lesson for name in queue.names() if (lesson := queue.take(name))]


def test_whom_it_comes_from_counts_where_the_client_is_trusted(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path)
    client = Client(address=ELSEWHERE, helo="there.example", protocol="ESMTP")
    case.judged(client=client)
    case.judged(b"Received: from x\n" + MAIL, client=client)
    case.judged(b"Received: from x\n" + MAIL, client=client, received_by="mta.example")
    case.judged(client=client, peer="198.51.100.1")
    case.judged()
    first, there, by, stranger, unknown = case.judge.on_top
    assert first.startswith(
        b"Received: from there.example ([192.0.2.7])\r\n\tby mx.example.org with ESMTP"
    )
    assert b"by mta.example" in by
    assert (there, stranger, unknown) == (b"", b"", b"")
    assert [entry.envelope.client.address for entry in case.entries] == [ELSEWHERE] * 3 + [
        "198.51.100.1",
        "",
    ]


# ---- teaching


def test_an_empty_or_missing_password_opens_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "empty").write_text("\nsecond\n")
    assert (
        ServiceCase(tmp_path, password_file=tmp_path / "empty").taught("spam")
        is TrainingOutcome.FORBIDDEN
    )
    assert (
        ServiceCase(tmp_path, password_file=tmp_path / "missing").taught("spam")
        is TrainingOutcome.FORBIDDEN
    )
    assert (
        "nobody can teach by a password: the daemon's user must be able to read it" in caplog.text
    )


@pytest.mark.parametrize("reason", ["crashed", "timeout"])
def test_a_scorer_that_ended_may_have_ended_by_chance(tmp_path: Path, reason: str) -> None:
    """The second one that does so at this message makes it poison."""
    case = ServiceCase(tmp_path, ScriptedJudge(NotScanned(reason)), teachers=(HERE,))
    assert case.taught("spam") is TrainingOutcome.TRY_LATER
    assert not case.lessons()


def test_trouble_of_ours_says_later(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path, teachers=(HERE,))
    (tmp_path / QUEUE_DIRECTORY).write_text("in the way")
    assert case.taught("spam") is TrainingOutcome.TRY_LATER
