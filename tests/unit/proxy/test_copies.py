"""Groups of recipients get copies of their own, each with its own fields and reply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.config.options import Action, Rule
from spamguard.users import UserResolver
from tests.unit.proxy.transactions import (
    HAM,
    KEY,
    OK,
    SPAM,
    Case,
    FakeHop,
    FakeJudge,
    before_queue,
    scan,
)

ANNA, BEN, CARL = "anna@example.net", "ben@example.net", "carl@example.net"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """For all it is ham, for anna spam."""
    scan_result = replace(scan(HAM), personal={"anna": SPAM})
    return Case(
        tmp_path,
        FakeHop(answers_each=True),
        FakeJudge(scan_result),
        people=UserResolver((("sales@example.net", "anna"),)),
    )


def transactions(case: Case) -> list[list[str]]:
    """The recipients that were named in each transaction, in order."""
    found: list[list[str]] = []
    for line in case.hop.said:
        if line.startswith("mail"):
            found.append([])
        elif line.startswith("rcpt"):
            found[-1].append(line.removeprefix("rcpt "))
    return found


# ---- answers


def test_a_fault_with_one_copy_does_not_take_back_the_answer_to_another(case: Case) -> None:
    case.hop.answers["mail a@example.org"] = [OK, OK]  # and an IndexError
    assert [reply.code for reply in case.send(recipients=(ANNA, BEN))] == [451, 250]


def test_a_fault_before_anything_was_handed_on_makes_one_message_of_it(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [KEY]
    case.key = keys.pop  # there is none for the second copy
    assert case.send(recipients=(ANNA, BEN)) == [OK, OK]
    assert transactions(case) == [[ANNA, BEN]]
    assert case.hop.contents[0].startswith(b"X-Spamguard: not-scanned; reason=error\r\n")
    (entry,) = case.entries
    assert "reason=error" in str(entry)
    assert entry.row("f").label == "not-scanned"


def test_a_message_that_could_not_be_tagged_has_no_personal_verdicts(case: Case) -> None:
    case.key = [].pop
    assert case.send(recipients=(ANNA,)) == [OK]
    assert case.entries[0].row("f").personal == {}


@pytest.mark.parametrize(("action", "code"), [(Action.REJECT, 550), (Action.DEFER, 451)])
def test_a_refusal_is_only_for_those_it_is_meant_for(case: Case, action: Action, code: int) -> None:
    case.listener = before_queue(rules=(Rule("spam", action, 0.9),))
    assert [reply.code for reply in case.send(recipients=(ANNA, BEN))] == [code, 250]
    assert transactions(case) == [[ANNA, BEN], [BEN]]
    assert [entry.action for entry in case.entries] == [Action.TAG, action]
