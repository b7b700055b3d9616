"""A message delivered in one call: each recipient gets the reply of its last step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from spamguard.delivery.next_hop import deliver
from spamguard.smtp.envelope import Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView

OK, NO, LATER = (
    Reply.from_text(250, "ok"),
    Reply.from_text(550, "no"),
    Reply.from_text(451, "later"),
)


class ScriptedTransaction:
    """A transaction with given replies, which writes down the calls."""

    def __init__(self, mail: Reply, recipients: dict[str, Reply], answers: list[Reply]) -> None:
        self._mail, self._recipients, self._answers = mail, recipients, answers
        self.asked: list[str] = []

    async def mail(self, sender: Sender) -> Reply:
        self.asked.append(sender.address)
        return self._mail

    async def recipient(self, recipient: Recipient) -> Reply:
        self.asked.append(recipient.address)
        return self._recipients[recipient.address]

    async def send(self, content: SpoolView) -> Sequence[Reply]:
        self.asked.append("data")
        return self._answers

    async def end(self) -> None: ...


@pytest.mark.parametrize(
    ("mail", "recipients", "answers", "told", "asked"),
    [
        (
            OK,
            {"a": OK, "b": NO, "c": OK},
            [LATER, OK],
            [LATER, NO, OK],
            ["s", "a", "b", "c", "data"],
        ),
        (
            OK,
            {"a": OK, "b": NO, "c": OK},
            [LATER],
            [LATER, NO, LATER],
            ["s", "a", "b", "c", "data"],
        ),
        (OK, {"a": NO, "b": LATER}, [OK], [NO, LATER], ["s", "a", "b"]),
        (LATER, {"a": OK, "b": OK}, [OK], [LATER, LATER], ["s"]),
    ],
)
def test_each_recipient_has_its_own_reply(
    tmp_path: Path,
    mail: Reply,
    recipients: dict[str, Reply],
    answers: list[Reply],
    told: list[Reply],
    asked: list[str],
) -> None:
    transaction = ScriptedTransaction(mail, recipients, answers)
    content = SpoolView(b"", Spool(tmp_path), 0)
    addresses = [Recipient(recipient) for recipient in recipients]
    assert asyncio.run(deliver(transaction, Sender("s"), addresses, content)) == told
    assert transaction.asked == asked
