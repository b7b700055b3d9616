"""A message handed on in one go: for each recipient what was said about it at the step it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from spamguard.relay.whole import hand_on
from spamguard.spool import Content, Spool
from spamguard.wire.values import Recipient, Reply, Sender

OK, NO, LATER = Reply.of(250, "ok"), Reply.of(550, "no"), Reply.of(451, "later")


class Told:
    """A transaction that answers as it is told to, and writes down what it was asked."""

    def __init__(self, mail: Reply, recipients: dict[str, Reply], answers: list[Reply]) -> None:
        self._mail, self._recipients, self._answers = mail, recipients, answers
        self.asked: list[str] = []

    async def mail(self, sender: Sender) -> Reply:
        self.asked.append(sender.address)
        return self._mail

    async def recipient(self, recipient: Recipient) -> Reply:
        self.asked.append(recipient.address)
        return self._recipients[recipient.address]

    async def send(self, content: Content) -> Sequence[Reply]:
        self.asked.append("data")
        return self._answers

    async def end(self) -> None: ...


@pytest.mark.parametrize(
    ("mail", "recipients", "answers", "told", "asked"),
    [
        (OK, {"a": OK, "b": NO, "c": OK}, [LATER, OK], [LATER, NO, OK], ["s", "a", "b", "c", "data"]),
        (OK, {"a": OK, "b": NO, "c": OK}, [LATER], [LATER, NO, LATER], ["s", "a", "b", "c", "data"]),
        (OK, {"a": NO, "b": LATER}, [OK], [NO, LATER], ["s", "a", "b"]),
        (LATER, {"a": OK, "b": OK}, [OK], [LATER, LATER], ["s"]),
    ],
)
def test_each_hears_what_was_said_about_it(
    tmp_path: Path, mail: Reply, recipients: dict[str, Reply], answers: list[Reply], told: list[Reply], asked: list[str]
) -> None:
    transaction = Told(mail, recipients, answers)
    content = Content(b"", Spool(tmp_path), 0)
    assert asyncio.run(hand_on(transaction, Sender("s"), [Recipient(one) for one in recipients], content)) == told
    assert transaction.asked == asked
