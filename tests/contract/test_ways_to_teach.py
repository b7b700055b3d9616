"""The contract of every way to teach, tested on each: the user of the vote, the classes that may be
named, the daily quota, repetition, taking back, the log line, and settling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spamguard.cli import main
from spamguard.config.options import (
    Endpoint,
    Hop,
    Listener,
    Position,
    Protocol,
    TeachByMail,
    TeachSettings,
)
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.errors import NotAllowedError, NotThereError, SpamguardError, UsageError
from spamguard.folders import scan
from spamguard.learning import client
from spamguard.learning.lessons import Learner, TrainingIntake, TrainingOutcome, unknown_class
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue, LessonSpool
from spamguard.records import Scan
from spamguard.servers.scanner import ScanRequest
from spamguard.servers.teach import ForwardTrainingProxy, TrainingAccounts
from spamguard.smtp.envelope import Client, Recipient, Sender
from spamguard.storage import Spool
from spamguard.web.auth import Person
from tests.support.scanners import ScriptedJudge, scan_service, scanner
from tests.support.waiting import PATIENCE
from tests.unit.filters import KEY, mail, opened
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import Watched
from tests.unit.mail.test_forwarded_attached import forward
from tests.unit.servers.test_teach import OK, Behind
from tests.unit.web import office

MAIL = [raw for _, raw in mail(40)]
DAILY = 3  # lessons of one user, where a case counts them
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Said:
    """One lesson. label: "" takes back."""

    raw: bytes
    label: str = "spam"
    user: str = "anna"


class Way:
    """One way to teach, on a state directory of its own. `say` submits lessons, and returns once
    they are learnt or dropped.
    """

    name = ""
    origin = ""
    makes_classes = True  # by whoever uses it
    takes_back = True
    has_quota = True
    has_log = True
    reply_without_right: object = None
    known_word = "known"  # what the log says of a repetition; "": no line

    def __init__(self, place: Path, lessons_per_day: int = 0) -> None:
        self.place, self.state = place, place / "state"
        self.lessons_per_day = lessons_per_day
        self.settled: list[int] = []
        with opened(self.state):
            pass
        (self.state / "spool").mkdir(exist_ok=True)

    def say(self, lessons: Sequence[Said]) -> list[object]:
        """The reply to each."""
        raise NotImplementedError

    def say_without_right(self) -> object:
        """The reply to a client that may not teach in that name."""
        raise NotImplementedError  # where only those get in who may

    def refused(self, reply: object) -> bool:
        """Whether a reply says that the class does not exist."""
        return False

    def close(self) -> None:
        """Give everything back."""

    def votes(self) -> list[tuple[str, str | None]]:
        """User and class of the votes in force, oldest first."""
        with opened(self.state) as spam_filter:
            last = {(vote.digest, vote.user): vote for vote in spam_filter.ledger.all_votes()}
            assert all(vote.origin.startswith(self.origin) for vote in last.values())
            return [(vote.user, vote.label) for vote in last.values()]


class Queued(Way):
    """A way whose reply goes out before the lesson is learnt."""

    def resolve_user(self, account: int, named: str) -> str:
        return named

    def say(self, lessons: Sequence[Said]) -> list[object]:
        replies = asyncio.run(asyncio.wait_for(self.hand_over(lessons), PATIENCE))
        sources = [
            LessonQueue(self.state / QUEUE_DIRECTORY),
            LessonSpool(self.place, self.resolve_user),
        ]
        with opened(self.state) as spam_filter:
            learner = Learner(
                spam_filter, sources, lambda: self.settled.append(1), self.lessons_per_day
            )
            learner.run_once()
            learner.run_once()
        return replies

    async def hand_over(self, lessons: Sequence[Said]) -> list[object]:
        raise NotImplementedError


class InDirectory(Queued):
    """`teach-pipe`: whether the class exists cannot be checked."""

    name, origin, makes_classes = "directory", "teach-pipe", False
    reply_without_right = "OK"  # it counts as the account's own word
    trusted = True

    async def hand_over(self, lessons: Sequence[Said]) -> list[object]:
        for lesson in lessons:
            header = client.LessonHeader(lesson.label, len(lesson.raw), lesson.user)
            client.spool_lesson(str(self.place), header, lesson.raw)
        return ["OK"] * len(lessons)

    def resolve_user(self, account: int, named: str) -> str:
        if self.trusted:
            return named
        accounts = TrainingAccounts(())
        accounts._trusted = set()
        return accounts.resolve_user(account, named)

    def say_without_right(self) -> object:
        self.trusted = False
        return self.say([Said(MAIL[0], user="anna")])[0]

    def __init__(self, place: Path, lessons_per_day: int = 0) -> None:
        super().__init__(place, lessons_per_day)
        self.place = place / "left"
        self.place.mkdir()


class Judge(ScriptedJudge):
    """Tells messages apart as the scorers do."""

    async def judge(self, message: Spool, on_top: bytes, users: Sequence[str] = ()) -> Any:
        scan = await super().judge(message, on_top, users)
        assert isinstance(scan, Scan)
        return replace(scan, digest=ExampleReader(KEY).digest(message.read()))


class ByScanner(Queued):
    """`rspamc learn_spam`, `spamc -L spam`."""

    protocol: ClassVar[Protocol]
    reply_without_right = TrainingOutcome.FORBIDDEN

    async def hand_over(
        self, lessons: Sequence[Said], teachers: Sequence[str] = (HERE,)
    ) -> list[object]:
        door = scanner(self.protocol, teachers=tuple(teachers))
        service = scan_service(self.state, door, Judge(), entries=[], settled=[])
        replies: list[object] = []
        for lesson in lessons:
            with closing(office.spooled(self.state, lesson.raw)) as spool:
                request = ScanRequest(spool, HERE, user=lesson.user)
                replies.append(await service.teach(request, lesson.label))
        return replies

    def say_without_right(self) -> object:
        return asyncio.run(self.hand_over([Said(MAIL[0])], teachers=()))[0]


class ByRspamd(ByScanner):
    name, origin, protocol = "rspamd", "rspamd", Protocol.RSPAMD


class BySpamd(ByScanner):
    name, origin, protocol = "spamd", "spamd", Protocol.SPAMD


class ByMail(Queued):
    """Forwarded to an address that teaches; the sender is the user."""

    name, origin, takes_back = "mail", "mail", False
    reply_without_right = OK  # by the next hop: it is mail as any other

    async def hand_over(self, lessons: Sequence[Said]) -> list[object]:
        hop = Hop(Endpoint(Protocol.SMTP, "192.0.2.1", 25))
        listener = Listener(Endpoint(Protocol.SMTP, HERE, 25), Position.STANDALONE, hop)
        replies: list[object] = []
        for lesson in lessons:
            teach = TeachByMail((("teach@example.org", lesson.label),), ("*@example.org",))
            proxy = ForwardTrainingProxy(Behind(), listener, teach, TrainingIntake(self.state))
            message = proxy.message(Client(address=HERE, peer=HERE))
            await message.mail(
                Sender(f"{lesson.user}@example.org" if lesson.user else "x@other.net")
            )
            await message.recipient(Recipient("teach@example.org"))
            with closing(office.spooled(self.state, forward(lesson.raw))) as spool:
                replies += await message.data(spool, frozenset())
        return replies

    def say_without_right(self) -> object:
        return self.say([Said(MAIL[0], user="")])[0]

    def votes(self) -> list[tuple[str, str | None]]:
        return [(user.partition("@")[0], label) for user, label in super().votes()]


class OnPage(Way):
    """The page and the API, which share one service."""

    name, origin, makes_classes = "page", "web", False
    reply_without_right = NotThereError

    def say(self, lessons: Sequence[Said]) -> list[object]:
        configuration = office.settings(
            self.state, teach=TeachSettings(lessons_per_day=self.lessons_per_day)
        )

        async def run() -> list[object]:
            async with office.serving(configuration, self.settled) as service:
                return [await self._say(service, lesson) for lesson in lessons]

        return asyncio.run(run())

    async def _say(self, service: Any, said: Said) -> object:
        person = Person(said.user) if said.user else Person("root", operator=True)
        try:
            if not said.label:
                name = ExampleReader(KEY).digest(said.raw).hex()
                return (await service.forget(person, name)).changed
            with closing(office.spooled(self.state, said.raw)) as spool:
                return (await service.learn(person, spool, said.label)).changed
        except (UsageError, NotAllowedError) as error:
            return str(error)

    def say_without_right(self) -> object:
        """Of a message that came to anna."""
        with opened(self.state) as spam_filter:
            office.remember(self.state, [office.passed(spam_filter, 0, MAIL[0])])

        async def run() -> object:
            async with office.serving(office.settings(self.state)) as service:
                try:
                    return await service.learn_passed(Person("ben"), office.name(0), "spam")
                except SpamguardError as error:
                    return type(error)

        return asyncio.run(run())

    def refused(self, reply: object) -> bool:
        return "is not a class here" in str(reply)


class InFolders(Way):
    """A message that anna moves into a folder of a class; back in INBOX it is ham again."""

    name, origin, takes_back, known_word = "folders", "folder", False, ""

    def __init__(self, place: Path, lessons_per_day: int = 0) -> None:
        self.settled = []
        self.lies: dict[bytes, Path] = {}
        self.watched = Watched(
            place, lessons_per_day=lessons_per_day, folders=(("News", "newsletter"),)
        )
        self.state = self.watched.state
        maildir(self.watched.box, ".News")
        self.watched.rest()

    def say(self, lessons: Sequence[Said]) -> list[object]:
        into = {"spam": ".Junk", "ham": ".Archive", "newsletter": ".News"}
        # what is said twice has to be seen twice
        at_once = len({lesson.raw for lesson in lessons}) == len(lessons)
        for some in [lessons] if at_once else [[lesson] for lesson in lessons]:
            for said in some:
                if said.raw not in self.lies:
                    self.lies[said.raw] = deliver(self.watched.box, said.raw)
            self.watched.rest()
            for said in some:
                folder, message = self.watched.box / into[said.label], self.lies[said.raw]
                if message.is_relative_to(folder):
                    deliver(folder, said.raw)  # once more, as a copy
                else:
                    self.lies[said.raw] = move(message, folder)
            self.watched.rest()
        self.settled = [1] * self.watched.settled
        return [""] * len(lessons)

    def close(self) -> None:
        self.watched.stop()
        self.watched.filter.close()

    def votes(self) -> list[tuple[str, str | None]]:
        last = {(vote.digest, vote.user): vote for vote in self.watched.filter.ledger.all_votes()}
        assert all(vote.origin.startswith(self.origin) for vote in last.values())
        return [(vote.user, vote.label) for vote in last.values()]


class ByCommand(Way):
    """`learn` and `forget`. Only those who run the site can call them, so they have no quota, may
    make classes and settle themselves. They answer on the terminal, not in the log.
    """

    name, origin, has_quota, has_log = "command", "cli", False, False

    def say(self, lessons: Sequence[Said]) -> list[object]:
        for number, said in enumerate(lessons):
            path = self.place / f"{number}.eml"
            path.write_bytes(said.raw)
            verb = ["learn", "--as", said.label] if said.label else ["forget"]
            user = ["--user", said.user] if said.user else []
            assert main(["--state", str(self.state), *verb, *user, str(path)]) == 0
        return [""] * len(lessons)


class ByFiledMail(Way):
    """`teach-folders`: anna's folders as they are. A person starts it, so there is no quota."""

    name, origin, has_quota, has_log = "teach-folders", "folders, before", False, False
    takes_back = False

    def say(self, lessons: Sequence[Said]) -> list[object]:
        box = maildir(self.place / "anna" / "Maildir", ".Junk", ".Archive", ".newsletter")
        config = self.place / "spamguard.yaml"
        config.write_text(
            f"state: {self.state}\nlisteners:\n"
            f"  - {{listen: smtp://{HERE}:10025, position: after-queue, next_hop: maildir:/none}}\n"
            "watch:\n"
            f"  - {{maildir: '{self.place}/*/Maildir', folders: {{newsletter: newsletter}}}}\n"
        )
        into = {"spam": ".Junk", "ham": ".Archive", "newsletter": ".newsletter"}
        for lesson in lessons:
            deliver(box / into[lesson.label], lesson.raw, "cur")
        assert main(["teach-folders", "--config", str(config)]) == 0
        return [""] * len(lessons)


WAYS = (
    InDirectory,
    ByRspamd,
    BySpamd,
    ByMail,
    OnPage,
    InFolders,
    ByCommand,
    ByFiledMail,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(scan, "QUIET_SECONDS", 0.0)
    caplog.set_level(logging.INFO)


def only(*ways: type[Way]) -> pytest.MarkDecorator:
    """Not every way."""
    return pytest.mark.parametrize("kind", ways, ids=lambda way: way.name)


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def kind(request: pytest.FixtureRequest) -> type[Way]:
    return request.param


@pytest.fixture
def way(kind: type[Way], tmp_path: Path) -> Any:
    one = kind(tmp_path)
    yield one
    one.close()


@pytest.fixture
def limited(kind: type[Way], tmp_path: Path) -> Any:
    one = kind(tmp_path, DAILY)
    yield one
    one.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The facts of the log's lines on lessons that are learnt, known or taken back."""
    return [record.facts() for record in caplog.records if getattr(record, "event", "") == "lesson"]


def test_a_lesson_is_its_users_vote_and_has_one_line_in_the_log(way, caplog):
    way.say([Said(MAIL[0])])
    assert way.votes() == [("anna", "spam")]
    told = lines(caplog)
    assert len(told) == way.has_log
    for fact in told:
        assert (fact["user"].partition("@")[0], fact["class"]) == ("anna", "spam")
        assert fact["message"] == ExampleReader(way_key(way)).digest(MAIL[0]).hex()[:12]


def way_key(way: Way) -> bytes:
    with Filter.open(way.state, _bits=14, _durable=False) as spam_filter:
        return spam_filter.key


def test_a_class_that_is_not_there_is_made_only_by_those_who_run_the_site(way, caplog):
    reply = way.say([Said(MAIL[0], "newsletter")])[0]
    if way.makes_classes:
        assert [label for _, label in way.votes()] == ["newsletter"]
        return
    assert way.votes() == []
    assert way.refused(reply) or str(unknown_class("newsletter")) in caplog.text
    with opened(way.state) as spam_filter:
        assert "newsletter" not in spam_filter.classes
        spam_filter.define_class("newsletter", unwanted=False)
    way.say([Said(MAIL[0], "newsletter")])
    assert way.votes() == [("anna", "newsletter")]


@only(*(way for way in WAYS if way.reply_without_right))
def test_without_the_right_nothing_is_taught(way):
    reply = way.say_without_right()
    assert "anna" not in [user for user, _ in way.votes()]
    assert reply == way.reply_without_right


def test_one_user_teaches_so_much_in_a_day_and_no_more(limited):
    limited.say([Said(raw) for raw in MAIL[: DAILY + 2]])
    assert len(limited.votes()) == (DAILY if limited.has_quota else DAILY + 2)


@only(InDirectory, ByRspamd, BySpamd, OnPage, ByCommand)  # elsewhere every lesson has a user
def test_the_site_has_no_limit(limited):
    limited.say([Said(raw, user="") for raw in MAIL[: DAILY + 2]])
    assert limited.votes() == [("", "spam")] * (DAILY + 2)


def test_saying_it_again_changes_nothing_and_costs_nothing(limited, caplog):
    limited.say([Said(MAIL[0])] * 2)
    limited.say([Said(MAIL[0])])
    assert limited.votes() == [("anna", "spam")]
    limited.say([Said(raw) for raw in MAIL[1:DAILY]])
    assert limited.votes() == [("anna", "spam")] * DAILY
    outcomes = [fact["outcome"] for fact in lines(caplog) if fact["class"] == "spam"]
    if limited.has_log and limited.known_word:
        assert (outcomes.count("learnt"), outcomes.count("known")) == (DAILY, 2)


@only(*(way for way in WAYS if way.takes_back))  # elsewhere the last word puts a slip right
def test_what_was_said_can_be_taken_back(way, caplog):
    way.say([Said(MAIL[0]), Said(MAIL[1]), Said(MAIL[0], ""), Said(MAIL[2], "")])
    assert way.votes() == [("anna", None), ("anna", "spam")]
    if way.has_log:
        assert [fact["outcome"] for fact in lines(caplog)].count("forgotten") == 1


def test_settling_follows_when_it_is_due(way):
    way.say([Said(raw) for raw in MAIL[:30]])
    if way.has_log:
        assert way.settled
    else:  # commands settle themselves
        with opened(way.state) as spam_filter:
            assert spam_filter.status().unsettled == 0


@only(*(way for way in WAYS if way is not ByFiledMail))  # which is weaker than any word
def test_the_last_word_counts(way):
    way.say([Said(MAIL[0]), Said(MAIL[0], "ham")])
    assert way.votes() == [("anna", "ham")]
