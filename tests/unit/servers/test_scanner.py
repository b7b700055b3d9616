"""The service behind scanner doors: verdicts, records, signatures, personal verdicts, lessons."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spamguard import keys
from spamguard.config.options import Action, OnError, Policy, Protocol, Rule, Scoring
from spamguard.engine.filter import Filter
from spamguard.engine.policy import REQUIRED_SCORE
from spamguard.learning.lessons import TrainingOutcome
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue
from spamguard.proxy.delivery_log import DeliveryRecord
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.servers.scanner import ScanRequest, ScanResult, ScanService
from spamguard.smtp.envelope import Client
from spamguard.storage import Spool
from spamguard.users import PIPE_ORIGIN, LessonHeader, QueuedLesson, UserResolver
from tests.support.scanners import HAM, KEY, SPAM, UNSURE, ScriptedJudge, scan_service, scanner
from tests.unit.filters import mail, opened, teach

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


def test_a_verdict_is_returned_signed_and_recorded(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path)
    result = case.judged(
        sender="a@x.example",
        recipients=["b@y.example"],
        client=Client(address=ELSEWHERE),
        queue_id="Q1",
    )
    assert (result.label, result.is_unwanted, result.action, result.symbol) == (
        "spam",
        True,
        Action.TAG,
        "SPAMGUARD_SPAM",
    )
    assert result.score > REQUIRED_SCORE
    flag, status, signed = result.fields
    assert flag == b"X-Spam-Flag: YES"
    assert (
        status == b"X-Spam-Status: Yes, score=%.1f required=5.0 tests=SPAMGUARD_SPAM" % result.score
    )
    (entry,) = case.entries
    assert entry.scan is not None
    verified = keys.verify_verdict(KEY, signed.partition(b": ")[2], entry.scan.digest)
    assert verified is not None
    assert (verified.id, verified.label) == (result.id, "spam")
    row = entry.row("f")
    assert (row.id, row.label, row.subject, row.client, row.sender) == (
        result.id,
        "spam",
        "some thíng",
        ELSEWHERE,
        "a@x.example",
    )
    assert row.author == "Ánna <anna@z.example>"
    assert (row.listener, row.recipients, row.action) == (
        "rspamd://127.0.0.1:0",
        ("b@y.example",),
        "tag",
    )
    assert "queue=Q1" in str(entry)


@pytest.mark.parametrize("verdict", [SPAM, HAM, UNSURE])
def test_one_scale(tmp_path: Path, verdict: Any) -> None:
    result = ServiceCase(tmp_path, ScriptedJudge(verdict)).judged()
    assert (result.score >= REQUIRED_SCORE) is result.is_unwanted is (verdict is SPAM)


@pytest.mark.parametrize(
    ("rules", "verdict", "action"),
    [
        ((), SPAM, Action.TAG),
        ((Rule("spam", Action.REJECT, 0.99),), SPAM, Action.REJECT),
        ((Rule("spam", Action.REJECT, 0.9995),), SPAM, Action.TAG),
        (
            (Rule("spam", Action.REJECT, 0.9995), Rule("spam", Action.DEFER, 0.4)),
            SPAM,
            Action.DEFER,
        ),
        ((Rule("unsure", Action.DEFER, 0.4),), UNSURE, Action.DEFER),
        ((Rule("unsure", Action.DEFER, 0.4),), HAM, Action.TAG),
    ],
)
def test_nothing_is_refused_unless_it_was_asked_for(
    tmp_path: Path, rules: tuple[Rule, ...], verdict: Any, action: Action
) -> None:
    case = ServiceCase(tmp_path, ScriptedJudge(verdict), policy=Policy(rules))
    assert case.judged().action is action
    assert case.entries[0].action is action


@pytest.mark.parametrize(
    ("on_error", "action"), [(OnError.PASS, Action.TAG), (OnError.DEFER, Action.DEFER)]
)
def test_what_cannot_be_judged(tmp_path: Path, on_error: OnError, action: Action) -> None:
    case = ServiceCase(
        tmp_path, ScriptedJudge(NotScanned("timeout")), policy=Policy(on_error=on_error)
    )
    result = case.judged()
    assert (result.action, result.reason, result.label, result.is_unwanted, result.score) == (
        action,
        "timeout",
        "",
        False,
        0.0,
    )
    assert list(result.fields) == [b"X-Spamguard: not-scanned; reason=timeout"]
    assert case.entries[0].label == "not-scanned"


def test_a_problem_known_before_is_not_judged(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path)
    assert case.judged(problem="too-large").reason == "too-large"
    assert case.judge.raws == []


@pytest.mark.parametrize(
    ("problem", "action"), [("too-large", Action.TAG), ("no-room", Action.DEFER)]
)
def test_what_would_never_be_judged_is_not_put_off(
    tmp_path: Path, problem: str, action: Action
) -> None:
    assert (
        ServiceCase(tmp_path, policy=Policy(on_error=OnError.DEFER)).judged(problem=problem).action
        is action
    )


def test_a_fault_of_ours_is_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def judge(self, *_: Any) -> Any:
            raise ZeroDivisionError

    case = ServiceCase(tmp_path, Broken())
    assert case.judged().reason == "error"
    assert "ZeroDivisionError" in caplog.text
    judging = case.service._policy_judge
    judging._context = replace(judging._context, record=Broken)
    assert case.judged().reason == "error"
    assert case.taught("spam") is TrainingOutcome.FORBIDDEN


PEOPLE = UserResolver([("sales@y.example", "anna")])


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ({"user": "anna"}, "ham"),
        ({"user": "sales@y.example"}, "ham"),
        ({"user": "ben"}, "spam"),
        ({"recipients": ["sales@y.example", "ben@y.example"]}, "ham"),  # the mildest
        ({"recipients": ["sales@y.example"], "user": "ben"}, "spam"),
        ({"user": "anna", "peer": ELSEWHERE}, "spam"),
        ({"recipients": ["sales@y.example"], "peer": ELSEWHERE}, "spam"),
    ],
)
def test_whose_mail_it_is_counts_where_the_client_is_trusted(
    tmp_path: Path, said: Any, label: str
) -> None:
    case = ServiceCase(tmp_path, ScriptedJudge(SPAM, {"anna": HAM}), PEOPLE)
    assert case.judged(**said).label == label
    assert (
        ServiceCase(tmp_path, ScriptedJudge(SPAM, {"anna": HAM})).judged(user="anna").label
        == "spam"
    )  # not personal


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


@pytest.mark.usefixtures("hasty")
def test_only_admitted_clients_teach(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret word\nmore\n")
    nobody = ServiceCase(tmp_path)
    by_password = ServiceCase(tmp_path, password_file=tmp_path / "password")
    listed = ServiceCase(tmp_path, teachers=("192.0.2.0/24",))
    assert (
        nobody.taught("spam")
        is nobody.taught("spam", password="secret word")
        is TrainingOutcome.FORBIDDEN
    )
    assert listed.taught("spam", peer=HERE) is TrainingOutcome.FORBIDDEN
    assert [
        by_password.taught("spam", password=word) for word in ("", "secret", "secret word\nmore")
    ] == [TrainingOutcome.FORBIDDEN] * 3
    assert not nobody.lessons()
    assert listed.taught("spam", peer=ELSEWHERE) is TrainingOutcome.ACCEPTED
    assert by_password.taught("ham", password="secret word") is TrainingOutcome.ACCEPTED
    assert [lesson.label for lesson in nobody.lessons()] == ["spam", "ham"]


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


@pytest.mark.parametrize(("peer", "user"), [(HERE, "anna"), (ELSEWHERE, "")])
def test_whose_lesson_it_is_counts_where_the_client_is_trusted(
    tmp_path: Path, peer: str, user: str
) -> None:
    case = ServiceCase(tmp_path, teachers=("0.0.0.0/0",))
    assert case.taught("spam", peer=peer, user="anna") is TrainingOutcome.ACCEPTED
    assert case.lessons() == [QueuedLesson("spam", user, "rspamd", MAIL)]


@pytest.mark.parametrize(
    ("resolver", "said", "user"),
    [
        (PEOPLE, "sales@y.example", "anna"),
        (PEOPLE, "Ben@Y.example", "ben@y.example"),
        (PEOPLE, "", ""),
        (None, "Ben", "Ben"),
    ],
)
def test_whose_lesson_it_is_goes_by_the_names_that_mail_is_judged_by(
    tmp_path: Path, resolver: Any, said: str, user: str
) -> None:
    case = ServiceCase(tmp_path, resolver=resolver, teachers=(HERE,))
    assert case.taught("spam", user=said) is TrainingOutcome.ACCEPTED
    assert [lesson.user for lesson in case.lessons()] == [user]


def test_what_waits_by_other_ways_may_be_about_this(tmp_path: Path) -> None:
    """So that nothing is called known, or taken back, before that is learnt."""
    case = ServiceCase(tmp_path, teachers=(HERE,))
    with opened(tmp_path):
        pass
    assert case.taught("", user="anna") is TrainingOutcome.UNCHANGED
    LessonQueue(tmp_path / QUEUE_DIRECTORY).put(
        LessonHeader("spam", len(MAIL), "anna"), PIPE_ORIGIN, [MAIL]
    )
    assert [case.taught("", user="anna"), case.taught("", user="anna")] == [
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.UNCHANGED,
    ]
    assert [lesson.label for lesson in case.lessons()] == ["spam", ""]


def test_what_can_never_be_learnt(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path, teachers=(HERE,))
    assert [
        case.taught("spam", b""),
        case.taught("No Class"),
        case.taught("spam", user="two\tfields"),
    ] == [TrainingOutcome.IMPOSSIBLE] * 3
    poison = ServiceCase(tmp_path, ScriptedJudge(NotScanned("poison")), teachers=(HERE,))
    assert poison.taught("spam") is TrainingOutcome.IMPOSSIBLE
    assert not case.lessons()


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


def test_a_lesson_without_a_filter_waits_for_one(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path, ScriptedJudge(NotScanned("no-model")), teachers=(HERE,))
    assert [case.taught("spam"), case.taught("spam")] == [TrainingOutcome.ACCEPTED] * 2
    assert len(case.lessons()) == 2
    case.judged()
    assert case.settled == [True]


def test_what_waits_is_known(tmp_path: Path) -> None:
    case = ServiceCase(tmp_path, teachers=(HERE,))
    said = [
        case.taught(label, user=user)
        for label, user in (("spam", ""), ("spam", ""), ("spam", "anna"), ("ham", ""), ("ham", ""))
    ]
    assert said == [
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.UNCHANGED,
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.UNCHANGED,
    ]
    assert [case.taught(""), case.taught("")] == [
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.UNCHANGED,
    ]
    assert [(lesson.label, lesson.user) for lesson in case.lessons()] == [
        ("spam", ""),
        ("spam", "anna"),
        ("ham", ""),
        ("", ""),
    ]


def test_the_ledger_knows(tmp_path: Path) -> None:
    """With a real filter, and real scorers to read the message."""
    state = tmp_path / "state"
    (label, taught), (_, new), *_ = mail(2)
    with opened(state) as spam_filter:
        teach(spam_filter, [(label, taught)], user="anna")

    async def ask() -> list[TrainingOutcome]:
        pool = ScorerPool(state, Scoring())
        await pool.start()
        try:
            case = ServiceCase(state, pool, teachers=(HERE,))
            other = "ham" if label == "spam" else "spam"
            said = [
                (taught, label, "anna"),
                (taught, label, "ben"),
                (taught, other, "anna"),
                (new, "", "anna"),
                (taught, "", "ben"),
            ]
            found = []
            for raw, what, user in said:
                for name in LessonQueue(state / QUEUE_DIRECTORY).names():
                    LessonQueue(state / QUEUE_DIRECTORY).remove(
                        name
                    )  # as if it had been learnt, and taken back
                found.append(await case.service.teach(case.question(raw, user=user), what))
            return found
        finally:
            await pool.close()

    assert asyncio.run(ask()) == [
        TrainingOutcome.UNCHANGED,
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.ACCEPTED,
        TrainingOutcome.UNCHANGED,
        TrainingOutcome.UNCHANGED,
    ]


@pytest.mark.slow
def test_a_verdict_is_that_of_the_filter(tmp_path: Path) -> None:
    state = tmp_path / "state"
    messages = mail(60)
    with opened(state) as spam_filter:
        teach(spam_filter, messages[:50])
        spam_filter.settle()

    async def ask() -> list[DeliveryRecord]:
        pool = ScorerPool(state, Scoring())
        await pool.start()
        try:
            case = ServiceCase(state, pool)
            for _, raw in messages[50:]:
                await case.service.scan(case.question(raw))
            return case.entries
        finally:
            await pool.close()

    found = asyncio.run(ask())
    with Filter.open(state) as spam_filter:
        assert [entry.scan.verdict for entry in found if entry.scan] == [
            spam_filter.judge(raw) for _, raw in messages[50:]
        ]
