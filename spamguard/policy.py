"""What to do about a verdict: its label, and the header fields that tell it. Pure: numbers in, words and bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

from spamguard.records import Verdict

UNSURE = "unsure"
# Where "unsure" ends, as probability of being unwanted (corpora/RESULTS.md, "Thresholds")
SPAM_FROM = 0.95
HAM_TO = 0.1
FEWEST_LESSONS = 3  # of each side, before any label but "unsure" is given (corpora/RESULTS.md, "Thresholds")
REQUIRED = 5.0  # score at the spam threshold, as SpamAssassin's readers expect


def verdict(probabilities: Mapping[str, float], log_odds: float, unwanted: frozenset[str], lessons: Mapping[str, int]) -> Verdict:
    """A verdict from each class's probability. log_odds: of being unwanted. lessons: how many each class has."""
    rarer = exp(-min(abs(log_odds), 700.0))  # odds of the side that is less likely: never overflows
    probability = (1.0 if log_odds >= 0 else rarer) / (1.0 + rarer)
    label = _label(probabilities, probability, unwanted, lessons)
    return Verdict(label, probability, log_odds, dict(probabilities))


def _label(probabilities: Mapping[str, float], probability: float, unwanted: frozenset[str], lessons: Mapping[str, int]) -> str:
    taught_bad = sum(count for name, count in lessons.items() if name in unwanted)
    taught_good = sum(lessons.values()) - taught_bad
    if min(taught_bad, taught_good) < FEWEST_LESSONS or HAM_TO < probability < SPAM_FROM:
        return UNSURE
    side = [name for name in probabilities if (name in unwanted) == (probability >= SPAM_FROM)]
    return max(side, key=lambda name: probabilities[name])


def distance(log_odds: float) -> float:
    """How far the log-odds would have to move to reach the nearest border to another label."""
    borders = [log(at / (1.0 - at)) for at in (HAM_TO, SPAM_FROM)]
    return min((border - log_odds for border in borders), key=abs)


def flips(parts: Iterable[float], away: float) -> int | None:
    """How many of these parts of the log-odds, in this order, must go before the rest has moved by `away`; None: all do not do it."""
    left = abs(away)
    for number, part in enumerate((part for part in parts if part * away < 0), start=1):
        left -= abs(part)
        if left <= 0:
            return number
    return None


def score(found: Verdict) -> float:
    """A number on SpamAssassin's scale: monotone in the log-odds, 0 when even, 5.0 at the spam threshold."""
    return REQUIRED * found.log_odds / log(SPAM_FROM / (1.0 - SPAM_FROM))


VERDICT_FIELDS = (b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard")
"""The fields that `header_fields` writes; a message that already has one claims a verdict that it was not given here."""


def header_fields(found: Verdict, *, is_unwanted: bool) -> list[bytes]:
    """The verdict as header fields, without line ends (grammar of X-Spam-Status: SpamAssassin's).

    `unsure` is a No with tests=SPAMGUARD_UNSURE. The probability itself is not told: it would be an oracle for spammers.
    Readers compare the score with what is required: it never says anything else than the answer does.
    """
    answer = b"Yes" if is_unwanted else b"No"
    told = score(found) if is_unwanted else min(score(found), REQUIRED - 0.1)
    name = found.label.upper().replace("-", "_").encode()
    status = b"%s, score=%.1f required=%.1f tests=SPAMGUARD_%s" % (answer, told, REQUIRED, name)
    flag = [b"X-Spam-Flag: YES"] if is_unwanted else []
    return [*flag, b"X-Spam-Status: " + status, b"X-Spamguard: " + found.label.encode()]


def not_scanned(reason: str) -> list[bytes]:
    """Fields of a message that could not be judged: it is passed on all the same."""
    words = "".join(letter if letter.isalnum() else "-" for letter in reason).strip("-")[:60] or "error"
    return [b"X-Spamguard: not-scanned; reason=" + words.encode("ascii", "replace")]
