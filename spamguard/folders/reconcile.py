"""What people said by moving mail: from the sightings of before and what came and went since, lessons and the sightings of now. Pure.

Only what lies where counts, never what an event said: a move, a copy whose original is removed before or after, and a rename come
out the same, in whatever order the folders are looked at. A message that went without appearing elsewhere teaches nothing, but is
remembered, so that it may yet appear. Must never teach what nobody did: doubt (two classes at once) waits.

Copies of one delivered message, as far as our signature or the server that received it tells, are looked at together: a message that is
delivered twice is no copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.folders.teaches import HAM, TEACHES, Before, Into
from spamguard.folders.values import Arrival, Copy, Key, Lesson, Role
from spamguard.settings import Action


class Rules(NamedTuple):
    """role: of a folder, by its directory. unwanted: names of classes.

    we_file: what we tag as spam, and nothing else, is put into Junk on delivery, by our next hop or by a Sieve rule on our header.
    filing: that was seen to work.
    """

    role: Callable[[str], Role]
    unwanted: Collection[str] = frozenset(("spam",))
    we_file: bool = False
    filing: bool = True

    def label(self, folder: str | None) -> str:
        """The class of a folder, empty if it has none."""
        return "" if folder is None else self.role(folder).label

    def into(self, folder: str) -> Into:
        """What kind of folder it is."""
        label = self.label(folder)
        if label in self.unwanted:
            return Into.UNWANTED
        return {"": Into.OUTSIDE, HAM: Into.HAM}.get(label, Into.OTHER)


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
    copies: defaultdict[tuple[bytes, int], list[Copy]] = defaultdict(list)  # of each delivered message, as everywhere below
    for copy in remembered:
        copies[copy.digest, copy.delivery].append(copy)
    came: defaultdict[tuple[bytes, int], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        came[arrival.digest, _delivery(arrival, copies)].append(arrival)
    delivered = sorted(copies.keys() | came.keys())
    lineages = [_Lineage(rules, now, message, copies[message], came[message], gone) for message in delivered]
    for lineage in lineages:
        lineage.decide(first=first)
    return _outcome(lineages)


class _Lineage:
    """All copies of one delivered message in one mailbox."""

    def __init__(
        self, rules: Rules, now: int, message: tuple[bytes, int], copies: Iterable[Copy], came: Iterable[Arrival], gone: Collection[Key]
    ) -> None:
        """message: digest and delivery."""
        self._rules = rules
        self._now = now
        self._digest, self._delivery = message
        self._was = {copy.key: copy for copy in copies}
        self._missed = {key for key, copy in self._was.items() if key in gone and not copy.gone}  # went since the last scan
        self._is = {key: copy._replace(gone=now) if key in self._missed else copy for key, copy in self._was.items()}
        here = {key for key, copy in self._is.items() if not copy.gone}
        self._new = {arrival.key: arrival.signed for arrival in came if arrival.key not in here}
        self.lessons: list[Lesson] = []

    def decide(self, *, first: bool) -> None:
        """What the new copies mean: where the message came from, and whether that teaches."""
        waited = {key for key, copy in self._is.items() if copy.waiting}
        if not self._new and not waited & self._missed:
            return
        for key in waited:
            self._is[key] = self._is[key]._replace(waiting=False)
        new = self._arrived() if self._new else [self._is.pop(key) for key in sorted(waited - self._missed)]
        undecided = self._digest != b"" and len({self._rules.label(copy.folder) for copy in new} - {""}) > 1
        sources = list(zip(new, self._sources(new), strict=True))
        if not undecided:
            self._teach(sources, first=first)
            self._follow(sources)
        for copy, source in sources:
            self._is[copy.key] = copy._replace(waiting=undecided and not first, origin=self._origin(copy, source))

    def changes(self) -> tuple[list[Copy], list[Copy]]:
        """Sightings to be kept, and those of which nothing is left to know."""
        here = {key: copy for key, copy in self._is.items() if copy.digest or not copy.gone}
        over = [copy for key, copy in sorted(self._was.items()) if key not in here]
        return [copy for key, copy in sorted(here.items()) if self._was.get(key) != copy], over

    def _arrived(self) -> list[Copy]:
        """Seen after all others, whatever the clock says."""
        seen = max([self._now, *(copy.seen + 1 for copy in self._was.values())])
        return [Copy(folder, name, self._digest, self._delivery, seen=seen) for folder, name in sorted(self._new)]

    def _sources(self, new: Iterable[Copy]) -> Iterator[Copy | None]:
        """What each new copy is most likely a copy of, None for the first of a message.

        Best a copy of the same file name elsewhere, seen last; else by `_likeness` one from another folder; only then one from the same.
        The likeliest is looked for once for each folder, not for each copy: somebody may have 100,000 copies of a message.
        """
        others = sorted(self._is.values(), key=self._likeness, reverse=True) if self._digest else []
        named: defaultdict[int, list[Copy]] = defaultdict(list)
        for other in others:
            named[other.name].append(other)
        likeliest: dict[str, Copy | None] = {}
        for copy in new:
            if copy.folder not in likeliest:
                likeliest[copy.folder] = next(_elsewhere(others, copy.folder), others[0] if others else None)
            yield max(_elsewhere(named.get(copy.name, ()), copy.folder), key=attrgetter("seen"), default=likeliest[copy.folder])

    def _likeness(self, copy: Copy) -> tuple[object, ...]:
        """Greater is likelier: not copied from before, gone since the last look, seen last, in a folder of a class; the key only
        decides ties.

        A move may be seen in two looks, as gone in one and as new in the next. Then the copy that was seen last is where it came from.
        """
        return not copy.followed, copy.key in self._missed, copy.seen, self._rules.label(copy.folder) != "", copy.key

    def _teach(self, sources: Sequence[tuple[Copy, Copy | None]], *, first: bool) -> None:
        for copy, source in sources:
            if first and source:
                continue
            before = self._before(source, copy) if source else self._at_first(copy)
            why = TEACHES.get((before, self._rules.into(copy.folder)))
            if why is not None:
                self.lessons.append(Lesson(copy.digest, self._rules.label(copy.folder), copy.folder, copy.name, why))

    def _before(self, source: Copy, copy: Copy) -> Before:
        came = self._rules.label(source.folder) or self._rules.label(source.origin)
        if came not in ("", self._rules.label(copy.folder)):
            return Before.ANOTHER_CLASS
        if not self._rules.label(source.folder):
            return Before.OUTSIDE
        return Before.HERE if source.folder == copy.folder else Before.SAME_CLASS

    def _at_first(self, copy: Copy) -> Before:
        """What our own action, if it is known, says about a first sight."""
        signed = self._new.get(copy.key)
        if signed is None or not self._rules.we_file:
            return Before.NOWHERE
        if signed.label not in self._rules.unwanted:
            return Before.LEFT
        return Before.FILED if signed.action is Action.TAG and self._rules.filing else Before.NOWHERE

    def _follow(self, sources: Sequence[tuple[Copy, Copy | None]]) -> None:
        """A source that has gone was moved: forget it. One that stays was copied: the next copy is likelier one of the new copy."""
        for copy, source in sources:
            if source and source.gone:
                self._is.pop(source.key, None)
            elif source and source.folder != copy.folder:
                self._is[source.key] = source._replace(followed=True)

    def _origin(self, copy: Copy, source: Copy | None) -> str | None:
        if source is None or self._rules.label(copy.folder):
            return None
        return source.folder if self._rules.label(source.folder) else source.origin


def _elsewhere(copies: Iterable[Copy], folder: str) -> Iterator[Copy]:
    """Those that do not lie in a folder."""
    return (copy for copy in copies if copy.gone or copy.folder != folder)


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
