"""From numbers to words: label, threshold, action, and the header fields that carry the verdict.

Pure: numbers in, words and bytes out.

A message is labelled `spam` or `ham` (or by a further class of the likelier side) only when its
probability is beyond a threshold and both sides have been taught; else it is `unsure`. Caution
raises the threshold of spam while few good messages are known (`required_probability`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import accumulate
from math import exp, inf, log, log1p
from typing import TYPE_CHECKING, NamedTuple

from spamguard.config.options import Action, Policy, Rule
from spamguard.records import Flip, Verdict

if TYPE_CHECKING:
    from spamguard.bayes.experts import ExpertParameters

UNSURE = "unsure"
# Where "unsure" ends, as probability of being unwanted, and how many lessons of each side any other
# label needs (corpora/RESULTS.md, "Thresholds").
SPAM_THRESHOLD = Policy().spam_threshold
HAM_THRESHOLD = 0.1
MIN_LESSONS = 3
# With fewer good messages, taught or judged and never complained of, some spam stays unsure ("The
# first days"). With fewer good lessons and more than so many unwanted ones for each, most good mail
# does (corpora/RESULTS.md, "People who only move").
ENOUGH_HAM, _MAX_SPAM_PER_HAM = 500, 3
_MAX_LOG_ODDS = 1000.0  # nats; maximum likelihood may be infinitely sure, JSON may not
REQUIRED_SCORE = 5.0  # score at the spam threshold, as in SpamAssassin


# ---- verdicts and labels


def make_verdict(
    parameters: ExpertParameters,
    joint: list[float],
    spam_from: float = SPAM_THRESHOLD,
    nats: int = 0,
) -> Verdict:
    """The verdict by unnormalised log-probabilities of the classes, in the order of the tables.

    What else is known adds `nats` to the log-odds.
    """
    tables, sides = parameters.tables, parameters.sides
    if max(joint) == -inf:  # every class is impossible: only the prior says anything
        joint = [log(count + 1) for count in tables.messages.tolist()]
    if nats:
        joint = [value + nats * (at in sides.unwanted) for at, value in enumerate(joint)]
    by_side = [_log_sum([joint[at] for at in side]) for side in sides] if joint[2:] else joint
    log_odds = min(max(by_side[1] - by_side[0], -_MAX_LOG_ODDS), _MAX_LOG_ODDS)
    rarer = exp(-min(abs(log_odds), 700.0))  # odds of the side that is less likely: never overflows
    probability = (1.0 if log_odds >= 0 else rarer) / (1.0 + rarer)
    label, is_spam = UNSURE, probability >= spam_from
    if (is_spam or probability <= HAM_THRESHOLD) and parameters.fewest >= MIN_LESSONS:
        side = sides.unwanted if is_spam else sides.wanted
        label = tables.classes[max(side, key=joint.__getitem__)]
    total = _log_sum(joint)
    probabilities = zip(tables.classes, [exp(value - total) for value in joint], strict=True)
    return Verdict(label, probability, log_odds, dict(probabilities))


def _log_sum(values: list[float]) -> float:
    """log of the sum of exp(values); faster than an array for one or two, the usual case."""
    highest = max(values)
    if highest == -inf or len(values) == 1:
        return highest
    return highest + log(sum([exp(value - highest) for value in values]))


def likeliest_sides(verdict: Verdict, unwanted: frozenset[str]) -> tuple[str, str]:
    """The likeliest unwanted class and the likeliest wanted one."""
    names, likelihood = verdict.probabilities, verdict.probabilities.__getitem__
    bad = max((name for name in names if name in unwanted), key=likelihood)
    return bad, max((name for name in names if name not in unwanted), key=likelihood)


def unwanted_classes(classes: Mapping[str, bool]) -> frozenset[str]:
    """Names of the unwanted classes, from whether each one is; spam always is."""
    return frozenset({"spam", *(name for name, unwanted in classes.items() if unwanted)})


def missing_lessons(lessons: Mapping[str, int], unwanted: Set[str], stayed: int) -> str:
    """Why much mail is unsure for want of lessons, in a few words; empty if it is not.

    Beside the lessons, `stayed` messages were judged to be ham and nobody complained.
    """
    bad = sum([count for name, count in lessons.items() if name in unwanted])
    good = sum(lessons.values()) - bad
    if min(good, bad) < MIN_LESSONS:
        return (
            f"everything is unsure until {MIN_LESSONS} good messages and {MIN_LESSONS} "
            "unwanted ones have been taught"
        )
    if good < ENOUGH_HAM and bad > _MAX_SPAM_PER_HAM * good:
        return (
            f"much good mail is unsure: {good:,} good messages have been taught beside "
            f"{bad:,} unwanted ones"
        )
    if good + stayed < ENOUGH_HAM:
        return (
            f"only plain spam is called spam, the rest is unsure: {good + stayed:,} of "
            f"{ENOUGH_HAM} good messages are known (taught, or delivered without complaint)"
        )
    return ""


def logit(probability: float) -> float:
    """Log-odds of a probability between 0 and 1, both excluded."""
    return log(probability) - log1p(-probability)


def find_flip(
    verdict: Verdict, sides: tuple[str, str], parts: Iterable[float], spam_from: float
) -> Flip | None:
    """How few of the parts, in this order, would have to go for the nearest other label.

    Sides are the likeliest unwanted class and the likeliest wanted one.

    >>> find_flip(Verdict("spam", 0.98, 4.0, {}), ("spam", "ham"), [2.5, -1.0, 1.0], 0.9)
    Flip(words=1, speaking_for='spam', label='unsure')
    """
    borders = logit(HAM_THRESHOLD), logit(spam_from)
    distance = min((border - verdict.log_odds for border in borders), key=abs)
    speaking_for, beyond = sides if distance < 0 else sides[::-1]
    gone = accumulate(abs(part) for part in parts if part * distance < 0)
    for number, moved in enumerate(gone, 1):
        if moved > abs(distance):
            return Flip(number, speaking_for, beyond if verdict.label == UNSURE else UNSURE)
    return None


# ---- the first days

_MAX_THRESHOLD = 1 - 1e-9  # some mail always can be called spam
# Tuned on frozen filters: corpora/RESULTS.md, "The first days".
_FEW_HAM_NATS = 50.0  # divided by the number of good messages
_UNKNOWN_NATS = 45.0  # for a message of which nothing is known, a quarter where half is
_TEXT_FACTOR = 2.0  # nats for each nat by which the text says less for spam than _CLEAR_TEXT_NATS
_CLEAR_TEXT_NATS = 3.0


def required_probability(good: int, confidence: float, text: float, unknown: float) -> float:
    """Probability from which on a message is called spam while little good mail is known.

    Log-odds compare a message with what was taught. A good message of a kind that was never taught
    looks more like spam than like any good mail. With n good messages, of few senders, no error
    below about 1/n can be claimed, whatever the log-odds say. And a message is no spam for lack of
    ham: its text must speak for spam, and much of it must be known. That fades until ENOUGH_HAM
    good messages have been taught, or were judged to be ham and nobody complained.

    Parameters
    ----------
    good
        How many these are.
    confidence
        That of `bayes.experts.ExpertParameters`, which holds the log-odds back as well.
    text
        Log-odds of spam by its words, in nats.
    unknown
        Share, in [0, 1], of its words, header fields, hosts and structure that no lesson has.

    >>> round(required_probability(100, 0.97, text=1.0, unknown=0.3), 5)
    0.99919
    """
    lacking = _UNKNOWN_NATS * unknown**2 + _TEXT_FACTOR * max(_CLEAR_TEXT_NATS - text, 0.0)
    few = logit(SPAM_THRESHOLD) + _FEW_HAM_NATS / max(good, 1)
    weight = confidence**4 * (1 - (good / ENOUGH_HAM) ** 4)
    return min(1.0 / (1.0 + exp(-max(few, weight * lacking))), _MAX_THRESHOLD)


# ---- actions


class Decision(NamedTuple):
    """What is done with a message."""

    action: Action
    is_unwanted: bool  # its label is that of an unwanted class
    spam_from: float = SPAM_THRESHOLD
    rule: Rule | None = None  # that decided, if any did

    @property
    def to(self) -> str:
        """Address to redirect to."""
        return self.rule.to if self.rule else ""

    @property
    def subject_prefix(self) -> str:
        """Text to put before the subject."""
        return self.rule.subject_prefix if self.rule else ""


def decide(verdict: Verdict, policy: Policy, spam_from: float) -> Decision:
    """The action of the first rule that fits, else tagging, by the threshold of the verdict."""
    is_unwanted = verdict.label != UNSURE and verdict.probability >= spam_from
    for rule in policy.rules:
        fits = rule.when == verdict.label or (rule.when == "spam" and is_unwanted)
        if fits and verdict.probability >= rule.from_probability:
            return Decision(rule.action, is_unwanted, spam_from, rule)
    return Decision(Action.TAG, is_unwanted, spam_from)


# ---- scores and header fields


def spam_score(verdict: Verdict, spam_from: float) -> float:
    """A number on SpamAssassin's scale: linear in the log-odds, 5.0 at the spam threshold.

    Where that is the fixed one, even odds give 0. Where a message needs more, the score is flatter
    above 0: unsure mail stays near the border.
    """
    nats, required, fixed = verdict.log_odds, logit(spam_from), logit(SPAM_THRESHOLD)
    if required > fixed:
        return REQUIRED_SCORE * nats / (required if nats > 0 else fixed)
    return REQUIRED_SCORE + (nats - required) * REQUIRED_SCORE / fixed


def reported_score(verdict: Verdict, decision: Decision) -> float:
    """The score as it is reported: in all its digits on the same side as the decision."""
    points = spam_score(verdict, decision.spam_from)
    if decision.is_unwanted:
        return max(points, REQUIRED_SCORE)
    return min(points, REQUIRED_SCORE - 0.1)


def symbol_name(label: str) -> str:
    """The name of the test that a message has met, as SpamAssassin writes names.

    >>> symbol_name("bulk-mail")
    'SPAMGUARD_BULK_MAIL'
    """
    return "SPAMGUARD_" + label.upper().replace("-", "_")


VERDICT_FIELDS = (b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard", b"X-Spamguard-Probability")
"""The fields of `header_fields`. In mail that arrives they are forged."""


def header_fields(
    verdict: Verdict, decision: Decision, signature: bytes, *, tell_probability: bool = False
) -> list[bytes]:
    """The verdict as header fields, without line ends (grammar of X-Spam-Status: SpamAssassin's).

    `unsure` is a No with tests=SPAMGUARD_UNSURE. The probability itself is added only on demand,
    because spammers could use it as an oracle; readers compare the score with the required one.
    """
    status = b"X-Spam-Status: %s, score=%.1f required=%.1f tests=%s" % (
        b"Yes" if decision.is_unwanted else b"No",
        reported_score(verdict, decision),
        REQUIRED_SCORE,
        symbol_name(verdict.label).encode(),
    )
    fields = [b"X-Spam-Flag: YES"] if decision.is_unwanted else []
    fields += [status, b"X-Spamguard: " + signature]
    if tell_probability:
        fields.append(b"X-Spamguard-Probability: %.4f" % verdict.probability)
    return fields


def released_fields(name: str) -> list[bytes]:
    """Fields of a message that was held, with this id, until a person said that it is ham."""
    status = b"X-Spam-Status: No, score=0.0 required=%.1f tests=SPAMGUARD_RELEASED" % REQUIRED_SCORE
    return [status, b"X-Spamguard: ham; id=%s; by=person" % name.encode()]


def not_scanned_fields(reason: str) -> list[bytes]:
    """Fields of a message that could not be judged and is passed on all the same."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in reason)
    words = letters.strip("-")[:60] or "error"
    return [b"X-Spamguard: not-scanned; reason=" + words.encode("ascii", "replace")]
