"""What users said by moving mail: from the sightings of before and what came and went since, the
lessons that follow and the sightings of now. Pure.

Only where messages lie counts, never what an event said. A move, a copy whose original is removed
before or after, and a rename come out the same, in whatever order folders are scanned. A message
that went and appeared nowhere else teaches nothing, but is remembered for a while. Nor does a copy
that is marked as deleted while another one is not, and a message that comes into folders of two
classes at once waits. A message that is delivered twice is no copy, as far as our signature or the
server that received it tells. The manual shows the table MOVE_LESSONS as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from spamguard.config.options import Action
from spamguard.folders.roles import Role
from spamguard.keys import SignedVerdict

if TYPE_CHECKING:
    from spamguard.engine.prepare import SplitMessage

HAM_LABEL = "ham"

FileKey = tuple[str, int]
"""A file of a mailbox: its folder, and the key of its base name."""


class Arrival(NamedTuple):
    """A file that was not there before, read once."""

    folder: str
    name: int  # key of its base name
    digest: bytes  # empty if it teaches nothing, or will never be read
    signed: SignedVerdict | None = None  # our verdict, if a valid signature tells
    received: int = 0  # hash of the topmost Received field, 0 without one
    deleted: bool = False  # it is marked so; to `reconcile`: and another copy is not
    message: SplitMessage | None = None

    @property
    def key(self) -> FileKey:
        return self.folder, self.name


class Sighting(NamedTuple):
    """What is remembered of one file of one mailbox."""

    folder: str
    name: int  # as of `Arrival`
    digest: bytes
    # Hash of the id of our verdict, else of the topmost Received field, 0 without either: copies of
    # one delivered message have it in common.
    delivery: int = 0
    # In a folder without a class: the folder of a class that the message was in before.
    origin: str | None = None
    waiting: bool = False  # it came with a copy of another class, and nothing is decided yet
    followed: bool = False  # it was copied to another folder while it stayed
    # Seconds since 1970, but what is seen later always has the greater number.
    seen: int = 0
    gone: int = 0  # when it was missed, 0 while it is there

    @property
    def key(self) -> FileKey:
        return self.folder, self.name


class FolderLesson(NamedTuple):
    """What a user said by putting a message into a folder."""

    digest: bytes
    label: str
    folder: str
    name: int  # as of `Arrival`
    why: str  # for the log

    @property
    def key(self) -> FileKey:
        return self.folder, self.name


# ---- the tables


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
    """The kind of folder that a message came into."""

    HAM = "ham: INBOX, Archive"
    UNWANTED = "an unwanted class: Junk"
    OTHER_CLASS = "another class"
    NO_CLASS = "neutral or trash"


class EvidenceSign(StrEnum):
    """What users do to a message without moving it: in a ham folder it teaches ham where the
    operator asks for it, once, unless its user has ever said anything about it. The strongest is
    the first.
    """

    ANSWERED = "answered"
    FLAGGED = "flagged"


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
"""Which move teaches the class of the folder that a message came into, and why.

A pair that is missing teaches nothing and leaves the lesson there was. A message that went from a
folder teaches nothing; one that came into folders of two classes at once waits until one of them
goes. Ignored folders are not watched: what lies there is nowhere.
"""


class ReconcileRules(NamedTuple):
    """What applies to one mailbox."""

    role_of: Callable[[str], Role]  # by directory
    unwanted: Collection[str] = frozenset(("spam",))
    # What we tag as spam, and nothing else, is put into Junk on delivery, by our next hop or by a
    # Sieve rule on our header; and that was seen to work.
    we_file: bool = False
    filing_works: bool = True

    def label(self, folder: str | None) -> str:
        return "" if folder is None else self.role_of(folder).label

    def target(self, folder: str) -> MoveTarget:
        label = self.label(folder)
        if label in self.unwanted:
            return MoveTarget.UNWANTED
        kinds = {"": MoveTarget.NO_CLASS, HAM_LABEL: MoveTarget.HAM}
        return kinds.get(label, MoveTarget.OTHER_CLASS)

    def first_source(self, signed: SignedVerdict | None) -> MoveSource:
        if signed is None or not self.we_file:
            return MoveSource.UNKNOWN
        if signed.label not in self.unwanted:
            return MoveSource.NOT_FILED
        is_filed = signed.action is Action.TAG and self.filing_works
        return MoveSource.FILED_AS_SPAM if is_filed else MoveSource.UNKNOWN

    def source(self, before: Sighting, copy: Sighting) -> MoveSource:
        label = self.label(copy.folder)
        if (self.label(before.folder) or self.label(before.origin)) not in ("", label):
            return MoveSource.ANOTHER_CLASS
        if not self.label(before.folder):
            return MoveSource.NO_CLASS
        return MoveSource.SAME_FOLDER if before.folder == copy.folder else MoveSource.SAME_CLASS


# ---- reconciling


class Reconciliation(NamedTuple):
    """What follows from a scan."""

    lessons: list[FolderLesson]  # at most one for a digest, sorted
    updated: list[Sighting]  # new or changed
    removed: list[Sighting]  # to be forgotten, as they were


def reconcile(
    remembered: Iterable[Sighting],  # all of the digests that came or went
    arrivals: Iterable[Arrival],
    gone: Collection[FileKey],  # files that are no longer where they were
    rules: ReconcileRules,
    now: int,
    *,
    first: bool = False,  # it is the first scan of the mailbox, in which nothing moved
) -> Reconciliation:
    """What follows from one scan of some of a mailbox's folders.

    The order of the items makes no difference, and calling it again with the outcome applied
    changes nothing.
    """
    # by delivered message: digest and delivery
    copies: defaultdict[tuple[bytes, int], list[Sighting]] = defaultdict(list)
    for sighting in remembered:
        copies[sighting.digest, sighting.delivery].append(sighting)
    new: defaultdict[tuple[bytes, int], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        digest, delivery = arrival.digest, arrival.received
        if arrival.signed:  # the id of our verdict, which no other delivery has
            delivery = short_hash(arrival.signed.id.encode())
        elif (digest, delivery) not in copies and (digest, 0) in copies:
            delivery = 0  # the message was remembered without a Received field
        new[digest, delivery].append(arrival)
    lessons: dict[bytes, dict[str, FolderLesson]] = {}
    updated: list[Sighting] = []
    removed: list[Sighting] = []
    for message in sorted(copies.keys() | new.keys()):
        follows = _follow(message, copies[message], new[message], gone, rules, now, first=first)
        for lesson in follows.lessons:
            lessons.setdefault(lesson.digest, {}).setdefault(lesson.label, lesson)
        updated += follows.updated
        removed += follows.removed
    # A message whose copies say different things at once teaches nothing.
    unanimous = [
        lesson
        for opinions in lessons.values()
        if len(opinions) == 1
        for lesson in opinions.values()
    ]
    return Reconciliation(unanimous, updated, removed)


def short_hash(delivery: bytes) -> int:
    """32 bits, to tell deliveries apart: `Sighting.delivery`, `Arrival.received`."""
    return int.from_bytes(blake2b(delivery, digest_size=4).digest(), "big")


def _follow(
    message: tuple[bytes, int],
    copies: Collection[Sighting],
    arrivals: Collection[Arrival],
    gone: Collection[FileKey],
    rules: ReconcileRules,
    now: int,
    *,
    first: bool,
) -> Reconciliation:
    digest, delivery = message
    old = {copy.key: copy for copy in copies}
    newly_gone = {key for key, copy in old.items() if key in gone and not copy.gone}
    current = {
        key: copy._replace(gone=now) if key in newly_gone else copy for key, copy in old.items()
    }
    arrived = {
        arrival.key: arrival
        for arrival in arrivals
        if arrival.key not in current or current[arrival.key].gone
    }
    waited = {key for key, copy in current.items() if copy.waiting}
    lessons: list[FolderLesson] = []
    if arrived or waited & newly_gone:
        for key in waited:
            current[key] = current[key]._replace(waiting=False)
        # Later than all others, whatever the clock says.
        seen_at = max([now, *(copy.seen + 1 for copy in copies)])
        new = [Sighting(*key, digest, delivery, seen=seen_at) for key in sorted(arrived)] or [
            current.pop(key) for key in sorted(waited - newly_gone)
        ]
        deleted = {arrival.key for arrival in arrivals if arrival.deleted}
        labels = {rules.label(copy.folder) for copy in new if copy.key not in deleted} - {""}
        undecided = digest != b"" and len(labels) > 1

        def likeness(copy: Sighting) -> tuple[object, ...]:
            """The greater, the likelier a source: not copied from before, gone since the last scan,
            seen last, in a folder of a class. The key only decides ties.

            Two scans may see a move, one that the file is gone and the next that it is new. Then
            the copy that was seen last is the source.
            """
            has_class = rules.label(copy.folder) != ""
            return not copy.followed, copy.key in newly_gone, copy.seen, has_class, copy.key

        candidates = sorted(current.values(), key=likeness, reverse=True) if digest else []
        sources = list(zip(new, _find_sources(new, candidates), strict=True))
        for copy, source in sources if not undecided else ():
            teaches = copy.key not in deleted
            if teaches and not (first and source):
                if source:
                    came_from = rules.source(source, copy)
                else:
                    signed = arrived[copy.key].signed if copy.key in arrived else None
                    came_from = rules.first_source(signed)
                if why := MOVE_LESSONS.get((came_from, rules.target(copy.folder))):
                    label = rules.label(copy.folder)
                    lessons.append(FolderLesson(digest, label, copy.folder, copy.name, why))
            if source and source.gone:  # it was moved
                current.pop(source.key, None)
            elif source and source.folder != copy.folder and teaches:
                # It was copied: the next copy is likelier one of the new copy.
                current[source.key] = source._replace(followed=True)
        for copy, source in sources:
            origin = None
            if source and not rules.label(copy.folder):
                origin = source.folder if rules.label(source.folder) else source.origin
            current[copy.key] = copy._replace(waiting=undecided and not first, origin=origin)
    # Of what could not be read and is gone nothing remains to be known.
    current = {key: copy for key, copy in current.items() if copy.digest or not copy.gone}
    return Reconciliation(
        lessons,
        [copy for key, copy in sorted(current.items()) if old.get(key) != copy],
        [copy for key, copy in sorted(old.items()) if key not in current],
    )


def _find_sources(
    new: Iterable[Sighting], candidates: Sequence[Sighting]
) -> Iterator[Sighting | None]:
    """The copy that each new one most likely comes from, None for the first of a message: of the
    same file name in another folder, the last seen; else the likeliest in another folder; only then
    one in the same folder. The likeliest is looked for once a folder: somebody may have 100,000
    copies.
    """
    by_name: defaultdict[int, list[Sighting]] = defaultdict(list)
    for candidate in candidates:
        by_name[candidate.name].append(candidate)
    likeliest: dict[str, Sighting | None] = {}
    for copy in new:
        if copy.folder not in likeliest:
            fallback = candidates[0] if candidates else None
            likeliest[copy.folder] = next(_not_in_folder(candidates, copy.folder), fallback)
        yield max(
            _not_in_folder(by_name.get(copy.name, ()), copy.folder),
            key=attrgetter("seen"),
            default=likeliest[copy.folder],
        )


def _not_in_folder(copies: Iterable[Sighting], folder: str) -> Iterator[Sighting]:
    return (copy for copy in copies if copy.gone or copy.folder != folder)
