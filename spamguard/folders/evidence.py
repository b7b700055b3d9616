"""What the flags and keywords of a message say about it, where the operator asks for such evidence. Pure.

People set flags for many reasons, and mail programs by themselves: so nothing here counts unless it is asked for, and contradictory
evidence says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spamguard.folders.teaches import EVIDENCE, Into, Sign
from spamguard.settings import Watch

_FLAGS = {"R": Sign.ANSWERED, "F": Sign.FLAGGED, "S": Sign.READ}
_DELETED = "T"
_NO_JUNK = frozenset(("nonjunk", "$notjunk", "notjunk"))  # what says the opposite of $Junk, folded


class Asked(NamedTuple):
    """Which evidence counts. read_after: seconds. keywords: folded."""

    signs: frozenset[Sign] = frozenset()
    read_after: float = 0.0
    keywords: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """All of it in one line, to see that it is what it was."""
        return " ".join((*sorted(self.signs), f"{self.read_after:g}", *sorted(self.keywords)))

    def counts(self, into: Into) -> bool:
        """Whether any of it may say anything in a folder of this kind."""
        return any((sign, into) in EVIDENCE for sign in self.signs)


def asked(watch: Watch) -> Asked:
    """By an entry of `watch:`."""
    ham, keywords = watch.ham_evidence, frozenset(keyword.casefold() for keyword in watch.spam_evidence)
    chosen = {
        Sign.ANSWERED: ham.answered,
        Sign.FLAGGED: ham.flagged,
        Sign.READ: ham.read_after_seconds is not None,
        Sign.KEYWORD: bool(keywords),
    }
    return Asked(frozenset(sign for sign, counts in chosen.items() if counts), ham.read_after_seconds or 0.0, keywords)


def signs(flags: str, names: Mapping[str, str], what: Asked) -> frozenset[Sign]:
    """Those that count. flags: of a file's name. names: the folder's keywords, by their letters."""
    found = {_FLAGS[letter] for letter in flags if letter in _FLAGS}
    if _DELETED in flags:
        found.discard(Sign.READ)  # nobody left it there: some programs only strike through what is deleted
    given = {names[letter].casefold() for letter in flags if letter in names}
    if given & what.keywords and not given & _NO_JUNK:
        found.add(Sign.KEYWORD)
    return what.signs & found


def says(found: Collection[Sign], into: Into) -> tuple[Sign, str] | None:
    """The sign that counts and the class it names; None: nothing. Reading is the weakest, as people read what they then mark."""
    told = [(sign, EVIDENCE[sign, into]) for sign in Sign if sign in found and (sign, into) in EVIDENCE]
    strong = [one for one in told if one[0] is not Sign.READ] or told
    return strong[0] if len({label for _, label in strong}) == 1 else None
