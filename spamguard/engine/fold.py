"""From receipts to tables: the ledger's events folded in order, or replayed from nothing.

Folding applies one event at a time, in the order of the log. The outcome depends on the tables it
starts from and the events alone, never on how many are folded at once; so all processes that
started from the same snapshot and folded the same events hold the same bits. Settling replays all
lessons from nothing.

A receipt keeps the experts' *first scores*: their scores of the message before it was taught, with
a mark of the classes among which they chose.

A user's own votes are counted apart from the tables (`UserModels`), when the first message for that
user is judged. Such a model is a pure function of the user's latest votes in force up to an event.
An outdated one is brought up to date by adding and subtracting counts. A user's damaged receipts
cost no verdict.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import NamedTuple

import numpy as np

from spamguard.bayes import training
from spamguard.bayes.experts import EXPERTS, N_NUMBER_VALUES, STEPS_PER_NAT
from spamguard.bayes.formulas import Integers
from spamguard.bayes.personal import UserVoteCounts, count_votes, sum_votes
from spamguard.bayes.tables import (
    BASE_CLASSES,
    N_BASE,
    N_TRAIT_VALUES,
    Tables,
    locate_features,
    make_evidence,
    table_bits,
)
from spamguard.bayes.training import BLOCK_LESSONS, LessonBlock, replay
from spamguard.engine import policy
from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import Change, Lesson, refuse_damaged_lessons
from spamguard.log import WarnOnce
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, Features
from spamguard.storage import batches

_log = logging.getLogger("spamguard.model")

# ---- first scores

_ROW_BYTES = 2 * len(EXPERTS)  # of one class against ham
_NO_SCORES: Integers = np.zeros(0, np.int64)


def pack_first_scores(scores: Integers, classes: Sequence[str]) -> bytes:
    """Pack scores (R, E), rows as by `experts.batch_scores` with these classes."""
    return codec.pack_scores((scores / STEPS_PER_NAT).ravel().tolist()) + _class_mark(classes)


def read_first_scores(lesson: Lesson, classes: Sequence[str]) -> Integers:
    """A receipt's scores of all classes but the first, in the experts' steps, flat.

    Empty if the scores are not of these classes.
    """
    scores, mark = lesson.scores, _class_mark(classes)
    size = _ROW_BYTES * (len(classes) if mark else 1)
    if len(scores) != size + len(mark) or scores[size:] != mark:
        return _NO_SCORES
    nats = codec.unpack_scores(scores[: _ROW_BYTES * (len(classes) - 1)])
    return np.asarray(np.rint(np.array(nats) * STEPS_PER_NAT), np.int64)


def _class_mark(classes: Sequence[str]) -> bytes:
    further = classes[N_BASE:]
    return struct.pack("<I", zlib.crc32("\n".join(further).encode())) if further else b""


# ---- folding

_FOLD_BATCH = 128  # events unpacked together


def fold_changes(
    tables: Tables, changes: Iterable[Change], is_new: Callable[[bytes, int], bool]
) -> tuple[int | None, int]:
    """Apply changes in order; returns the seq of the last one, and how many lessons were taken back
    without another one in their place.

    Parameters
    ----------
    is_new
        Whether the lesson of a digest, as it stood before an event (its seq), came after the
        settled state of the tables.
    """
    last, taken_back = None, 0
    for chunk in batches(changes, _FOLD_BATCH):
        changed = [change for change in chunk if change[1] != change[2]]
        pairs = ((before, after) for _, before, after in changed)
        lessons = [lesson for pair in pairs for lesson in pair if lesson is not None]
        unpacked = iter(unpack_features([lesson.packed for lesson in lessons]))
        for seq, before, after in changed:
            if before is not None:
                evidence, scores = make_evidence(next(unpacked), tables.bits), _NO_SCORES
                if is_new(before.digest, seq):
                    scores = read_first_scores(before, tables.classes)
                training.subtract_lesson(tables, evidence, before.label, scores)
            if after is None:
                taken_back += 1
            else:
                evidence = make_evidence(next(unpacked), tables.bits)
                training.add_lesson(tables, evidence, after.label)
        last = chunk[-1][0]
    return last, taken_back


def unpack_features(packed: Sequence[bytes]) -> list[Features]:
    """The features of some receipts. Raises LedgerError if one is damaged."""
    if not packed:
        return []
    columns = _unpack_receipts(packed)
    ends = columns.offsets.tolist()
    return [
        Features(columns.tokens[first:last], traits, numbers)
        for first, last, traits, numbers in zip(
            ends, ends[1:], columns.traits, columns.numbers, strict=False
        )
    ]


def _unpack_receipts(packed: Sequence[bytes]) -> codec.ReceiptColumns:
    """Unpack receipts; traits and numbers must be in range, because they are places in tables."""
    columns = codec.unpack_tokens(packed)
    traits, numbers = columns.traits, columns.numbers
    if (
        (traits.shape[1], numbers.shape[1]) != (len(TRAITS), len(NUMBERS))
        or traits.max() >= N_TRAIT_VALUES
        or numbers.min() < 0
        or numbers.max() >= N_NUMBER_VALUES
    ):
        raise LedgerError(
            "a receipt in the ledger was not made by this extractor: restore the ledger from a "
            "backup"
        )
    return columns


# ---- settling


_FEW_LESSONS = 1024  # are read once


def build_tables(ledger: SqliteLedger, upto_seq: int, min_bits: int) -> Tables:
    """Make settled tables that hold exactly the lessons of the events up to `upto_seq`.

    The canonical order is that of the keyed digests: as good as random, so it interleaves the
    classes, and the same everywhere. The tables have 2**min_bits buckets, or more with many
    lessons.
    """
    counts = ledger.lesson_counts(EXTRACTOR, upto_seq)
    number = sum(counts.values())
    bits = table_bits(number, min_bits)
    classes = sorted(set(counts) - set(BASE_CLASSES))
    shared = ledger.shared
    unwanted = policy.unwanted_classes(
        ledger.classes() if shared is None else shared.classes_upto(upto_seq)
    )
    lessons = partial(ledger.lessons, EXTRACTOR, upto_seq)
    if number <= _FEW_LESSONS:
        kept = list(lessons())
        forwards, backwards = iter(kept), reversed(kept)
    else:
        forwards, backwards = lessons(), lessons(backwards=True)
    blocks = _read_blocks(forwards, bits), _read_blocks(backwards, bits)
    return replay(*blocks, number, classes, bits, len(TRAITS), len(NUMBERS), unwanted)


def _read_blocks(lessons: Iterable[Lesson], bits: int) -> Iterator[LessonBlock]:
    for block in batches(lessons, BLOCK_LESSONS):
        try:
            columns = _unpack_receipts([lesson.packed for lesson in block])
        except LedgerError:
            refuse_damaged_lessons(block)
            raise
        yield [lesson.label for lesson in block], locate_features(*columns, bits)


# ---- users' own votes

MAX_VOTES = 500  # votes of a user that count (corpora/RESULTS.md, "A user's own votes")
_MAX_TOKENS = 1 << 23  # of all users, eight bytes each with two classes; and votes, eight bytes too
_MAX_USERS = 1 << 14  # most of whom have not voted
# Behind more events than this, it is cheaper to forget all models than to ask which users voted.
_MAX_EVENTS_BEHIND = 5000


class _UserModel(NamedTuple):
    counts: UserVoteCounts | None = None
    seqs: Set[int] = frozenset()  # numbers of the votes' events

    @property
    def size(self) -> int:
        return len(self.seqs) + (0 if self.counts is None else len(self.counts.buckets))


class UserModels:
    """The recently used models of a ledger's users. For one thread."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self._models: dict[str, _UserModel] = {}  # the one that was used last stands last
        self._outdated: set[str] = set()  # among the models
        self._damaged = WarnOnce(_log, logging.ERROR)
        self._tokens = 0
        self._seq = self._bits = self._resets = 0

    def load(self, user: str, seq: int, bits: int, resets: int) -> UserVoteCounts | None:
        """The counts of a user's votes up to event number `seq`; None: there are none, or they are
        damaged. The tables that judge have 2**bits buckets; `resets` is as in `TableStore`.
        """
        if (seq, bits, resets) != (self._seq, self._bits, self._resets):
            self._mark_outdated(seq, bits, resets)
        is_current = user in self._models and user not in self._outdated
        model = self._evict(user)
        try:
            if not is_current:
                model = self._read_model(user, model)
        except LedgerError as error:
            self._damaged.warn(
                user,
                "%s gets the verdicts of all, as what this user has said cannot be read: %s",
                user,
                error,
            )
            return None
        self._damaged.clear(user)
        self._models[user] = model
        self._tokens += model.size
        while len(self._models) > 1 and (
            self._tokens > _MAX_TOKENS or len(self._models) > _MAX_USERS
        ):
            self._evict(next(iter(self._models)))
        return model.counts

    def _mark_outdated(self, seq: int, bits: int, resets: int) -> None:
        # other buckets, events with other numbers, an older ledger was restored, very much was
        # taught, or the events that say who has voted may be gone
        if (
            (bits, resets) != (self._bits, self._resets)
            or not self._seq <= seq <= self._seq + _MAX_EVENTS_BEHIND
            or (self._models and self._seq < self._ledger.compacted_seq())
        ):
            self._models.clear()
            self._outdated.clear()
            self._tokens = 0
        elif self._models:
            self._outdated.update(
                self._models.keys() & self._ledger.users.users_between(self._seq, seq)
            )
        self._seq, self._bits, self._resets = seq, bits, resets

    def _evict(self, user: str) -> _UserModel:
        self._outdated.discard(user)
        model = self._models.pop(user, _UserModel())
        self._tokens -= model.size
        return model

    def _read_model(self, user: str, before: _UserModel) -> _UserModel:
        """Read the changes since `before`, or everything where that is hardly more."""
        seqs = set(self._ledger.users.latest_seqs(user, self._seq, EXTRACTOR, MAX_VOTES))
        changed = seqs ^ before.seqs
        if not seqs or len(changed) > len(seqs):
            before, changed = _UserModel(), seqs
        votes = self._ledger.users.read_receipts(sorted(changed))
        if before.counts and len(votes) < len(changed):  # the ledger was compacted
            return self._read_model(user, _UserModel())
        parts = [(before.counts, 1)] if before.counts else []
        for some, sign in ((seqs, 1), (before.seqs, -1)):
            if chosen := [vote for vote in votes if vote.seq in some]:
                columns = _unpack_receipts([vote.packed for vote in chosen])
                batch = locate_features(*columns, self._bits)
                by_class = count_votes([vote.label for vote in chosen], batch)
                parts += [(counts, sign) for counts in by_class]
        return _UserModel(sum_votes(parts) if seqs else None, seqs)
