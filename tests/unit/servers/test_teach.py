"""Mail to addresses that teach, and whose lessons those in the spool are."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spamguard.config.options import (
    Endpoint,
    Hop,
    Listener,
    Position,
    Protocol,
    TeachByMail,
    TeachingUser,
)
from spamguard.learning.lessons import TrainingIntake
from spamguard.learning.queue import LessonQueue
from spamguard.servers.teach import ForwardTrainingProxy, TrainingAccounts
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import Spool
from spamguard.users import QueuedLesson
from tests.unit.mail.test_forwarded_attached import ONE, forward

OK = Reply.from_text(250, "2.0.0 taken")
HERE = Client(address="127.0.0.1", peer="127.0.0.1")
TEACH = TeachByMail(
    (("spam@example.org", "spam"), ("Ham@example.org", "ham")), ("*@Example.org", "ben@example.net")
)


@dataclass
class Behind:
    """A proxy that writes down what comes to it."""

    answers_each: bool = True
    extensions: dict[str, str] = field(default_factory=lambda: {"8BITMIME": ""})
    said: list[str] = field(default_factory=list)
    refuses: str = ""

    def message(self, client: Client) -> Behind:
        return self

    async def mail(self, sender: Sender) -> Reply:
        return OK

    async def recipient(self, recipient: Recipient) -> Reply:
        self.said.append(recipient.address)
        return Reply.from_text(550, "no") if recipient.address == self.refuses else OK

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        self.said.append("data")
        return [OK]

    async def end(self) -> None:
        self.said.append("end")


def listener(position: Position = Position.STANDALONE) -> Listener:
    return Listener(
        Endpoint(Protocol.SMTP, "127.0.0.1", 25),
        position,
        Hop(Endpoint(Protocol.SMTP, "192.0.2.1", 25)),
    )


@dataclass
class Sent:
    """What came of a transaction."""

    codes: list[int]
    replies: list[Reply]
    behind: Behind
    lessons: list[QueuedLesson]


def send(
    tmp_path: Path,
    *recipients: str,
    sender: str = "anna@example.org",
    raw: bytes = forward(ONE),
    client: Client = HERE,
    teach: TeachByMail = TEACH,
    position: Position = Position.STANDALONE,
    behind: Behind | None = None,
) -> Sent:
    where = LessonQueue(tmp_path / "teach")
    inner = behind or Behind()

    async def run() -> tuple[list[int], list[Reply]]:
        intake = TrainingIntake(tmp_path)
        message = ForwardTrainingProxy(inner, listener(position), teach, intake).message(client)
        spool = Spool(tmp_path)
        spool.write(raw)
        await message.mail(Sender(sender))
        codes = [(await message.recipient(Recipient(one))).code for one in recipients]
        replies = list(await message.data(spool, frozenset())) if 250 in codes else []
        await message.end()
        spool.close()
        return codes, replies

    codes, replies = asyncio.run(run())
    lessons = [where.take(name) for name in where.names()]
    return Sent(codes, replies, inner, [one for one in lessons if one is not None])


def test_the_user_may_be_the_local_part(tmp_path):
    teach = TeachByMail(TEACH.addresses, TEACH.senders, user=TeachingUser.LOCAL_PART)
    (outcome,) = send(tmp_path, "ham@example.org", sender="ben@example.net", teach=teach).lessons
    assert (outcome.user, outcome.label) == ("ben", "ham")


FAR, NEAR = "203.0.113.9", "192.0.2.7"
NETWORK = TeachByMail(TEACH.addresses, TEACH.senders, ("192.0.2.0/24", "127.0.0.0/8"))


@pytest.mark.parametrize(
    ("position", "client", "taken"),
    [
        (Position.STANDALONE, Client(address=NEAR, peer=NEAR), True),
        (Position.STANDALONE, Client(address=FAR, peer=FAR), False),
        (Position.STANDALONE, Client(address="", peer=""), False),
        (
            Position.AFTER_QUEUE,
            Client(address="127.0.0.1", peer="127.0.0.1"),
            False,
        ),  # that is Postfix, whoever sent it
        (Position.BEFORE_QUEUE, Client(address="127.0.0.1", peer="127.0.0.1"), False),
        (Position.AFTER_QUEUE, Client(address=NEAR, peer="127.0.0.1", forwarded=True), True),
        (Position.AFTER_QUEUE, Client(address=FAR, peer="127.0.0.1", forwarded=True), False),
        (Position.AFTER_QUEUE, Client(address="", peer="127.0.0.1", forwarded=True), False),
        (Position.AFTER_QUEUE, Client(source="LOCAL", peer="127.0.0.1", forwarded=True), True),
        (Position.STANDALONE, Client(source="LOCAL", address=FAR, peer=FAR), False),
    ],
)
def test_only_clients_of_listed_networks_teach(tmp_path, position, client, taken):
    outcome = send(tmp_path, "spam@example.org", client=client, position=position, teach=NETWORK)
    assert len(outcome.lessons) == taken
    assert ("data" in outcome.behind.said) != taken


def test_a_lesson_stands_alone(tmp_path):
    outcome = send(tmp_path, "spam@example.org", "ham@example.org", "x@example.org")
    assert outcome.codes == [250, 452, 452]
    assert [lesson.label for lesson in outcome.lessons] == ["spam"]
    outcome = send(tmp_path / "other", "x@example.org", "spam@example.org")
    assert outcome.codes == [250, 452]
    assert outcome.behind.said == ["x@example.org", "data", "end"]
    assert outcome.lessons == []


def test_a_lesson_is_confirmed_only_once_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("spamguard.learning.queue.MAX_LESSONS", 0)
    outcome = send(tmp_path, "spam@example.org")
    assert [reply.code for reply in outcome.replies] == [451]


# ---- lessons in the spool


def test_accounts_that_may_name_another_user():
    nobody = pwd.getpwnam("nobody").pw_uid
    assert TrainingAccounts(["nobody", "no-such-account"]).resolve_user(nobody, "anna") == "anna"
    assert TrainingAccounts(["nobody"]).resolve_user(nobody, "") == "nobody"
    assert TrainingAccounts([]).resolve_user(nobody, "anna") == "nobody"
    assert TrainingAccounts([]).resolve_user(0, "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(os.getuid(), "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(4_000_000, "anna") == "#4000000"
