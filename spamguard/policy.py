"""What to do about a verdict: its label, the action, and the header fields that tell it. Pure: numbers in, words and bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import NamedTuple

from spamguard.records import Verdict
from spamguard.settings import Action, Policy, Rule

UNSURE = "unsure"
# Where "unsure" ends, as probability of being unwanted (corpora/RESULTS.md, "Thresholds")
SPAM_FROM = 0.95
HAM_TO = 0.1
FEWEST_LESSONS = 3  # of each side, before any label but "unsure" is given (corpora/RESULTS.md, "Thresholds")
# Few good lessons leave spam unsure ("The first days") and, beside so many times as many unwanted ones, most good mail (corpora/RESULTS.md,
# "People who only move").
_FEW_GOOD, _LOPSIDED = 500, 3
REQUIRED = 5.0  # score at the spam threshold, as SpamAssassin's readers expect


def verdict(
    probabilities: Mapping[str, float],
    log_odds: float,
    unwanted: frozenset[str],
    lessons: Mapping[str, int],
    spam_from: float = SPAM_FROM,
) -> Verdict:
    """A verdict from each class's probability. log_odds: of being unwanted. lessons: how many each class has."""
    rarer = exp(-min(abs(log_odds), 700.0))  # odds of the side that is less likely: never overflows
    probability = (1.0 if log_odds >= 0 else rarer) / (1.0 + rarer)
    label = _label(probabilities, probability, unwanted, lessons, spam_from)
    return Verdict(label, probability, log_odds, dict(probabilities))


def _label(
    probabilities: Mapping[str, float], probability: float, unwanted: frozenset[str], lessons: Mapping[str, int], spam_from: float
) -> str:
    if too_few(lessons, unwanted) or HAM_TO < probability < spam_from:
        return UNSURE
    side = [name for name in probabilities if (name in unwanted) == (probability >= spam_from)]
    return side[0] if len(side) == 1 else max(side, key=lambda name: probabilities[name])


def too_few(lessons: Mapping[str, int], unwanted: Set[str]) -> bool:
    """Whether everything is unsure for want of lessons, whatever its probability."""
    return min(_sides(lessons, unwanted)) < FEWEST_LESSONS


def unwanted_of(classes: Mapping[str, bool]) -> frozenset[str]:
    """Names of the unwanted ones among classes of which is known whether they are; spam always is."""
    return frozenset({"spam", *(name for name, unwanted in classes.items() if unwanted)})


def _sides(lessons: Mapping[str, int], unwanted: Set[str]) -> tuple[int, int]:
    """Lessons of good mail, and of unwanted."""
    bad = sum([count for name, count in lessons.items() if name in unwanted])
    return sum(lessons.values()) - bad, bad


def missing(lessons: Mapping[str, int], unwanted: Set[str]) -> str:
    """What keeps much mail unsure for want of lessons, in a few words; empty: nothing does."""
    good, bad = _sides(lessons, unwanted)
    if too_few(lessons, unwanted):
        return f"everything is unsure until {FEWEST_LESSONS} good messages and {FEWEST_LESSONS} unwanted ones have been taught"
    if good < _FEW_GOOD and bad > _LOPSIDED * good:
        return f"much good mail is unsure: {good:,} good messages have been taught beside {bad:,} unwanted ones"
    if good < _FEW_GOOD:
        return f"only plain spam is called spam, the rest is unsure: {good:,} of {_FEW_GOOD} good messages have been taught"
    return ""


def distance(log_odds: float, spam_from: float = SPAM_FROM) -> float:
    """How far the log-odds would have to move to reach the nearest border to another label."""
    return min((logit(at) - log_odds for at in (HAM_TO, spam_from)), key=abs)


def logit(probability: float) -> float:
    """Log-odds of a probability between 0 and 1, both excluded."""
    return log(probability) - log1p(-probability)


def flips(parts: Iterable[float], away: float) -> int | None:
    """How many of these parts of the log-odds, in this order, must go before the rest has moved by `away`; None: all do not do it."""
    left = abs(away)
    for number, part in enumerate((part for part in parts if part * away < 0), start=1):
        left -= abs(part)
        if left <= 0:
            return number
    return None


# ---- the threshold as a bound on good mail that is judged wrongly

FEWEST_CONFIRMED = 3000  # good messages below which no bound is believed
_DOUBT = 0.05  # the bound holds with 95 % confidence
_LEAST = 0.5  # no bound makes spam of what is more likely good,
_MOST = 1 - 1e-9  # or lets nothing be spam


class GoodMail(NamedTuple):
    """How spammy good mail has looked before it was taught.

    confirmed: messages known to be good that were scored before. highest: the highest of their log-odds, falling; not all.
    """

    confirmed: int = 0
    highest: Sequence[float] = ()


class Threshold(NamedTuple):
    """spam_from: probability from which on mail is called spam. in_force: by a bound that was asked for, not the fixed one."""

    spam_from: float = SPAM_FROM
    in_force: bool = False


def threshold(good: GoodMail, one_wrong_in: int) -> Threshold:
    """The lowest threshold that calls at most one good message in `one_wrong_in` spam, as far as can be known; 0: the fixed one."""
    allowed = wrong_allowed(good.confirmed, one_wrong_in) if one_wrong_in > 0 and good.confirmed >= FEWEST_CONFIRMED else None
    if allowed is None or not good.highest:
        return Threshold()
    just_above = good.highest[min(allowed, len(good.highest) - 1)] + 1e-6
    return Threshold(_probability(just_above), in_force=True)


def _probability(log_odds: float) -> float:
    """As a threshold: neither below `_LEAST` nor above `_MOST`."""
    return min(max(1.0 / (1.0 + exp(-max(log_odds, -700.0))), _LEAST), _MOST)


def wrong_allowed(confirmed: int, one_wrong_in: int) -> int | None:
    """How many of so many good messages may be above a threshold that is to be wrong about one in `one_wrong_in` at most.

    The largest number whose upper confidence bound (Clopper & Pearson 1934, one-sided, 95 %) does not exceed 1 / one_wrong_in;
    None when even none at all proves too little. The same holds for a threshold chosen by looking at these messages: the share
    of all good mail above the (x+1)-th highest has the very distribution whose quantile that bound is (Wilks 1941).
    """
    rate = 1.0 / one_wrong_in
    allowed, known = None, 0.0
    for wrong in range(confirmed):
        known += _binomial(wrong, confirmed, rate) if one_wrong_in > 1 else 0.0
        if known > _DOUBT:
            break
        allowed = wrong
    return allowed


def _binomial(wrong: int, confirmed: int, rate: float) -> float:
    """Probability of exactly so many."""
    ways = lgamma(confirmed + 1) - lgamma(wrong + 1) - lgamma(confirmed - wrong + 1)
    return exp(ways + wrong * log(rate) + (confirmed - wrong) * log1p(-rate))


# ---- the first days

# Tuned on frozen filters: corpora/RESULTS.md, "The first days".
_CAUTION_HALVES = 300  # good messages
_CAUTION_STEEPNESS = 4  # power
_ERROR_OF_FEW = 50.0  # nats, divided by the number of good messages
_UNKNOWN = 15.0  # nats for a message whose header and structure are all unknown
_TEXT = 3.5  # nats for each nat by which the text says less for spam than _CLEAR_TEXT
_CLEAR_TEXT = 3.0  # nats


class Caution(NamedTuple):
    """What else a message needs to be called spam while few good messages have been taught.

    Log-odds compare a message with what was taught. A good message of a kind that was never taught
    looks more like spam than like any good mail. With n good messages taught, of few senders, no
    error below about 1/n can be claimed, whatever the log-odds say. And a message is no spam for
    lack of ham: its text must speak for spam, and much of it must be known.

    good: good messages taught. weight: of what the message itself lacks, in [0, 1].
    """

    good: int
    weight: float

    def spam_from(self, text: float, unknown: float) -> float:
        """Probability from which on a message is called spam, at least `SPAM_FROM`.

        text: log-odds of spam by its words, in nats. unknown: share, in [0, 1], of its header
        fields, hosts and structure that no lesson has.

        >>> round(Caution(good=100, weight=0.9).spam_from(text=1.0, unknown=0.3), 5)
        0.99997
        """
        lacking = _UNKNOWN * unknown + _TEXT * max(_CLEAR_TEXT - text, 0.0)
        few = logit(SPAM_FROM) + _ERROR_OF_FEW / max(self.good, 1)
        return _probability(max(few, self.weight * lacking))


def caution(good: int, confidence: float) -> Caution | None:
    """The caution that so many good lessons ask for; None: they are enough.

    confidence: as in `bayes.experts.Parameters`, by which log-odds are held back as well.
    """
    if good >= _FEW_GOOD:
        return None
    return Caution(good, confidence**3 / (1 + (good / _CAUTION_HALVES) ** _CAUTION_STEEPNESS))


# ---- what is done


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with a message. is_unwanted: its label is that of an unwanted class. rule: the one that said so, if any did."""

    action: Action
    is_unwanted: bool
    spam_from: float = SPAM_FROM
    rule: Rule | None = None

    @property
    def to(self) -> str:
        """Address to redirect to."""
        return self.rule.to if self.rule else ""

    @property
    def subject_prefix(self) -> str:
        """What is put before the subject."""
        return self.rule.subject_prefix if self.rule else ""


def decide(found: Verdict, policy: Policy, spam_from: float) -> Decision:
    """What the first rule that fits says, else tagging. spam_from: the threshold by which it was judged."""
    is_unwanted = found.label != UNSURE and found.probability >= spam_from
    for rule in policy.rules:
        fits = rule.label == found.label or (rule.label == "spam" and is_unwanted)
        if fits and found.probability >= rule.from_probability:
            return Decision(rule.action, is_unwanted, spam_from, rule)
    return Decision(Action.TAG, is_unwanted, spam_from)


# ---- how it is told


def score(found: Verdict, spam_from: float = SPAM_FROM) -> float:
    """A number on SpamAssassin's scale: linear in the log-odds, 5.0 at the spam threshold; 0 when even, where that is the fixed one.

    Above 0 it is flatter where a message needs more than the fixed threshold: unsure mail stays near the border.
    """
    nats, needed, fixed = found.log_odds, logit(spam_from), logit(SPAM_FROM)
    if needed > fixed:
        return REQUIRED * nats / (needed if nats > 0 else fixed)
    return REQUIRED + (nats - needed) * REQUIRED / fixed


def told(found: Verdict, decision: Decision) -> float:
    """The score as everybody is told it: it never says anything else than the decision does, whatever is made of its digits."""
    points = score(found, decision.spam_from)
    return max(points, REQUIRED) if decision.is_unwanted else min(points, REQUIRED - 0.1)


def symbol(label: str) -> str:
    """What is named as the test that a message has met."""
    return "SPAMGUARD_" + label.upper().replace("-", "_")


VERDICT_FIELDS = (b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard", b"X-Spamguard-Probability")
"""The fields that `header_fields` writes; a message that already has one claims a verdict that it was not given here."""


def header_fields(found: Verdict, decision: Decision, signed: bytes, *, tell_probability: bool = False) -> list[bytes]:
    """The verdict as header fields, without line ends (grammar of X-Spam-Status: SpamAssassin's). signed: of `signature.sign`.

    `unsure` is a No with tests=SPAMGUARD_UNSURE. The probability itself is only told when asked for: it would be an oracle
    for spammers. Readers compare the score with what is required.
    """
    answer = b"Yes" if decision.is_unwanted else b"No"
    name = symbol(found.label).encode()
    status = b"X-Spam-Status: %s, score=%.1f required=%.1f tests=%s" % (answer, told(found, decision), REQUIRED, name)
    flag = [b"X-Spam-Flag: YES"] if decision.is_unwanted else []
    probability = [b"X-Spamguard-Probability: %.4f" % found.probability] if tell_probability else []
    return [*flag, status, b"X-Spamguard: " + signed, *probability]


def not_scanned(reason: str) -> list[bytes]:
    """Fields of a message that could not be judged: it is passed on all the same."""
    words = "".join(letter if letter.isalnum() else "-" for letter in reason).strip("-")[:60] or "error"
    return [b"X-Spamguard: not-scanned; reason=" + words.encode("ascii", "replace")]
