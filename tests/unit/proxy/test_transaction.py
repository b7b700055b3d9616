"""A message between door and next hop: every action, every failure, and its record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spamguard.config.options import Action, Position, Rule
from spamguard.proxy.transaction import MAX_HOPS, DeliveryRecord
from spamguard.smtp.envelope import Client, EsmtpParameter, Reply, Sender
from spamguard.storage import SpoolView
from tests.support.waiting import PATIENCE
from tests.unit.proxy.transactions import (
    NO,
    OK,
    RAW,
    SPAM,
    Case,
    FakeHop,
    FakeTransaction,
    at,
    before_queue,
    scan,
)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_quarantine_that_cannot_be_written_is_temporary(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.QUARANTINE),))
    (case.place / "quarantine").write_text("in the way")
    (answer,) = case.send()
    assert answer.encode().startswith(b"451 4.3.0 ")


def test_a_refused_redirection_is_temporary(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.REDIRECT, to="spam@example.net"),))
    case.hop.answers["rcpt spam@example.net"] = NO
    (answer,) = case.send()
    assert answer.code == 451


def test_every_recipient_gets_a_reply_where_the_next_hop_gives_one_each(case: Case) -> None:
    case.hop.answers_each = True
    case.hop.answers["rcpt c@example.net"] = NO
    assert case.send(recipients=("b@example.net", "c@example.net", "b@example.net")) == [OK, OK]
    case.listener = before_queue(rules=(Rule("spam", Action.QUARANTINE),))
    assert [
        reply.code
        for reply in case.send(recipients=("b@example.net", "c@example.net", "b@example.net"))
    ] == [250, 250]


def broken(entry: DeliveryRecord) -> None:
    raise RuntimeError("a bug")


def test_a_delivered_message_is_confirmed_even_if_it_cannot_be_recorded(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other answer would bring the message a second time."""
    case.record = broken
    assert case.send() == [OK]
    assert "a bug" in caplog.text


def test_a_server_of_its_own_adds_received_and_refuses_loops(case: Case) -> None:
    case.listener = at(Position.STANDALONE)
    case.send()
    (received,) = [line for line in case.header if line.startswith(b"Received:")]
    assert received == b"Received: from client.example ([192.0.2.1])"
    assert case.judge.on_top.startswith(received)
    assert case.entries[0].id.encode() in b"".join(case.hop.contents)
    assert case.entries[0].id.encode() not in case.judge.on_top
    loop = b"Received: from x\r\n" * (MAX_HOPS + 1) + RAW
    assert [reply.encode()[:9] for reply in case.send(loop)] == [b"554 5.4.6"]


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        ("ESMTP", b"UTF8SMTP"),
        ("ESMTPS", b"UTF8SMTPS"),
        ("LMTP", b"UTF8LMTP"),
        ("LMTPS", b"UTF8LMTPS"),
    ],
)
def test_received_tells_that_a_message_came_by_smtputf8(
    case: Case, protocol: str, told: bytes
) -> None:
    case.listener, case.client = at(Position.STANDALONE), replace(case.client, protocol=protocol)
    case.send(sender=Sender("\u00e4@example.org", (EsmtpParameter("SMTPUTF8", None),)))
    assert b"\tby mx.example.net with %b id %b" % (told, case.entries[0].id.encode()) in case.header
    assert b" with %b id" % told in case.judge.on_top


def test_settling_is_requested_when_lessons_wait(case: Case) -> None:
    case.send()
    assert case.settled == []
    case.judge.found = scan(SPAM, settle=True)
    case.send()
    assert case.settled == [True]


@dataclass
class SilentHop(FakeHop):
    """Accepts a message and never replies."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def transaction(self, client: Client) -> FakeTransaction:
        self.made.append(SilentTransaction(self))
        return self.made[-1]


class SilentTransaction(FakeTransaction):
    async def send(self, content: SpoolView) -> Sequence[Reply]:
        assert isinstance(self.hop, SilentHop)
        self.hop.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_a_delivery_that_is_cut_off_is_logged_and_recorded(tmp_path: Path) -> None:
    """As when the daemon stops: the message may come again, and the first record says why."""
    hop = SilentHop()
    case = Case(tmp_path, hop)

    async def run() -> None:
        sending = asyncio.create_task(
            case.send_async(RAW, ("b@example.net",), Sender("a@example.org"))
        )
        await asyncio.wait_for(hop.asked.wait(), PATIENCE)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(run())
    (entry,) = case.entries
    assert 'reply="421 4.3.2 Cut off, nobody knows whether the next hop has it"' in str(entry)
    assert "verdict=spam" in str(entry)
