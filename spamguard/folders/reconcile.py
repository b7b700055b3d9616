"""What teaches: by where a message was and where it came, and by what was done to it. Tables, which
the manual shows as they are.

What people said by moving mail: from the sightings of before and what came and went since, lessons
and the sightings of now. Pure.

Only what lies where counts, never what an event said: a move, a copy whose original is removed
before or after, and a rename come out the same, in whatever order the folders are looked at. A
message that went without appearing elsewhere teaches nothing, but is remembered, so that it may yet
appear. Must never teach what nobody did: doubt (two classes at once) waits.

Copies of one delivered message, as far as our signature or the server that received it tells, are
looked at together: a message that is delivered twice is no copy.

Whether what we call spam really is put into Junk on delivery, as `we_file` says. Pure.

Where it is not, all spam would pass for what a person has taken out of Junk. So that is believed of
what is first seen in INBOX only as long as most of it is first seen in Junk.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from spamguard.config.options import Action
from spamguard.folders.mailboxes import Role, display_folder
from spamguard.keys import SignedVerdict

HAM_LABEL, _SPAM_LABEL = "ham", "spam"


FileKey = tuple[str, int]
"""Folder, and `names.key` of the base name: a file of a mailbox."""


class Arrival(NamedTuple):
    """A file that was not there before. name: `names.key` of its base name. digest: of the message,
    empty when it cannot be read.

    signed: what we once said about it, if a valid signature tells. received: short hash of the
    topmost Received field, 0 without one.
    """

    folder: str
    name: int
    digest: bytes
    signed: SignedVerdict | None = None
    received: int = 0

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name


class Sighting(NamedTuple):
    """What is remembered of one file of one mailbox: a sighting.

    delivery: short hash of the id of our judgement, else of the topmost Received field, 0 without
    either: copies of one delivered message have it in common. origin: a folder without a class: the
    folder of a class the message was in before; None when there was none. waiting: came together
    with another into folders of two classes; nothing was decided yet. followed: it was copied to
    another folder while it stayed. seen: when it was found, gone: when it was missed, 0 while it is
    there; both in seconds since 1970, except that what was seen later always has the greater
    number, even if the clock went back.
    """

    folder: str
    name: int
    digest: bytes
    delivery: int = 0
    origin: str | None = None
    waiting: bool = False
    followed: bool = False
    seen: int = 0
    gone: int = 0

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name


class FolderLesson(NamedTuple):
    """What a person said by putting a message into a folder. name: as of `Copy`. why: in words, for
    people. evidence: its kind, if it was not moved.
    """

    digest: bytes
    label: str
    folder: str
    name: int
    why: str
    evidence: str = ""

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name


class MoveSource(StrEnum):
    """Where a message was before it came into a folder."""

    ANOTHER_CLASS = "in a folder of another class, whatever lay between"
    SAME_CLASS = "in another folder of the same class"
    NO_CLASS = "in a neutral folder or trash, and in none of another class before that"
    FILED_AS_SPAM = "nowhere, and we filed it as spam"
    NOT_FILED = "nowhere, and we did not file it as spam"
    SAME_FOLDER = "in this folder, or delivered twice"
    UNKNOWN = "nowhere"


class MoveTarget(StrEnum):
    """What kind of folder it came into."""

    HAM = "ham: INBOX, Archive"
    UNWANTED = "an unwanted class: Junk"
    OTHER_CLASS = "another class"
    NO_CLASS = "neutral or trash"


class EvidenceSign(StrEnum):
    """What people do to a message without moving it."""

    ANSWERED = "answered"
    FLAGGED = "flagged"
    READ = "read"
    KEYWORD = "keyword"


MOVE_LESSONS: dict[tuple[MoveSource, MoveTarget], str] = {
    (MoveSource.ANOTHER_CLASS, MoveTarget.HAM): "moved from another class",
    (MoveSource.ANOTHER_CLASS, MoveTarget.UNWANTED): "moved from another class",
    (MoveSource.ANOTHER_CLASS, MoveTarget.OTHER_CLASS): "moved from another class",
    (MoveSource.SAME_CLASS, MoveTarget.HAM): "kept in another folder",
    (MoveSource.NO_CLASS, MoveTarget.UNWANTED): "moved from a folder of no class",
    (MoveSource.NO_CLASS, MoveTarget.OTHER_CLASS): "moved from a folder of no class",
    (MoveSource.FILED_AS_SPAM, MoveTarget.HAM): "we had filed it as spam",
    (MoveSource.NOT_FILED, MoveTarget.UNWANTED): "we had not filed it as spam",
}
"""What teaches the class of the folder that a message came into, and why. A pair that is missing
teaches nothing and leaves the lesson there was. A message that went from a folder teaches nothing;
one that came into folders of two classes at once waits for one of them to go. Ignored folders are
not looked at: what lies there is nowhere.
"""

EVIDENCE_LABELS: dict[tuple[EvidenceSign, MoveTarget], str] = {
    (EvidenceSign.ANSWERED, MoveTarget.HAM): HAM_LABEL,
    (EvidenceSign.FLAGGED, MoveTarget.HAM): HAM_LABEL,
    (EvidenceSign.READ, MoveTarget.HAM): HAM_LABEL,
    (EvidenceSign.KEYWORD, MoveTarget.HAM): _SPAM_LABEL,
    (EvidenceSign.KEYWORD, MoveTarget.OTHER_CLASS): _SPAM_LABEL,
    (EvidenceSign.KEYWORD, MoveTarget.NO_CLASS): _SPAM_LABEL,
}
"""What teaches which class where the operator asks for it, once, a message about which its user has
never said anything. A pair that is missing teaches nothing; so does the opposite, and what was
there when the operator began to ask.
"""


class ReconcileRules(NamedTuple):
    """role: of a folder, by its directory. unwanted: names of classes.

    we_file: what we tag as spam, and nothing else, is put into Junk on delivery, by our next hop or
    by a Sieve rule on our header. filing: that was seen to work.
    """

    role_of: Callable[[str], Role]
    unwanted: Collection[str] = frozenset(("spam",))
    we_file: bool = False
    filing_works: bool = True

    def label(self, folder: str | None) -> str:
        """The class of a folder, empty if it has none."""
        return "" if folder is None else self.role_of(folder).label

    def target(self, folder: str) -> MoveTarget:
        """What kind of folder it is."""
        label = self.label(folder)
        if label in self.unwanted:
            return MoveTarget.UNWANTED
        return {"": MoveTarget.NO_CLASS, HAM_LABEL: MoveTarget.HAM}.get(
            label, MoveTarget.OTHER_CLASS
        )

    def first_source(self, signed: SignedVerdict | None) -> MoveSource:
        """Where a message comes from that is seen for the first time."""
        if signed is None or not self.we_file:
            return MoveSource.UNKNOWN
        if signed.label not in self.unwanted:
            return MoveSource.NOT_FILED
        is_filed = signed.action is Action.TAG and self.filing_works
        return MoveSource.FILED_AS_SPAM if is_filed else MoveSource.UNKNOWN

    def may_teach(self, arrival: Arrival, *, was_sighted: bool) -> bool:
        """Whether an arrival may become a lesson, as far as it can be told from it alone.

        A wrong answer costs time and changes nothing. was_sighted: the mailbox has, or had, this
        message.
        """
        sources = MoveSource if was_sighted else (self.first_source(arrival.signed),)
        target = self.target(arrival.folder)
        return any((source, target) in MOVE_LESSONS for source in sources)


class Reconciliation(NamedTuple):
    """lessons: at most one for a digest, sorted. kept: sightings that are new or have changed.
    removed: those to be forgotten, as they were.
    """

    lessons: list[FolderLesson]
    updated: list[Sighting]
    removed: list[Sighting]


def reconcile(
    remembered: Iterable[Sighting],
    arrivals: Iterable[Arrival],
    gone: Collection[FileKey],
    rules: ReconcileRules,
    now: int,
    *,
    first: bool = False,
) -> Reconciliation:
    """What follows from one scan of some of a mailbox's folders; all its arrivals at once, as their
    order is not known.

    remembered: all sightings of the digests that came or went. gone: files that are no longer where they were; a set. now: seconds since
    1970. first: of the first scan of a mailbox, in which nothing moved. The order of what is given makes no difference, and giving
    it again with the outcome applied changes nothing.
    """
    copies: defaultdict[tuple[bytes, int], list[Sighting]] = defaultdict(
        list
    )  # of each delivered message, as everywhere below
    for copy in remembered:
        copies[copy.digest, copy.delivery].append(copy)
    came: defaultdict[tuple[bytes, int], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        came[arrival.digest, _delivery_hash(arrival, copies)].append(arrival)
    delivered = sorted(copies.keys() | came.keys())
    lineages = [
        _Lineage(rules, now, message, copies[message], came[message], gone) for message in delivered
    ]
    for lineage in lineages:
        lineage.decide(first=first)
    return _collect_outcome(lineages)


class _Lineage:
    """All copies of one delivered message in one mailbox."""

    def __init__(
        self,
        rules: ReconcileRules,
        now: int,
        message: tuple[bytes, int],
        copies: Iterable[Sighting],
        came: Iterable[Arrival],
        gone: Collection[FileKey],
    ) -> None:
        """message: digest and delivery."""
        self._rules = rules
        self._now = now
        self._digest, self._delivery = message
        self._old = {copy.key: copy for copy in copies}
        self._newly_gone = {
            key for key, copy in self._old.items() if key in gone and not copy.gone
        }  # went since the last scan
        self._current = {
            key: copy._replace(gone=now) if key in self._newly_gone else copy
            for key, copy in self._old.items()
        }
        here = {key for key, copy in self._current.items() if not copy.gone}
        self._new = {arrival.key: arrival.signed for arrival in came if arrival.key not in here}
        self.lessons: list[FolderLesson] = []

    def decide(self, *, first: bool) -> None:
        """What the new copies mean: where the message came from, and whether that teaches."""
        waited = {key for key, copy in self._current.items() if copy.waiting}
        if not self._new and not waited & self._newly_gone:
            return
        for key in waited:
            self._current[key] = self._current[key]._replace(waiting=False)
        new = (
            self._new_sightings()
            if self._new
            else [self._current.pop(key) for key in sorted(waited - self._newly_gone)]
        )
        undecided = (
            self._digest != b"" and len({self._rules.label(copy.folder) for copy in new} - {""}) > 1
        )
        sources = list(zip(new, self._find_sources(new), strict=True))
        if not undecided:
            self._teach(sources, first=first)
            self._update_sources(sources)
        for copy, source in sources:
            self._current[copy.key] = copy._replace(
                waiting=undecided and not first, origin=self._find_origin(copy, source)
            )

    def changes(self) -> tuple[list[Sighting], list[Sighting]]:
        """Sightings to be kept, and those of which nothing is left to know."""
        here = {key: copy for key, copy in self._current.items() if copy.digest or not copy.gone}
        over = [copy for key, copy in sorted(self._old.items()) if key not in here]
        return [copy for key, copy in sorted(here.items()) if self._old.get(key) != copy], over

    def _new_sightings(self) -> list[Sighting]:
        """Seen after all others, whatever the clock says."""
        seen = max([self._now, *(copy.seen + 1 for copy in self._old.values())])
        return [
            Sighting(folder, name, self._digest, self._delivery, seen=seen)
            for folder, name in sorted(self._new)
        ]

    def _find_sources(self, new: Iterable[Sighting]) -> Iterator[Sighting | None]:
        """What each new copy is most likely a copy of, None for the first of a message.

        Best a copy of the same file name elsewhere, seen last; else by `_likeness` one from another
        folder; only then one from the same. The likeliest is looked for once for each folder, not
        for each copy: somebody may have 100,000 copies of a message.
        """
        others = (
            sorted(self._current.values(), key=self._likeness, reverse=True) if self._digest else []
        )
        named: defaultdict[int, list[Sighting]] = defaultdict(list)
        for other in others:
            named[other.name].append(other)
        likeliest: dict[str, Sighting | None] = {}
        for copy in new:
            if copy.folder not in likeliest:
                likeliest[copy.folder] = next(
                    _not_in_folder(others, copy.folder), others[0] if others else None
                )
            yield max(
                _not_in_folder(named.get(copy.name, ()), copy.folder),
                key=attrgetter("seen"),
                default=likeliest[copy.folder],
            )

    def _likeness(self, copy: Sighting) -> tuple[object, ...]:
        """Greater is likelier: not copied from before, gone since the last look, seen last, in a
        folder of a class; the key only decides ties.

        A move may be seen in two looks, as gone in one and as new in the next. Then the copy that
        was seen last is where it came from.
        """
        return (
            not copy.followed,
            copy.key in self._newly_gone,
            copy.seen,
            self._rules.label(copy.folder) != "",
            copy.key,
        )

    def _teach(self, sources: Sequence[tuple[Sighting, Sighting | None]], *, first: bool) -> None:
        for copy, source in sources:
            if first and source:
                continue
            before = (
                self._classify_source(source, copy)
                if source
                else self._rules.first_source(self._new.get(copy.key))
            )
            why = MOVE_LESSONS.get((before, self._rules.target(copy.folder)))
            if why is not None:
                self.lessons.append(
                    FolderLesson(
                        copy.digest, self._rules.label(copy.folder), copy.folder, copy.name, why
                    )
                )

    def _classify_source(self, source: Sighting, copy: Sighting) -> MoveSource:
        came = self._rules.label(source.folder) or self._rules.label(source.origin)
        if came not in ("", self._rules.label(copy.folder)):
            return MoveSource.ANOTHER_CLASS
        if not self._rules.label(source.folder):
            return MoveSource.NO_CLASS
        return MoveSource.SAME_FOLDER if source.folder == copy.folder else MoveSource.SAME_CLASS

    def _update_sources(self, sources: Sequence[tuple[Sighting, Sighting | None]]) -> None:
        """A source that has gone was moved: forget it. One that stays was copied: the next copy is
        likelier one of the new copy.
        """
        for copy, source in sources:
            if source and source.gone:
                self._current.pop(source.key, None)
            elif source and source.folder != copy.folder:
                self._current[source.key] = source._replace(followed=True)

    def _find_origin(self, copy: Sighting, source: Sighting | None) -> str | None:
        if source is None or self._rules.label(copy.folder):
            return None
        return source.folder if self._rules.label(source.folder) else source.origin


def _not_in_folder(copies: Iterable[Sighting], folder: str) -> Iterator[Sighting]:
    """Those that do not lie in a folder."""
    return (copy for copy in copies if copy.gone or copy.folder != folder)


def _collect_outcome(lineages: Iterable[_Lineage]) -> Reconciliation:
    """A digest about which its copies say different things at once teaches nothing."""
    lessons: dict[bytes, dict[str, FolderLesson]] = {}
    kept: list[Sighting] = []
    removed: list[Sighting] = []
    for lineage in lineages:
        for lesson in lineage.lessons:
            lessons.setdefault(lesson.digest, {}).setdefault(lesson.label, lesson)
        changed, over = lineage.changes()
        kept += changed
        removed += over
    return Reconciliation(
        [lesson for said in lessons.values() if len(said) == 1 for lesson in said.values()],
        kept,
        removed,
    )


class SightingUpdates:
    """The sightings to store and to remove, by digest."""

    def __init__(self, outcome: Reconciliation, before: Sequence[Sighting]) -> None:
        self._updated: dict[bytes, list[Sighting]] = {}
        self._removed: dict[bytes, list[Sighting]] = {}
        for sighting in outcome.updated:
            self._updated.setdefault(sighting.digest, []).append(sighting)
        for sighting in outcome.removed:
            self._removed.setdefault(sighting.digest, []).append(sighting)
        in_order = sorted(before, key=attrgetter("gone", "seen"))
        self._last = {sighting.digest: sighting for sighting in in_order}
        self.digests = self._updated.keys() | self._removed.keys()

    def select(self, digests: Iterable[bytes]) -> tuple[list[Sighting], list[FileKey]]:
        """The updated sightings, and the keys of the removed ones, of some messages."""
        chosen = list(digests)
        updated = [sighting for digest in chosen for sighting in self._updated.get(digest, ())]
        removed = [sighting for digest in chosen for sighting in self._removed.get(digest, ())]
        return updated, [sighting.key for sighting in removed]

    def previous_folder(self, digest: bytes) -> str:
        """The folder that a message was in before, for the log."""
        return display_folder(self._last[digest].folder) if digest in self._last else "-"


def _delivery_hash(arrival: Arrival, known: Collection[tuple[bytes, int]]) -> int:
    """Of the id of a judgement, which is never given twice; else of who received it, and when,
    unless it was remembered without that.

    known: digests and deliveries that are remembered.
    """
    if arrival.signed:
        return short_hash(arrival.signed.id.encode())
    without = (arrival.digest, arrival.received) not in known and (arrival.digest, 0) in known
    return 0 if without else arrival.received


def short_hash(delivery: bytes) -> int:
    """As deliveries are told apart by: `Copy.delivery`, `Arrival.received`."""
    return int.from_bytes(blake2b(delivery, digest_size=4).digest(), "big")


# messages that count: until it is seen that a rule fails, what that leaves in INBOX is taught as
# ham
_WINDOW = 5


def tagged_spam(arrivals: Iterable[Arrival], rules: ReconcileRules) -> list[Arrival]:
    """Those that we called spam, and left to others to put into Junk."""
    return [
        one
        for one in arrivals
        if one.signed and one.signed.label in rules.unwanted and one.signed.action is Action.TAG
    ]


class FilingDetector:
    """What was seen of it in one mailbox."""

    def __init__(self) -> None:
        self._filed: deque[bool] = deque(maxlen=_WINDOW)

    def observe(self, spam: Iterable[Arrival], rules: ReconcileRules) -> None:
        """Where spam is seen for the first time. Of one look, what was filed counts as the last."""
        found = [rules.target(one.folder) for one in spam]
        self._filed.extend(
            sorted(
                into is MoveTarget.UNWANTED
                for into in found
                if into in (MoveTarget.UNWANTED, MoveTarget.HAM)
            )
        )

    @property
    def is_working(self) -> bool:
        """Whether it was seen to, and most of the time."""
        return 0 < len(self._filed) <= 2 * sum(self._filed)

    @property
    def is_failing(self) -> bool:
        """Whether that is more than a person's doing."""
        return len(self._filed) - sum(self._filed) > 2 and not self.is_working
