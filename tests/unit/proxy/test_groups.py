"""Recipients grouped by decision: none is left out, and the mildest verdict counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.config.options import Action, Policy, Rule
from spamguard.engine.policy import decide
from spamguard.proxy.transaction import decide_copies
from spamguard.records import Scan, Verdict
from tests.unit.bayes.support import repeatable

RULES = (
    Rule("spam", Action.REJECT, 0.999),
    Rule("spam", Action.QUARANTINE, 0.98),
    Rule("unsure", Action.TAG, 0.5, subject_prefix="? "),
)
POLICY = Policy(rules=RULES)


def verdict(probability: float) -> Verdict:
    label = "spam" if probability >= 0.95 else "ham" if probability <= 0.1 else "unsure"
    return Verdict(label, probability, 0.0, {"spam": probability, "ham": 1 - probability})


def scan(shared: float, **personal: float) -> Scan:
    return Scan(
        verdict(shared),
        b"d" * 16,
        b"",
        (),
        0.95,
        False,
        {user: verdict(probability) for user, probability in personal.items()},
    )


USERS = ("anna", "ben", "carl", "dora")
PROBABILITIES = st.sampled_from((0.0, 0.05, 0.2, 0.5, 0.7, 0.95, 0.97, 0.98, 0.99, 0.999, 1.0))


@repeatable
@given(
    PROBABILITIES,
    st.dictionaries(st.sampled_from(USERS), PROBABILITIES),
    st.lists(st.sampled_from(("", *USERS)), min_size=1, max_size=30),
    st.booleans(),
)
def test_of_any_recipients(
    shared: float, personal: dict[str, float], named: list[str], apart: bool
) -> None:
    scan_result = scan(shared, **personal)
    people = [user if user in personal else "" for user in named]
    groups = decide_copies(scan_result, people, POLICY, separate_copies=apart)
    assert sorted(number for group in groups for number in group.recipients) == list(
        range(len(people))
    )
    assert len(groups) == 1 or apart
    assert len({(group.verdict.label, group.decision.rule) for group in groups}) == len(groups)
    for group in groups:
        assert group.decision == decide(group.verdict, POLICY, 0.95)
        own = [
            scan_result.personal[people[number]] if people[number] else scan_result.verdict
            for number in group.recipients
        ]
        told = [group.verdict.label, group.decision.rule]
        if told == [scan_result.verdict.label, decide(scan_result.verdict, POLICY, 0.95).rule]:
            assert group.verdict == scan_result.verdict
        else:
            assert group.verdict.probability == min(verdict.probability for verdict in own)
        if apart:
            assert all(
                [verdict.label, decide(verdict, POLICY, 0.95).rule] == told for verdict in own
            )
        assert set(group.personal) <= set(people)
