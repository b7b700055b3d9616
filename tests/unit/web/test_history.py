"""Messages that passed. Users see and teach their own; a forbidden message looks like one that does
not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import HistorySettings
from spamguard.errors import NotAllowedError, NotThereError, UsageError
from spamguard.web import history
from spamguard.web.auth import Person
from spamguard.web.history import Search
from spamguard.web.models import JudgementPage
from spamguard.web.service import Service
from tests.unit.filters import opened
from tests.unit.web.office import (
    ANNA,
    BEN,
    CARL,
    NOW,
    OPERATOR,
    PASSED,
    asked,
    hold,
    name,
    passed,
    remember,
    settings,
    votes,
)


def numbers(page: JudgementPage) -> list[int]:
    return [int(judgement.subject.split()[-1]) for judgement in page.rows]


def search(state: Path, person: Person, **wanted: Any) -> list[int]:
    return numbers(
        asked(state, lambda service: service.history(person, Search(**{"limit": 100, **wanted})))
    )


def test_other_recipients_are_hidden(state: Path) -> None:
    first, second, *_ = asked(state, lambda service: service.history(ANNA, Search())).rows
    assert (first.recipients, first.reply) == (
        ("anna@example.org",),
        "250 2.0.0 <anna@example.org> Ok",
    )
    assert (second.recipients, second.reply) == (("Anna+news@example.net",), "")
    assert search(state, ANNA, recipient="ben@") == []
    assert search(state, ANNA, recipient="ANNA+NEWS") == [
        number for number in range(len(PASSED)) if number % 3 == 1
    ]
    whole = asked(state, lambda service: service.history(OPERATOR, Search())).rows[1]
    assert whole.recipients == ("Anna+news@example.net", "ben@example.org")
    assert whole.reply


def test_aliases_say_whose_mail_it_is(state: Path) -> None:
    configuration = settings(
        state,
        aliases=(
            ("*@example.net", "carl"),
            ("ben@example.org", ""),
            ("anna@example.org", "ben@example.org"),
        ),
    )

    async def work(service: Service) -> list[list[int]]:
        return [
            numbers(await service.history(person, Search(limit=100)))
            for person in (ANNA, BEN, CARL)
        ]

    of_anna, of_ben, of_carl = asked(configuration, work)
    assert of_anna == []
    assert of_ben == [number for number in range(len(PASSED)) if number % 3 == 0]
    assert of_carl == [number for number in range(len(PASSED)) if number % 3 == 1]


def test_the_first_known_recipient_owns_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `personal`. While no user before has voted, the message may be theirs, and they may
    vote.
    """
    monkeypatch.setattr(history, "_REFRESH_SECONDS", 0.0)
    whole, other = Person("anna@example.org"), Person("anna@example.net")
    to_org, to_net = (
        [number for number in range(len(PASSED)) if number % 3 == rest] for rest in (0, 1)
    )

    async def work(service: Service) -> None:
        async def seen(person: Person) -> list[int]:
            return numbers(await service.history(person, Search(limit=100)))

        await service.learn_passed(
            ANNA, name(1), "ham"
        )  # which makes nobody's who comes before her hers
        assert [await seen(person) for person in (ANNA, whole, other)] == [
            sorted(to_org + to_net),
            to_org,
            to_net,
        ]
        await service.learn_passed(whole, name(0), "ham")
        assert [await seen(person) for person in (ANNA, whole, other)] == [to_net, to_org, to_net]
        with pytest.raises(NotThereError):
            await service.why(ANNA, name(0))
        assert (await service.today(ANNA)).passed == 10
        await service.forget_passed(whole, name(0))  # who has ever said anything stays known
        assert await seen(ANNA) == to_net

    asked(state, work)


def test_personal_labels_are_shown_to_that_user(state: Path) -> None:
    with opened(state) as spam_filter:
        remember(
            state,
            [
                passed(
                    spam_filter,
                    -1,
                    PASSED[0][1],
                    personal={"anna": "ham", "ben@example.org": "spam"},
                    recipients=("anna@x", "ben@example.org"),
                )
            ],
        )
    found = [
        asked(state, lambda service, who=who: service.judgement(who, name(-1))).personal
        for who in (ANNA, BEN, OPERATOR)
    ]
    assert found == [
        {"anna": "ham"},
        {"ben@example.org": "spam"},
        {"anna": "ham", "ben@example.org": "spam"},
    ]


def test_searching(state: Path) -> None:
    labels = {
        judgement.label
        for judgement in asked(state, lambda service: service.history(OPERATOR, Search())).rows
    }
    assert sum(len(search(state, OPERATOR, label=label)) for label in labels) == len(PASSED)
    assert search(state, OPERATOR, sender="SENDER7@") == [7]
    assert search(state, OPERATOR, subject="subject 2") == [2, *range(20, 30)]
    assert search(state, OPERATOR, since=NOW - 120, until=NOW) == [1, 2]
    assert search(state, OPERATOR, since=NOW - 120) == [0, 1, 2]
    assert (
        search(state, OPERATOR, since=float("inf"))
        == search(state, OPERATOR, until=1.0, label="nothing")
        == []
    )


def test_words_are_searched_in_all_that_is_shown(state: Path) -> None:
    """In recipients for operators only: others could find out who else has got a message."""
    assert search(state, OPERATOR, words=("sender7@", "SUBJECT")) == [7]
    assert search(state, OPERATOR, words=("anna+news", "subject 2")) == [22, 25, 28]
    assert search(state, ANNA, words=("sender7@",)) == [7]
    assert search(state, BEN, words=("anna",)) == search(state, ANNA, words=("ben",)) == []
    assert search(state, OPERATOR, words=('%"',)) == []


def test_fields_that_are_not_kept_are_not_searched(state: Path) -> None:
    configuration = settings(state, history=HistorySettings(private=True))
    for person in (ANNA, BEN):
        for work in (
            lambda service, who: service.history(who, Search()),
            lambda service, who: service.judgement(who, name(0)),
        ):
            with pytest.raises(NotAllowedError, match="keeps no addresses"):
                asked(
                    configuration, lambda service, work=work, person=person: work(service, person)
                )
    assert len(
        asked(configuration, lambda service: service.history(OPERATOR, Search(limit=100))).rows
    ) == len(PASSED)
    for wanted in (
        Search(sender="a"),
        Search(recipient="a"),
        Search(subject="a"),
        Search(words=("a",)),
    ):
        with pytest.raises(UsageError, match="keeps no addresses or subjects"):
            asked(configuration, lambda service, wanted=wanted: service.history(OPERATOR, wanted))


# ---- one of them


CALLS: list[Callable[[Service, Person, str], Any]] = [
    lambda service, person, which: service.judgement(person, which),
    lambda service, person, which: service.why(person, which),
    lambda service, person, which: service.learn_passed(person, which, "spam"),
    lambda service, person, which: service.forget_passed(person, which),
]


@pytest.mark.parametrize("call", CALLS)
def test_mail_of_others_looks_as_if_it_did_not_exist(
    state: Path, call: Callable[[Service, Person, str], Any]
) -> None:
    before, told = votes(state), set()
    for person, which in (
        (ANNA, name(2)),
        (BEN, name(0)),
        (ANNA, name(1000)),
        (OPERATOR, name(1000)),
        (ANNA, "../../key"),
        (ANNA, ""),
    ):
        with pytest.raises(NotThereError) as error:
            asked(state, lambda service, person=person, which=which: call(service, person, which))
        told.add(str(error.value))
    assert len(told) == 1
    assert votes(state) == before


def test_all_words_of_a_held_message_are_named(state: Path) -> None:
    raw = PASSED[0][1]
    with opened(state) as spam_filter:
        kept = {"action": "quarantine", "words": (), "recipients": ("anna@example.org",)}
        row = passed(spam_filter, -1, raw, **kept)
        older = replace(row, id=name(-2), extractor=row.extractor - 1)
        now = spam_filter.judge(raw)
    remember(state, [row, older])
    with pytest.raises(UsageError, match="another version"):
        asked(state, lambda service: service.why(ANNA, older.id))
    for number in (-1, -2):
        hold(state, number, raw, "anna@example.org")
        why = asked(state, lambda service, number=number: service.why(ANNA, name(number)))[1]
        assert why.verdict == now
        assert all(clue.text for clue in why.clues if clue.part)


def test_mail_that_was_not_scanned_has_no_present_verdict(state: Path) -> None:
    with opened(state) as spam_filter:
        row = replace(
            passed(spam_filter, -1, PASSED[0][1]),
            digest=b"",
            packed=b"",
            label="not-scanned",
            recipients=("anna@x",),
        )
    remember(state, [row])
    assert not asked(state, lambda service: service.judgement(ANNA, name(-1))).can_teach
    for call in CALLS[1:]:
        with pytest.raises(UsageError, match="not scanned"):
            asked(state, lambda service, call=call: call(service, ANNA, name(-1)))


@pytest.mark.parametrize("values", [{"fingerprint": "0" * 16}, {"extractor": 0}])
def test_features_that_are_none_of_ours_teach_nothing(state: Path, values: dict[str, Any]) -> None:
    before = votes(state)
    with opened(state) as spam_filter:
        remember(state, [passed(spam_filter, -1, PASSED[0][1], recipients=("anna@x",), **values)])
    assert not asked(state, lambda service: service.judgement(ANNA, name(-1))).can_teach
    with pytest.raises(UsageError):
        asked(state, lambda service: service.learn_passed(ANNA, name(-1), "spam"))
    assert votes(state) == before


# ---- teaching


def test_teaching_from_the_history_and_taking_it_back(state: Path) -> None:
    async def work(service: Service) -> None:
        before = await service.judgement(ANNA, name(0))
        assert (before.taught, before.own) == ("", "")
        other = "ham" if before.label == "spam" else "spam"
        receipt = await service.learn_passed(ANNA, name(0), other)
        assert (receipt.label, receipt.changed, receipt.was) == (other, True, "")
        assert receipt.now is not None
        now = await service.judgement(ANNA, name(0))
        assert (now.taught, now.own, now.label) == (other, other, before.label)
        again = await service.learn_passed(ANNA, name(0), other)
        assert (again.changed, again.was, again.digest) == (False, other, receipt.digest)
        assert numbers(await service.history(ANNA, Search(taught=other))) == [0]
        assert numbers(await service.history(ANNA, Search(taught="any"))) == [0]
        assert numbers(await service.history(BEN, Search(taught="any"))) == []
        back = await service.forget_passed(ANNA, name(0))
        assert (back.label, back.changed, back.was) == ("", True, other)
        assert back.now == (await service.why(ANNA, name(0)))[1].verdict
        assert numbers(await service.history(ANNA, Search(taught="any"))) == []
        assert not (await service.forget_passed(ANNA, name(0))).changed

    asked(state, work)


@pytest.mark.parametrize(
    "label", ["unsure", "Spam", "newsletters", "", "x" * 1000, "(word list)", "any"]
)
def test_only_classes_that_are_there(state: Path, label: str) -> None:
    with pytest.raises(UsageError, match=r"is not a class here\. There are ham, spam"):
        asked(state, lambda service: service.learn_passed(ANNA, name(0), label))
