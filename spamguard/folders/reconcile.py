"""What people said by moving mail: from the sightings of before and what came and went since, lessons and the sightings of now. Pure.

Only what lies where counts, never what an event said: a move, a copy whose original is removed before or after, and a rename come
out the same, in whatever order the folders are looked at. A message that went without appearing elsewhere teaches nothing, but is
remembered, so that it may yet appear. Must never teach what nobody did: doubt (two classes at once) waits.

Copies of one delivered message, as far as our signature or the server that received it tells, are looked at together: a message that is
delivered twice is no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.folders.values import Arrival, Copy, Kind, Lesson, Role
from spamguard.settings import Action
from spamguard.signature import Signed

Key = tuple[str, int]
"""Folder, and `names.key` of the base name: a file of a mailbox."""

_HAM, _SPAM = "ham", "spam"


class Before(StrEnum):
    """Where a message was before it came into a folder."""

    ANOTHER_CLASS = "in a folder of another class, whatever lay between"
    SAME_CLASS = "in another folder of the same class"
    OUTSIDE = "in a neutral folder or trash, and in none of another class before that"
    FILED = "nowhere, and we filed it as spam"
    LEFT = "nowhere, and we did not file it as spam"
    HERE = "in this folder, or delivered twice"
    NOWHERE = "nowhere"


class Into(StrEnum):
    """What kind of folder it came into."""

    HAM = "ham: INBOX, Archive"
    UNWANTED = "an unwanted class: Junk"
    OTHER = "another class"
    OUTSIDE = "neutral or trash"


class Sign(StrEnum):
    """What people do to a message without moving it."""

    ANSWERED = "answered"
    FLAGGED = "flagged"
    READ = "read"
    KEYWORD = "keyword"


TEACHES: dict[tuple[Before, Into], str] = {
    (Before.ANOTHER_CLASS, Into.HAM): "moved from another class",
    (Before.ANOTHER_CLASS, Into.UNWANTED): "moved from another class",
    (Before.ANOTHER_CLASS, Into.OTHER): "moved from another class",
    (Before.SAME_CLASS, Into.HAM): "kept in another folder",
    (Before.OUTSIDE, Into.UNWANTED): "moved from a folder of no class",
    (Before.OUTSIDE, Into.OTHER): "moved from a folder of no class",
    (Before.FILED, Into.HAM): "we had filed it as spam",
    (Before.LEFT, Into.UNWANTED): "we had not filed it as spam",
}
"""What teaches the class of the folder that a message came into, and why. A pair that is missing teaches nothing and leaves the
lesson there was. A message that went from a folder teaches nothing; one that came into folders of two classes at once waits for one
of them to go. Ignored folders are not looked at: what lies there is nowhere."""

SIGNS: dict[Sign, str] = {
    Sign.ANSWERED: "answered it (`ham_evidence: {answered: true}`)",
    Sign.FLAGGED: "flagged it (`flagged: true`)",
    Sign.READ: "read it and left it there for so long (`read_after: 7d`)",
    Sign.KEYWORD: "gave it a keyword such as `$Junk` (`spam_evidence: [$Junk]`)",
}
"""What each is, for the manual."""

EVIDENCE: dict[tuple[Sign, Into], str] = {
    (Sign.ANSWERED, Into.HAM): _HAM,
    (Sign.FLAGGED, Into.HAM): _HAM,
    (Sign.READ, Into.HAM): _HAM,
    (Sign.KEYWORD, Into.HAM): _SPAM,
    (Sign.KEYWORD, Into.OTHER): _SPAM,
    (Sign.KEYWORD, Into.OUTSIDE): _SPAM,
}
"""What teaches which class where the operator asks for it, once, a message about which its user has never said anything. A pair that
is missing teaches nothing; so does the opposite, and what was there when the operator began to ask."""


class Rules(NamedTuple):
    """role: of a folder, by its directory. unwanted: names of classes.

    we_file: what we tag as spam, and nothing else, is put into Junk on delivery, by our next hop or by a Sieve rule on our header.
    filing: that was seen to work.
    """

    role: Callable[[str], Role]
    unwanted: Collection[str] = frozenset(("spam",))
    we_file: bool = False
    filing: bool = True


class Outcome(NamedTuple):
    """lessons: at most one for a digest, sorted. kept: sightings that are new or have changed. removed: those to be
    forgotten, as they were."""

    lessons: list[Lesson]
    kept: list[Copy]
    removed: list[Copy]


def compare(known: NDArray[np.int64], keys: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """What is new and what has gone in a folder: indices into `keys`, and keys of base names.

    known: keys of the base names that were there, sorted. keys: `names.key_of` of the files that are.
    """
    messages = np.flatnonzero(keys)
    present, first = np.unique(keys[messages], return_index=True)
    new = np.sort(messages[first[~among(present, known)]])
    return new.tolist(), known[~among(known, present)].tolist()


def among(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the values are known. known: sorted, which makes this three times as fast as `np.isin`."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    return np.equal(known[np.minimum(np.searchsorted(known, values), len(known) - 1)], values)


def reconcile(
    remembered: Iterable[Copy], arrivals: Iterable[Arrival], gone: Collection[Key], rules: Rules, now: int, *, first: bool = False
) -> Outcome:
    """What follows from one scan of some of a mailbox's folders; all its arrivals at once, as their order is not known.

    remembered: all sightings of the digests that came or went. gone: files that are no longer where they were; a set. now: seconds since
    1970. first: of the first scan of a mailbox, in which nothing moved. The order of what is given makes no difference, and giving
    it again with the outcome applied changes nothing.
    """
    lineages: dict[tuple[bytes, int], _Lineage] = {}
    known = set()
    for copy in remembered:
        known.add((copy.digest, copy.delivery))
        _lineage(lineages, rules, now, copy.digest, copy.delivery).remember(copy, gone)
    for arrival in arrivals:
        _lineage(lineages, rules, now, arrival.digest, _delivery(arrival, known)).arrive(arrival)
    for lineage in lineages.values():
        lineage.decide(first=first)
    return _outcome([lineage for _, lineage in sorted(lineages.items())])


def as_markdown() -> str:
    """The table of what teaches, for the manual."""
    head = ["It was", *(f"now in {into}" for into in Into)]
    rows = [[before, *(_cell(before, into) for into in Into)] for before in Before]
    rows += [[f"anywhere, and the user {SIGNS[sign]}", *(_sign_cell(sign, into) for into in Into)] for sign in Sign]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _cell(before: Before, into: Into) -> str:
    return f"teaches it: {TEACHES[before, into]}" if (before, into) in TEACHES else "–"


def _sign_cell(sign: Sign, into: Into) -> str:
    return f"teaches {EVIDENCE[sign, into]}, if nothing else was said" if (sign, into) in EVIDENCE else "–"


def target(rules: Rules, folder: str) -> Into:
    """What kind of folder it is."""
    label = _class(rules.role(folder))
    if label in rules.unwanted:
        return Into.UNWANTED
    return {"": Into.OUTSIDE, _HAM: Into.HAM}.get(label, Into.OTHER)


class _Lineage:
    """All copies of one delivered message in one mailbox."""

    def __init__(self, rules: Rules, now: int, digest: bytes, delivery: int) -> None:
        self._rules = rules
        self._now = now
        self._digest = digest
        self._delivery = delivery
        self._was: dict[Key, Copy] = {}
        self._is: dict[Key, Copy] = {}
        self._missed: set[Key] = set()  # went since the last scan
        self._new: dict[Key, Signed | None] = {}
        self.lessons: list[Lesson] = []

    def remember(self, copy: Copy, gone: Collection[Key]) -> None:
        key = (copy.folder, copy.name)
        self._was[key] = copy
        if key in gone and not copy.gone:
            self._missed.add(key)
            copy = copy._replace(gone=self._now)
        self._is[key] = copy

    def arrive(self, arrival: Arrival) -> None:
        key = (arrival.folder, arrival.name)
        if key not in self._is or self._is[key].gone:
            self._new[key] = arrival.signed

    def decide(self, *, first: bool) -> None:
        """What the new copies mean: where the message came from, and whether that teaches."""
        waited = {key for key, copy in self._is.items() if copy.waiting}
        if not self._new and not waited & self._missed:
            return
        for key in waited:
            self._is[key] = self._is[key]._replace(waiting=False)
        new = self._arrived() if self._new else [self._is.pop(key) for key in sorted(waited - self._missed)]
        undecided = self._digest != b"" and len({self._label(copy.folder) for copy in new} - {""}) > 1
        sources = [(copy, self._source(copy)) for copy in new]
        if not undecided:
            self._teach(sources, first=first)
            self._follow(sources)
        for copy, source in sources:
            kept = copy._replace(waiting=undecided and not first, origin=self._origin(copy, source))
            self._is[copy.folder, copy.name] = kept

    def changes(self) -> tuple[list[Copy], list[Copy]]:
        """Sightings to be kept, and those of which nothing is left to know."""
        here = {key: copy for key, copy in self._is.items() if copy.digest or not copy.gone}
        over = [copy for key, copy in sorted(self._was.items()) if key not in here]
        return [copy for key, copy in sorted(here.items()) if self._was.get(key) != copy], over

    def _arrived(self) -> list[Copy]:
        """Seen after all others, whatever the clock says."""
        seen = max([self._now, *(copy.seen + 1 for copy in self._was.values())])
        return [Copy(folder, name, self._digest, self._delivery, seen=seen) for folder, name in sorted(self._new)]

    def _source(self, copy: Copy) -> Copy | None:
        """What this is most likely a copy of: the same name, the end of a way, what has just gone. Only at last what lies beside it."""
        if not self._digest:
            return None
        elsewhere = [other for other in self._is.values() if other.gone or other.folder != copy.folder]
        return max(elsewhere or self._is.values(), key=lambda other: self._likeness(other, copy), default=None)

    def _likeness(self, other: Copy, copy: Copy) -> tuple[object, ...]:
        key = (other.folder, other.name)
        same_name = other.seen if other.name == copy.name else -1  # of several the last
        in_class = self._label(other.folder) != ""
        return same_name, not other.followed, key in self._missed, in_class, key

    def _teach(self, sources: Sequence[tuple[Copy, Copy | None]], *, first: bool) -> None:
        for copy, source in sources:
            if first and source:
                continue
            before = self._before(source, copy) if source else self._at_first(copy)
            why = TEACHES.get((before, target(self._rules, copy.folder)))
            if why is not None:
                self.lessons.append(Lesson(copy.digest, self._label(copy.folder), copy.folder, copy.name, why))

    def _before(self, source: Copy, copy: Copy) -> Before:
        came = self._label(source.folder) or self._label(source.origin)
        if came not in ("", self._label(copy.folder)):
            return Before.ANOTHER_CLASS
        if not self._label(source.folder):
            return Before.OUTSIDE
        return Before.HERE if source.folder == copy.folder else Before.SAME_CLASS

    def _at_first(self, copy: Copy) -> Before:
        """What our own action, if it is known, says about a first sight."""
        signed = self._new.get((copy.folder, copy.name))
        if signed is None or not self._rules.we_file:
            return Before.NOWHERE
        if signed.label not in self._rules.unwanted:
            return Before.LEFT
        return Before.FILED if signed.action is Action.TAG and self._rules.filing else Before.NOWHERE

    def _follow(self, sources: Sequence[tuple[Copy, Copy | None]]) -> None:
        """Sources that went are done with; of the others remember that they are not the end of the way."""
        for copy, source in sources:
            if source and source.gone:
                self._is.pop((source.folder, source.name), None)
            elif source and source.folder != copy.folder:
                self._is[source.folder, source.name] = source._replace(followed=True)

    def _origin(self, copy: Copy, source: Copy | None) -> str | None:
        if source is None or self._label(copy.folder):
            return None
        return source.folder if self._label(source.folder) else source.origin

    def _label(self, folder: str | None) -> str:
        """The class of a folder, empty if it has none."""
        return "" if folder is None else _class(self._rules.role(folder))


def _lineage(lineages: dict[tuple[bytes, int], _Lineage], rules: Rules, now: int, digest: bytes, delivery: int) -> _Lineage:
    if (digest, delivery) not in lineages:
        lineages[digest, delivery] = _Lineage(rules, now, digest, delivery)
    return lineages[digest, delivery]


def _outcome(lineages: Iterable[_Lineage]) -> Outcome:
    """A digest about which its copies say different things at once teaches nothing."""
    lessons: dict[bytes, dict[str, Lesson]] = {}
    kept: list[Copy] = []
    removed: list[Copy] = []
    for lineage in lineages:
        for lesson in lineage.lessons:
            lessons.setdefault(lesson.digest, {}).setdefault(lesson.label, lesson)
        changed, over = lineage.changes()
        kept += changed
        removed += over
    return Outcome([lesson for said in lessons.values() if len(said) == 1 for lesson in said.values()], kept, removed)


def _class(role: Role) -> str:
    return role.label if role.kind is Kind.CLASS else ""


def _delivery(arrival: Arrival, known: Collection[tuple[bytes, int]]) -> int:
    """Of the id of a judgement, which is never given twice; else of who received it, and when, unless it was remembered without that.

    known: digests and deliveries that are remembered.
    """
    if arrival.signed:
        return short_hash(arrival.signed.id.encode())
    without = (arrival.digest, arrival.received) not in known and (arrival.digest, 0) in known
    return 0 if without else arrival.received


def short_hash(delivery: bytes) -> int:
    """As deliveries are told apart by: `Copy.delivery`, `Arrival.received`."""
    return int.from_bytes(blake2b(delivery, digest_size=4).digest(), "big")
