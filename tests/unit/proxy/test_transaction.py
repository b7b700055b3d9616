"""A message between door and next hop: every action, every failure, and its record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.config.options import Action, OnError, Position, Rule
from spamguard.errors import LedgerError
from spamguard.keys import is_id
from spamguard.proxy.delivery_log import DeliveryRecord
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import MAX_HOPS, FilterProxy, ProxyContext
from spamguard.smtp.envelope import Client, EsmtpParameter, Reply, Sender
from spamguard.storage import SpoolView
from tests.support.waiting import PATIENCE
from tests.unit.proxy.transactions import (
    DIGEST,
    HAM,
    KEY,
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


def test_spam_is_tagged_and_what_the_next_hop_says_is_the_answer(case: Case) -> None:
    case.hop.answers["send"] = Reply(250, (b"2.0.0 one", b"queued as 17"))
    assert case.send() == [Reply(250, (b"2.0.0 one", b"queued as 17"))]
    assert case.header[:2] == [
        b"X-Spam-Flag: YES",
        b"X-Spam-Status: Yes, score=11.7 required=5.0 tests=SPAMGUARD_SPAM",
    ]
    signed = keys.verify_verdict(KEY, case.header[2].partition(b": ")[2], DIGEST)
    assert signed is not None
    assert (signed.label, signed.action, signed.id) == ("spam", Action.TAG, case.entries[0].id)
    assert is_id(signed.id)


def test_everything_below_our_fields_is_as_it_came_but_for_forged_ones(case: Case) -> None:
    case.judge.found = scan(HAM)
    case.send()
    (content,) = case.hop.contents
    assert content.endswith(RAW.replace(b"X-Spam-Flag: NO\r\n", b""))
    assert not any(line.startswith(b"X-Spam-Flag") for line in case.header)


def test_refusals_of_the_next_hop_come_back_as_they_are(case: Case) -> None:
    case.hop.answers["send"] = Reply(554, (b"5.7.1 we do not like it",))
    assert case.send() == [Reply(554, (b"5.7.1 we do not like it",))]


@pytest.mark.parametrize(
    ("action", "reply"), [(Action.REJECT, b"550 5.7.1"), (Action.DEFER, b"451 4.7.1")]
)
def test_rejected_or_deferred_mail_does_not_reach_the_next_hop(
    case: Case, action: Action, reply: bytes
) -> None:
    case.listener = before_queue(rules=(Rule("spam", action, 0.99),))
    (answer,) = case.send()
    assert answer.encode().startswith(reply)
    assert case.hop.contents == []
    assert f"action={action}" in str(case.entries[0])


def test_a_rule_needs_its_probability(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.REJECT, 0.9999),))
    assert case.send() == [OK]
    assert len(case.hop.contents) == 1


def test_quarantined_mail_is_on_the_disk_before_the_answer(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.QUARANTINE),))
    (answer,) = case.send(recipients=("b@example.net", "c@example.net"))
    assert answer.code == 250
    assert case.hop.contents == []
    (held,) = case.quarantine.entries()
    assert held.listener == str(case.listener.listen)
    assert held.id == case.entries[0].id
    assert held.id.encode() in answer.lines[0]
    assert held.reason == "spam"
    assert [recipient.address for recipient in held.envelope.recipients] == [
        "b@example.net",
        "c@example.net",
    ]
    content = case.quarantine.open(held.id)
    assert b"".join(content.chunks()).endswith(b"\r\n\r\nhello\r\n.\r\n")
    content.spool.close()


def test_a_quarantine_that_cannot_be_written_is_temporary(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.QUARANTINE),))
    (case.place / "quarantine").write_text("in the way")
    (answer,) = case.send()
    assert answer.encode().startswith(b"451 4.3.0 ")


def test_redirected_mail_goes_to_one_other_recipient(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.REDIRECT, to="spam@example.net"),))
    sender = Sender(
        "a@example.org", (EsmtpParameter("ENVID", "QQ"), EsmtpParameter("BODY", "8BITMIME"))
    )
    assert case.send(recipients=("b@example.net", "c@example.net"), sender=sender) == [OK]
    assert case.hop.said[-3:] == ["mail a@example.org", "rcpt spam@example.net", "send"]
    assert len(case.hop.contents) == 1


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


def test_mail_that_cannot_be_judged_is_passed_on_and_says_so(case: Case) -> None:
    case.judge.found = NotScanned("timeout")
    assert case.send() == [OK]
    assert case.header[0] == b"X-Spamguard: not-scanned; reason=timeout"
    assert not any(line.startswith(b"X-Spam-") for line in case.header)
    assert "verdict=not-scanned reason=timeout" in str(case.entries[0])
    assert case.entries[0].row("f").label == "not-scanned"


def test_or_deferred_when_the_operator_says_so(case: Case) -> None:
    case.judge.found = NotScanned("timeout")
    case.listener = before_queue(on_error=OnError.DEFER)
    (answer,) = case.send()
    assert answer.code == 451
    assert case.hop.contents == []


def test_a_fault_of_ours_is_temporary_and_shows_in_the_log_only(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.hop.broken = True
    assert case.send() == [Reply.from_text(451, "4.3.0 Local trouble, try again later")]
    assert "a bug" in caplog.text


def unreadable() -> bytes:
    raise LedgerError("key: cannot be read")


def broken(entry: DeliveryRecord) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("on_error", OnError)
def test_a_fault_before_anything_was_handed_on_is_like_no_verdict(
    case: Case, on_error: OnError, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that always meets a fault of ours would otherwise be deferred until its sender
    gives up.
    """
    case.listener = before_queue(on_error=on_error, rules=(Rule("spam", Action.QUARANTINE),))
    case.key = unreadable
    (reply,) = case.send()
    assert "key: cannot be read" in caplog.text
    assert "verdict=not-scanned reason=error" in str(case.entries[0])
    assert "action=" not in str(case.entries[0])
    assert not list(case.quarantine.entries())
    if on_error is OnError.PASS:
        assert reply == OK
        assert case.header[0] == b"X-Spamguard: not-scanned; reason=error"
    else:
        assert reply.code == 451
        assert case.hop.contents == []


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


def test_the_client_is_evidence_where_no_server_has_recorded_it(case: Case) -> None:
    case.send()
    assert case.judge.on_top == b""
    case.client = replace(case.client, forwarded=True, name="host.example")
    case.send()
    assert case.judge.on_top.startswith(
        b"Received: from client.example (host.example [192.0.2.1])\r\n"
    )
    case.send(b"Received: from elsewhere\r\n" + RAW)
    assert case.judge.on_top == b""


def test_a_header_beyond_the_limit_is_judged_and_tagged_like_any_other(case: Case) -> None:
    case.listener = replace(
        at(Position.AFTER_QUEUE), limits=replace(case.listener.limits, header_size=100_000)
    )
    forged = b"X-Spam-Flag: NO\r\n"
    filler = b"X-Long: " + b"x" * 50 + b"\r\n and more\r\n"
    rest = filler * 3000 + b"\r\nhello\r\n"
    case.send(b"A: b\r\n" + forged + rest)
    (content,) = case.hop.contents
    assert content.startswith(b"X-Spam-Flag: YES\r\nX-Spam-Status: Yes")
    assert content.endswith(b"\r\nA: b\r\n" + rest)


@pytest.mark.parametrize("raw", [b"X" * 300_000, b"A: " + b"x\r\n " * 60_000 + b"\r\n\r\n"])
def test_a_header_without_an_end_to_any_field_keeps_its_bytes(case: Case, raw: bytes) -> None:
    case.listener = replace(
        at(Position.AFTER_QUEUE), limits=replace(case.listener.limits, header_size=100_000)
    )
    case.send(raw)
    (content,) = case.hop.contents
    assert content.startswith(b"X-Spam-Flag: YES\r\nX-Spam-Status: Yes")
    assert content.endswith(raw)


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n", b"\r\nbody\r\n", b" blank first\r\n", b"no header at all", b"A: b\r\n"]
)
def test_odd_messages_keep_their_bytes(case: Case, raw: bytes) -> None:
    case.send(raw)
    (content,) = case.hop.contents
    assert content.endswith(raw)
    assert content.startswith(b"X-Spam-Flag: YES\r\nX-Spam-Status: ")


def test_a_subject_prefix_where_asked_for(case: Case) -> None:
    case.listener = before_queue(rules=(Rule("spam", Action.TAG, subject_prefix="[SPAM]"),))
    case.send()
    assert b"Subject: [SPAM] =?utf-8?q?gr=C3=BC=C3=9Fe?=" in case.header


def test_the_log_line_tells_everything_and_cannot_be_forged(case: Case) -> None:
    case.client = replace(case.client, helo="a verdict=ham\nid=1")
    case.send(
        recipients=[f"r{number}@example.net" for number in range(8)],
        sender=Sender('"a b"@example.org'),
    )
    line = str(case.entries[0])
    assert "\n" not in line
    assert 'helo="a verdict=ham\\nid=1"' in line
    assert 'from="<\\"a b\\"@example.org>"' in line
    assert "<r4@example.net>,+3" in line
    assert 'words="offer +3.25, a\\nb -1.00"' in line
    for fact in (
        "listener=smtp://127.0.0.1:10025",
        "client=192.0.2.1",
        f"size={len(RAW)}",
        f"message={case.entries[0].row('').message}",
        "verdict=spam",
        "probability=0.999000",
        "action=tag",
    ):
        assert fact in line.split(" ")


def test_the_history_row_is_complete(case: Case) -> None:
    case.send()
    row = case.entries[0].row("fingerprint")
    assert (row.subject, row.sender, row.recipients) == (
        "grüße",
        "a@example.org",
        ("b@example.net",),
    )
    assert row.author == "a@example.org"
    assert (row.digest, row.packed, row.label, row.action) == (DIGEST, b"features", "spam", "tag")
    assert row.reply == "250 2.0.0 taken"
    assert row.words[0].text == "offer"


def test_settling_is_requested_when_lessons_wait(case: Case) -> None:
    case.send()
    assert case.settled == []
    case.judge.found = scan(SPAM, settle=True)
    case.send()
    assert case.settled == [True]


@pytest.mark.parametrize(("reason", "settled"), [("no-model", [True]), ("timeout", [])])
def test_settling_is_requested_when_tables_are_missing(
    case: Case, reason: str, settled: list[bool]
) -> None:
    case.judge.found = NotScanned(reason)
    case.send()
    assert case.settled == settled


def test_only_what_the_next_hop_offers_is_offered(case: Case) -> None:
    tools = ProxyContext(case.quarantine, lambda: KEY, case.entries.append, lambda: None)
    exchange = FilterProxy(case.listener, case.hop, case.judge, tools, "mx.example.net")
    assert exchange.extensions == {}
    case.hop.extensions = {"8BITMIME": "", "DSN": "", "SIZE": "1000", "CHUNKING": ""}
    assert exchange.extensions == {"8BITMIME": "", "DSN": ""}


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
