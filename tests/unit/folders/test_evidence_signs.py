"""What flags and keywords say: nothing unless it is asked for, and nothing where they contradict
each other.
"""

from __future__ import annotations

import pytest

from spamguard.config.options import HamEvidence, Watch
from spamguard.folders.reconcile import (
    EvidenceRule,
    EvidenceSign,
    MoveTarget,
    choose_sign,
    evidence_rule,
    find_signs,
)

ALL = evidence_rule(
    Watch("/x", ham_evidence=HamEvidence(True, True, 3600.0), spam_evidence=("$Junk", "Junk"))
)
NAMES = {"a": "$junk", "b": "NonJunk", "c": "Junk", "d": "later"}
ANSWERED, FLAGGED, READ, KEYWORD = EvidenceSign


def test_nothing_is_asked_for_unless_said():
    nothing = evidence_rule(Watch("/x"))
    assert nothing == EvidenceRule()
    assert find_signs("FRSTabc", NAMES, nothing) == frozenset()
    assert not any(nothing.applies_to(into) for into in MoveTarget)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", set()),
        ("DP", set()),
        ("RS", {ANSWERED, READ}),
        ("RSa", {ANSWERED, READ, KEYWORD}),
        ("FS", {FLAGGED, READ}),
        ("Sa", {READ, KEYWORD}),
        ("c", {KEYWORD}),
        ("ab", set()),
        ("bd", set()),
        ("z", set()),
    ],
)
def test_signs(flags, found):
    assert find_signs(flags, NAMES, ALL) == found


@pytest.mark.parametrize(
    ("found", "into", "told"),
    [
        ({ANSWERED, READ}, MoveTarget.HAM, (ANSWERED, "ham")),
        ({ANSWERED, FLAGGED}, MoveTarget.HAM, (ANSWERED, "ham")),
        ({FLAGGED}, MoveTarget.HAM, (FLAGGED, "ham")),
        ({READ}, MoveTarget.HAM, (READ, "ham")),
        ({KEYWORD, READ}, MoveTarget.HAM, (KEYWORD, "spam")),
        ({KEYWORD, FLAGGED}, MoveTarget.HAM, None),
        ({KEYWORD, FLAGGED}, MoveTarget.NO_CLASS, (KEYWORD, "spam")),
        ({KEYWORD}, MoveTarget.OTHER_CLASS, (KEYWORD, "spam")),
        ({KEYWORD, ANSWERED, FLAGGED, READ}, MoveTarget.UNWANTED, None),
        ({ANSWERED, FLAGGED, READ}, MoveTarget.OTHER_CLASS, None),
        (set(), MoveTarget.HAM, None),
    ],
)
def test_what_signs_say(found, into, told):
    assert choose_sign(found, into) == told


def test_where_it_counts():
    of_ham = evidence_rule(Watch("/x", ham_evidence=HamEvidence(flagged=True)))
    assert [of_ham.applies_to(into) for into in MoveTarget] == [True, False, False, False]
    assert [ALL.applies_to(into) for into in MoveTarget] == [True, False, True, True]


def test_what_is_asked_for_can_be_compared():
    assert str(ALL) == str(
        evidence_rule(
            Watch(
                "/y", ham_evidence=HamEvidence(True, True, 3600.0), spam_evidence=("JUNK", "$junk")
            )
        )
    )
    others = (
        Watch("/x"),
        Watch("/x", spam_evidence=("x",)),
        Watch("/x", ham_evidence=HamEvidence(True, True, 7200.0)),
    )
    assert len({str(ALL), *(str(evidence_rule(watch)) for watch in others)}) == 4
