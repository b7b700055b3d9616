"""From the experts' log-odds to what people are told: verdicts, and explanations put together from their parts.

Must never read tables by bucket or change anything: it is handed what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf, log

from spamguard import policy
from spamguard.bayes import experts
from spamguard.bayes.explanation import Dissection
from spamguard.bayes.tables import Evidence, Tables
from spamguard.mail.traits import NUMBERS, TRAITS
from spamguard.records import Clue, Explanation, Verdict

_CERTAIN = 1000.0  # nats; maximum likelihood may be infinitely sure, JSON and comparisons may not


def verdict(tables: Tables, joint: list[float], unwanted: frozenset[str], spam_from: float) -> Verdict:
    """The verdict by unnormalised log-probabilities of the classes, in the order of the tables."""
    if max(joint) == -inf:  # every class is impossible: the evidence says nothing, the prior answers
        joint = [log(count + 1) for count in tables.messages.tolist()]
    classes = tables.classes
    whole = _log_sum(joint)
    probabilities = {name: exp(value - whole) for name, value in zip(classes, joint, strict=True)}
    bad = _log_sum([value for name, value in zip(classes, joint, strict=True) if name in unwanted])
    good = _log_sum([value for name, value in zip(classes, joint, strict=True) if name not in unwanted])
    lessons = dict(zip(classes, tables.messages.tolist(), strict=True))
    return policy.verdict(probabilities, min(max(bad - good, -_CERTAIN), _CERTAIN), unwanted, lessons, spam_from)


def _log_sum(values: list[float]) -> float:
    """Logarithm of the sum of what these are the logarithms of; of one or two, which is the usual case, faster than an array."""
    highest = max(values)
    return highest if highest == -inf or len(values) == 1 else highest + log(sum([exp(value - highest) for value in values]))


def sides(found: Verdict, unwanted: frozenset[str]) -> tuple[str, str]:
    """The likeliest unwanted class and the likeliest wanted one."""
    probabilities = found.probabilities
    bad = [name for name in probabilities if name in unwanted]
    good = [name for name in probabilities if name not in unwanted]
    return max(bad, key=lambda name: probabilities[name]), max(good, key=lambda name: probabilities[name])


def clues(tables: Tables, texts: Mapping[int, str], seen: Evidence, found: Dissection) -> list[Clue]:
    """Every token of a message, the strongest first. texts: of those tokens whose text is known."""
    named: dict[int, str] = {}
    for token, text in texts.items():
        named.setdefault(token >> (32 - tables.bits), text)
    told = [
        Clue(named.get(bucket, ""), part, dict(zip(tables.classes, counts, strict=True)))
        for bucket, part, counts in zip(seen.buckets.tolist(), found.buckets.tolist(), found.counts.T.tolist(), strict=True)
    ]
    return sorted(told, key=lambda clue: -abs(clue.part))


def explanation(verdict: Verdict, spam_from: float, favoured: str, against: str, found: Dissection, told: list[Clue]) -> Explanation:
    """Why a verdict, from the parts of `favoured` against `against`."""
    distance = policy.distance(verdict.log_odds, spam_from)
    return Explanation(
        verdict,
        favoured,
        against,
        found.log_odds,
        found.prior,
        found.biases,
        dict(zip(experts.EXPERTS, found.experts.tolist(), strict=True)),
        dict(zip(experts.EXPERTS, found.scores.tolist(), strict=True)),
        told,
        dict(zip(TRAITS, found.traits.tolist(), strict=True)),
        dict(zip(NUMBERS, found.numbers.tolist(), strict=True)),
        distance,
        policy.flips([clue.part for clue in told], distance),
    )
