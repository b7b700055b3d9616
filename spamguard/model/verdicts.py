"""From the experts' log-odds to what people are told: verdicts, and explanations put together from their parts.

Must never read tables by bucket or change anything: it is handed what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from typing import NamedTuple

from spamguard import policy
from spamguard.bayes import experts
from spamguard.bayes.experts import Floats
from spamguard.bayes.explanation import Dissection
from spamguard.bayes.personal import Correction
from spamguard.bayes.tables import Evidence, Tables
from spamguard.mail.traits import NUMBERS, TRAITS
from spamguard.records import Clue, Explanation, Verdict

_CERTAIN = 1000.0  # nats; maximum likelihood may be infinitely sure, JSON and comparisons may not
PERSONAL = "personal"
"""In an explanation, among the experts: what the user's own votes add."""


def verdict(tables: Tables, joint: list[float], unwanted: frozenset[str], spam_from: float) -> Verdict:
    """The verdict by unnormalised log-probabilities of the classes, in the order of the tables."""
    if max(joint) == -inf:  # every class is impossible: the evidence says nothing, the prior answers
        joint = [log(count + 1) for count in tables.messages.tolist()]
    classes = tables.classes
    whole = _log_sum(joint)
    probabilities = {name: exp(value - whole) for name, value in zip(classes, joint, strict=True)}
    bad = _log_sum([value for name, value in zip(classes, joint, strict=True) if name in unwanted])
    good = _log_sum([value for name, value in zip(classes, joint, strict=True) if name not in unwanted])
    return policy.verdict(probabilities, min(max(bad - good, -_CERTAIN), _CERTAIN), unwanted, _lessons(tables), spam_from)


def _lessons(tables: Tables) -> dict[str, int]:
    return dict(zip(tables.classes, tables.messages.tolist(), strict=True))


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


class Found(NamedTuple):
    """What a message says, what was made of it, and what the user whose mail it is has said, if there is anything."""

    seen: Evidence
    parts: Dissection
    own: Correction | None


def explanation(
    tables: Tables,
    verdict: Verdict,
    unwanted: frozenset[str],
    spam_from: float,
    found: Found,
    texts: Mapping[int, str],
    *,
    cautious: bool = False,
) -> Explanation:
    """Why a verdict, by the likeliest class of each side. texts: of those tokens whose text is known.

    cautious: spam_from is above the usual threshold, since little good mail is known.
    """
    parts, names = found.parts, sides(verdict, unwanted)
    shares = dict(zip(experts.EXPERTS, parts.experts.tolist(), strict=True))
    scores = dict(zip(experts.EXPERTS, parts.scores.tolist(), strict=True))
    log_odds, biases = parts.log_odds, parts.biases
    if found.own:
        numbers = [tables.classes.index(name) for name in names]
        log_odds = verdict.log_odds
        shares[PERSONAL] = verdict.log_odds - parts.log_odds
        scores[PERSONAL] = float(found.own.between(found.own.evidence, *numbers))
        biases += _give_tokens(parts.buckets, shares[PERSONAL], found.own, numbers)
    clues = _clues(tables, texts, found)
    distance, few = policy.distance(verdict.log_odds, spam_from), policy.too_few(_lessons(tables), unwanted)
    return Explanation(
        verdict,
        *names,
        log_odds,
        parts.prior,
        biases,
        shares,
        scores,
        clues,
        dict(zip(TRAITS, parts.traits.tolist(), strict=True)),
        dict(zip(NUMBERS, parts.numbers.tolist(), strict=True)),
        distance,
        None if few else policy.flips([clue.part for clue in clues], distance),
        few,
        policy.logit(spam_from) if cautious and not few else None,
    )


def _give_tokens(buckets: Floats, share: float, own: Correction, numbers: Sequence[int]) -> float:
    """Add to the tokens their parts of what the user's own votes move between two classes; what is left of their share.

    Of more classes than two, what the votes move between these need not be what they move between both sides.
    """
    moved = float(own.between(own.moved, *numbers))
    told = min(max(share / moved, 0.0), 1.0) if moved else 0.0
    buckets[own.places] += told * own.between(own.parts, *numbers)
    return share - told * moved


def _clues(tables: Tables, texts: Mapping[int, str], found: Found) -> list[Clue]:
    """Every token of a message, the strongest first."""
    named: dict[int, str] = {}
    for token, text in texts.items():
        named.setdefault(token >> (32 - tables.bits), text)
    buckets, parts, counts = found.seen.buckets.tolist(), found.parts.buckets.tolist(), found.parts.counts.T.tolist()
    told = [
        Clue(named.get(bucket, ""), part, dict(zip(tables.classes, each, strict=True)))
        for bucket, part, each in zip(buckets, parts, counts, strict=True)
    ]
    return sorted(told, key=lambda clue: -abs(clue.part))
