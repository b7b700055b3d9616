"""An explanation as people are told it, on a terminal or a page: the words worth showing, figures that add up, the way to another label.

Must never let what is told sum to anything else than the score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `--help` must not wait for numpy
    from spamguard.records import Clue, Explanation

OTHERS = "all other words"
"""Their sum would dwarf every bar: it has none."""
STEPS = 1000  # parts are told in thousandths


def strongest(why: Explanation, words: int) -> tuple[Sequence[Clue], float]:
    """The strongest words each way whose text is known, strongest first, and the sum of all others."""
    up = [clue for clue in why.clues if clue.part > 0 and clue.text][:words]
    down = [clue for clue in why.clues if clue.part < 0 and clue.text][:words]
    shown = sorted((*up, *down), key=lambda clue: -abs(clue.part))
    return shown, sum(clue.part for clue in why.clues) - sum(clue.part for clue in shown)


def rounded(parts: Iterable[float], whole: float) -> list[int]:
    """Parts in thousandths that sum to the whole in thousandths: rounding is put right in the largest. At least one part."""
    steps = [round(part * STEPS) for part in parts]
    largest = max(range(len(steps)), key=lambda at: abs(steps[at]))
    steps[largest] += round(whole * STEPS) - sum(steps)
    return steps


def asked(why: Explanation, named: Callable[[str], str] = str) -> str:
    """Of what the log-odds are: with more than two classes, of both sides as wholes. named: what people call a class."""
    pair = f"{named(why.favoured)} against {named(why.against)}"
    return pair if len(why.verdict.probabilities) == 2 else f"unwanted mail against wanted, most likely {pair}"


def flip(why: Explanation) -> str:
    """What would have to go for another label, in one sentence."""
    if why.few:
        return "no words would change it: everything is unsure while so little has been taught"
    way = "fall" if why.to_threshold < 0 else "rise"
    caution = ""
    if why.spam_from is not None:
        caution = f"little good mail is known yet, so this message is called spam from {why.spam_from:+.3f} on; "
    distance = f"{caution}for another label the log-odds would have to {way} by {abs(why.to_threshold):.3f}: "
    if why.flip is None:
        return distance + "its words alone do not keep it from that"
    words = "strongest word" if why.flip == 1 else f"{why.flip:,} strongest words"
    return distance + f"without its {words} {'for' if way == 'fall' else 'against'} {why.favoured} they would"
