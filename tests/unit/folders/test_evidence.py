"""What flags and keywords say: nothing unless it is asked for, and nothing where they contradict each other."""

from __future__ import annotations

import pytest

from spamguard.folders.evidence import Asked, asked, says, signs
from spamguard.folders.teaches import Into, Sign
from spamguard.settings import HamEvidence, Watch

ALL = asked(Watch("/x", ham_evidence=HamEvidence(True, True, 3600.0), spam_evidence=("$Junk", "Junk")))
NAMES = {"a": "$junk", "b": "NonJunk", "c": "Junk", "d": "later"}
ANSWERED, FLAGGED, READ, KEYWORD = Sign


def test_nothing_is_asked_for_unless_said():
    nothing = asked(Watch("/x"))
    assert nothing == Asked()
    assert signs("FRSTabc", NAMES, nothing) == frozenset()
    assert not any(nothing.counts(into) for into in Into)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", set()),
        ("DPT", set()),
        ("RS", {ANSWERED, READ}),
        ("ST", set()),
        ("RSTa", {ANSWERED, KEYWORD}),
        ("FS", {FLAGGED, READ}),
        ("Sa", {READ, KEYWORD}),
        ("c", {KEYWORD}),
        ("ab", set()),
        ("bd", set()),
        ("z", set()),
    ],
)
def test_signs(flags, found):
    assert signs(flags, NAMES, ALL) == found


@pytest.mark.parametrize(
    ("found", "into", "told"),
    [
        ({ANSWERED, READ}, Into.HAM, (ANSWERED, "ham")),
        ({ANSWERED, FLAGGED}, Into.HAM, (ANSWERED, "ham")),
        ({FLAGGED}, Into.HAM, (FLAGGED, "ham")),
        ({READ}, Into.HAM, (READ, "ham")),
        ({KEYWORD, READ}, Into.HAM, (KEYWORD, "spam")),
        ({KEYWORD, FLAGGED}, Into.HAM, None),
        ({KEYWORD, FLAGGED}, Into.OUTSIDE, (KEYWORD, "spam")),
        ({KEYWORD}, Into.OTHER, (KEYWORD, "spam")),
        ({KEYWORD, ANSWERED, FLAGGED, READ}, Into.UNWANTED, None),
        ({ANSWERED, FLAGGED, READ}, Into.OTHER, None),
        (set(), Into.HAM, None),
    ],
)
def test_what_signs_say(found, into, told):
    assert says(found, into) == told


def test_where_it_counts():
    of_ham = asked(Watch("/x", ham_evidence=HamEvidence(flagged=True)))
    assert [of_ham.counts(into) for into in Into] == [True, False, False, False]
    assert [ALL.counts(into) for into in Into] == [True, False, True, True]


def test_what_is_asked_for_can_be_compared():
    assert str(ALL) == str(asked(Watch("/y", ham_evidence=HamEvidence(True, True, 3600.0), spam_evidence=("JUNK", "$junk"))))
    others = (Watch("/x"), Watch("/x", spam_evidence=("x",)), Watch("/x", ham_evidence=HamEvidence(True, True, 7200.0)))
    assert len({str(ALL), *(str(asked(watch)) for watch in others)}) == 4
