"""From the experts' log-odds to explanations that people read.

`explain_verdict` puts an explanation together from its parts. The other functions say what a
terminal or a page shows of it: figures that add up, and what another label would take. What to show
of the features is told by `explain_groups`. The figures must never sum to anything but the score,
and tables are never changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spamguard.bayes import experts
from spamguard.bayes.experts import Floats
from spamguard.bayes.explain import LogOddsBreakdown
from spamguard.bayes.personal import UserCorrection
from spamguard.bayes.tables import Evidence, Tables
from spamguard.engine import policy
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import TOKEN_SETS, Clue, Explanation, Verdict

STEPS_PER_NAT = 1000  # parts are shown in thousandths
PERSONAL_EXPERT = "personal"  # the part of the user's own votes, among the experts


# ---- putting an explanation together


class WeighedMessage(NamedTuple):
    """A message's features, its log-odds taken apart, and the user's correction, if any."""

    evidence: Evidence
    breakdown: LogOddsBreakdown
    correction: UserCorrection | None


def explain_verdict(
    tables: Tables,
    verdict: Verdict,
    unwanted: frozenset[str],
    spam_from: float,
    message: WeighedMessage,
    texts: Mapping[int, str],
    *,
    cautious: bool = False,
) -> Explanation:
    """Why a verdict, by the likeliest class of each side.

    texts: of the tokens that have one. cautious: whether spam_from is above the usual threshold,
    because little good mail is known.
    """
    parts, correction = message.breakdown, message.correction
    favoured, against = policy.likeliest_sides(verdict, unwanted)
    shares = dict(zip(experts.EXPERTS, parts.experts.tolist(), strict=True))
    scores = dict(zip(experts.EXPERTS, parts.scores.tolist(), strict=True))
    log_odds, biases = parts.log_odds, parts.biases
    if correction:
        numbers = tables.classes.index(favoured), tables.classes.index(against)
        log_odds = verdict.log_odds
        shares[PERSONAL_EXPERT] = share = verdict.log_odds - parts.log_odds
        evidence = correction.class_difference(correction.evidence, *numbers)
        scores[PERSONAL_EXPERT] = float(evidence)
        biases += _add_user_parts(parts.buckets, share, correction, numbers)
    clues = _sorted_clues(tables, texts, message)
    distance = policy.distance_to_threshold(verdict.log_odds, spam_from)
    few = policy.has_too_few_lessons(policy.lesson_counts(tables), unwanted)
    flip = None if few else policy.count_flips([clue.part for clue in clues], distance)
    return Explanation(
        verdict=verdict,
        favoured=favoured,
        against=against,
        log_odds=log_odds,
        prior=parts.prior,
        biases=biases,
        shares=shares,
        scores=scores,
        clues=clues,
        traits=dict(zip(TRAITS, parts.traits.tolist(), strict=True)),
        numbers=dict(zip(NUMBERS, parts.numbers.tolist(), strict=True)),
        to_threshold=distance,
        flip=flip,
        few=few,
        spam_from=policy.logit(spam_from) if cautious and not few else None,
    )


def _add_user_parts(
    buckets: Floats, share: float, correction: UserCorrection, numbers: tuple[int, int]
) -> float:
    """Add to the tokens their parts of the user's share; returns what is left of it.

    With more than two classes, what the votes move between these two need not be what they move
    between both sides.
    """
    shift = float(correction.class_difference(correction.shifts, *numbers))
    fraction = min(max(share / shift, 0.0), 1.0) if shift else 0.0
    parts = correction.class_difference(correction.parts, *numbers)
    buckets[correction.token_indices] += fraction * parts
    return share - fraction * shift


def _sorted_clues(tables: Tables, texts: Mapping[int, str], message: WeighedMessage) -> list[Clue]:
    """Every token of a message, the strongest first."""
    text_of: dict[int, str] = {}
    for token, text in texts.items():
        text_of.setdefault(token >> (32 - tables.bits), text)
    columns = zip(
        message.evidence.buckets.tolist(),
        message.breakdown.buckets.tolist(),
        message.breakdown.counts.T.tolist(),
        strict=True,
    )
    set_shift = tables.bits - 2  # the two top bits of a bucket name its token set
    clues = [
        Clue(
            text_of.get(bucket, ""),
            part,
            dict(zip(tables.classes, counts, strict=True)),
            TOKEN_SETS[bucket >> set_shift],
        )
        for bucket, part, counts in columns
    ]
    return sorted(clues, key=lambda clue: -abs(clue.part))


# ---- showing it


def round_parts(parts: Iterable[float], whole: float) -> list[int]:
    """At least one part in thousandths; they sum to the whole in thousandths.

    The largest part takes up the rounding.

    >>> round_parts([0.3334, 0.3334, 0.3334], 1.0002)
    [334, 333, 333]
    """
    steps = [round(part * STEPS_PER_NAT) for part in parts]
    largest = max(range(len(steps)), key=lambda at: abs(steps[at]))
    steps[largest] += round(whole * STEPS_PER_NAT) - sum(steps)
    return steps


def describe_odds(why: Explanation, class_title: Callable[[str], str] = str) -> str:
    """Which classes the log-odds compare; with more than two, both sides as wholes."""
    pair = f"{class_title(why.favoured)} against {class_title(why.against)}"
    if len(why.verdict.probabilities) == 2:
        return pair
    return f"unwanted mail against wanted, most likely {pair}"


def describe_flip(why: Explanation) -> str:
    """What another label would take, in one sentence."""
    if why.few:
        return "no words would change it: everything is unsure while so little has been taught"
    way, side = ("fall", "for") if why.to_threshold < 0 else ("rise", "against")
    sentence = (
        f"for another label the log-odds would have to {way} by {abs(why.to_threshold):.3f}: "
    )
    if why.spam_from is not None:
        sentence = (
            "little good mail is known yet, so this message is called spam from "
            f"{why.spam_from:+.3f} on; {sentence}"
        )
    if why.flip is None:
        return sentence + "its words alone do not keep it from that"
    words = "strongest word" if why.flip == 1 else f"{why.flip:,} strongest words"
    return sentence + f"without its {words} {side} {why.favoured} they would"
