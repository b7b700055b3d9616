"""Folds the ledger's events into the tables, one event at a time, in the order of the log.

Word lists of other filters are no lessons: they come into force, and go, with the next settling.

The outcome depends on the tables it starts from and the events alone, never on how many are folded at once: so every process
that started from the same snapshot and folded the same events holds the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from spamguard import policy
from spamguard.batches import batches
from spamguard.bayes import learning
from spamguard.bayes.experts import NUMBER_VALUES, STEPS, Integers
from spamguard.bayes.prior import WordOdds
from spamguard.bayes.replay import BLOCK, Block, replay
from spamguard.bayes.tables import BASE_CLASSES, TRAIT_VALUES, Tables, evidence, table_bits
from spamguard.errors import LedgerError
from spamguard.ledger import Change, Lesson, SqliteLedger, codec
from spamguard.ledger.lessons import refuse_damaged
from spamguard.mail.traits import NUMBERS, TRAITS
from spamguard.model import firstscores
from spamguard.records import EXTRACTOR, Features

_CHUNK = 128  # events unpacked together
_NO_SCORES: Integers = np.zeros(0, np.int64)


def features_of(packed: Sequence[bytes]) -> list[Features]:
    """The features of some receipts."""
    if not packed:
        return []
    columns = _unpacked(packed)
    ends = columns.offsets.tolist()
    return [
        Features(columns.tokens[first:last], traits, numbers)
        for first, last, traits, numbers in zip(ends, ends[1:], columns.traits, columns.numbers, strict=False)
    ]


def _unpacked(packed: Sequence[bytes]) -> codec.Columns:
    """LedgerError unless traits and numbers are such as our extractor gives: they are places in tables."""
    found = codec.unpack_tokens(packed)
    traits, numbers = found.traits, found.numbers
    as_many = (traits.shape[1], numbers.shape[1]) == (len(TRAITS), len(NUMBERS))
    if not as_many or traits.max() >= TRAIT_VALUES or numbers.min() < 0 or numbers.max() >= NUMBER_VALUES:
        raise LedgerError("a receipt in the ledger was not made by this extractor: restore the ledger from a backup")
    return found


def fold(tables: Tables, changes: Iterable[Change], is_new: Callable[[bytes, int], bool]) -> tuple[int | None, int]:
    """Apply changes in order; the seq of the last one, or None when there was none, and how many lessons were taken back for none.

    is_new: whether the lesson of a digest, as it stood before an event (its seq), came after the settled state of the tables.
    """
    last, taken_back = None, 0
    for chunk in batches(changes, _CHUNK):
        lessons = [lesson for _, before, after in chunk if before != after for lesson in (before, after) if lesson is not None]
        unpacked = iter(features_of([lesson.packed for lesson in lessons]))
        for last, before, after in chunk:
            if before != after:
                if before is not None:
                    scores = _first_scores(before, tables.classes) if is_new(before.digest, last) else _NO_SCORES
                    learning.take_away(tables, evidence(next(unpacked), tables.bits), before.label, scores)
                if after is not None:
                    learning.add(tables, evidence(next(unpacked), tables.bits), after.label)
                else:
                    taken_back += 1
    return last, taken_back


def _first_scores(lesson: Lesson, classes: Sequence[str]) -> Integers:
    """The receipt's scores in the experts' own steps; none if they are of other classes."""
    rows = firstscores.rows_of(lesson.scores, classes)
    return np.asarray(np.rint(np.array(codec.unpack_scores(rows)) * STEPS), np.int64)


def settled(ledger: SqliteLedger, upto_seq: int, least: int) -> Tables:
    """Tables that hold exactly the lessons of the events up to `upto_seq`, error-driven experts settled.

    The canonical order is that of the keyed digests: as good as random, so it interleaves the classes, and the same everywhere.
    least: how large the tables are at least, 2**least buckets; with many lessons they are larger.
    """
    with ledger.kept_pages():
        counts = ledger.lesson_counts(EXTRACTOR, upto_seq)
        names, number = sorted(set(counts) - set(BASE_CLASSES)), sum(counts.values())
        there, back = (_blocks(ledger.lessons(EXTRACTOR, upto_seq, backwards=backwards)) for backwards in (False, True))
        bits = table_bits(number, least)
        unwanted = policy.unwanted_of(ledger.classes())
        return replay(there, back, number, names, bits, len(TRAITS), len(NUMBERS), _known(ledger, upto_seq), unwanted)


def _known(ledger: SqliteLedger, upto_seq: int) -> list[WordOdds]:
    """Where settling starts from. Lists of another extractor's tokens say nothing about ours."""
    return [WordOdds(one.tokens, one.log_odds) for one in ledger.word_lists(upto_seq) if one.extractor == EXTRACTOR]


def _blocks(lessons: Iterator[Lesson]) -> Iterator[Block]:
    for some in batches(lessons, BLOCK):
        try:
            columns = _unpacked([lesson.packed for lesson in some])
        except LedgerError:
            refuse_damaged(some)
            raise
        yield Block([lesson.label for lesson in some], columns.tokens, columns.offsets, columns.traits, columns.numbers)
