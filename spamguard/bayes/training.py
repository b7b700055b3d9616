"""Training: one lesson more or less at once, and all lessons as a replay.

One lesson counts exactly and moves the logistic weights by one step. Fusion waits for the settled
state: its dozen weights serve every message, and ten corrections in a row, which contradict all
experts, would turn them round (corpora/RESULTS.md, "Fusion between settlings").

A lesson that is taken back soon after it was taught gives its own step back. From one that is part
of the settled state other lessons have learnt: instead each weight loses the part of one lesson
among all that have moved it that way. In both cases the exact state comes from `replay`.

The settled state is a deterministic replay of blocks of lessons, in the caller's canonical order,
which interleaves the classes. A block's scores are taken before anything of the block is counted,
so fusion never learns from a score taken after teaching. The lessons are also replayed from the
last one to the first. The weights of the logistic experts are the mean of both directions; those of
fusion too, weighted by how much each direction had to learn from. So much of what they owe to the
order alone is gone (corpora/RESULTS.md, "There and back", "Last words, and fusion from both ends").
Everything is in whole numbers, or rounded to such at once: the same lessons give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_

import numpy as np

from spamguard.bayes import experts, fusion, logistic, tables
from spamguard.bayes.formulas import Indices, Integers, Ints32
from spamguard.bayes.tables import N_BASE, N_TOKEN_SETS, Evidence, Tables

_NO_DECAY = np.zeros(N_TOKEN_SETS, np.int32)  # decay could not be taken back; settling applies it


# ---- one lesson


def add_lesson(learnt: Tables, evidence: Evidence, name: str) -> None:
    index = tables.ensure_class_index(learnt, name)
    evidence = evidence._replace(buckets=tables.claim_places(learnt, evidence.buckets))
    counts = tables.read_counts(learnt, evidence.buckets)
    roots = logistic.inverse_roots(evidence.sizes)[:, np.newaxis]
    errors = logistic.errors(_find_margins(learnt, evidence, roots), np.array([index]))
    _apply_step(learnt, evidence, roots, errors, _NO_DECAY)
    tables.count_lesson(learnt, evidence, counts, index, 1)
    tables.count_columns(learnt)[index][evidence.buckets] += 1


def subtract_lesson(learnt: Tables, evidence: Evidence, name: str, scores: Integers) -> None:
    """Take back one message that is counted as class `name`.

    Parameters
    ----------
    scores
        The experts' scores of the message before it was taught, flat, if `add_lesson` taught it on
        these tables; empty when it came with the settled state.

    Raises
    ------
    TableError
        It is not counted as that class; nothing is changed.
    """
    if name not in learnt.classes:
        raise tables.not_counted_error(name)
    index = learnt.classes.index(name)
    evidence = evidence._replace(buckets=tables.find_places(learnt, evidence.buckets))
    counts = tables.read_counts(learnt, evidence.buckets)
    tables.count_lesson(learnt, evidence, counts, index, -1)
    tables.count_columns(learnt)[index][evidence.buckets] -= 1
    if len(scores) == (len(learnt.classes) - 1) * len(experts.EXPERTS):
        counts[index] -= 1
        _undo_step(learnt, evidence, counts, index, scores)
    else:  # no scores, or scores from a time with other classes
        _remove_shares(learnt, evidence, counts, index)
    tables.drop_empty_class(learnt, index)


def _find_margins(learnt: Tables, evidence: Evidence, roots: Integers) -> Integers:
    """The logistic experts' log-odds (..., SETS, K-1), by 1/√size (..., SETS, 1)."""
    sizes, starts = evidence.sizes.ravel(), evidence.starts.ravel()
    sums = logistic.sum_weights(learnt, evidence.buckets, starts, sizes)
    by_set = sums.reshape(*evidence.sizes.shape, -1)
    return logistic.margins(by_set, learnt.biases.T, roots)


def _apply_step(
    learnt: Tables, evidence: Evidence, roots: Integers, errors: Integers, decay: Ints32
) -> None:
    """Step weights and biases of every token set; the lessons are not counted meanwhile."""
    by_lesson = errors.reshape(-1, *errors.shape[-2:])
    learnt.biases += logistic.bias_steps(np.add.reduce(by_lesson)).T
    steps = logistic.weight_steps(errors, logistic.LEARNING_RATE * roots)
    sizes, of_runs = evidence.sizes.ravel(), steps.reshape(-1, errors.shape[-1])
    logistic.move_weights(learnt, evidence.buckets, sizes, of_runs, decay)


def _undo_step(
    learnt: Tables, evidence: Evidence, counts: Ints32, index: int, scores: Integers
) -> None:
    shares = logistic.step_shares(counts[0], counts[1:])
    sizes = np.maximum(evidence.sizes, 1)[:, np.newaxis]
    reach = np.maximum(tables.set_sums(shares, evidence).T // sizes, 1)
    of_logistic = scores.reshape(-1, len(experts.EXPERTS))[:, experts.LOGISTIC]
    before = of_logistic.T * (logistic.ONE // experts.STEPS_PER_NAT)
    roots = logistic.inverse_roots(evidence.sizes)[:, np.newaxis]
    margins = _find_margins(learnt, evidence, roots)
    errors = logistic.undo_errors(margins, before, np.array([index]), reach)
    _apply_step(learnt, evidence, roots, errors, _NO_DECAY)


def _remove_shares(learnt: Tables, evidence: Evidence, counts: Ints32, index: int) -> None:
    """Take the share of one lesson from every weight.

    counts (K, n) are the lessons of every class with each feature, this one included. Lessons of a
    class have moved its weights up, those of all others down.
    """
    of_all = np.add.reduce(counts, axis=0, dtype=np.int32)
    for number, column in enumerate(logistic.weight_columns(learnt), start=1):
        lessons, sign = (counts[index], 1) if number == index else (of_all - counts[number], -1)
        weights = column[evidence.buckets]
        column[evidence.buckets] = logistic.remove_lesson_share(weights, lessons, sign)


# ---- all lessons

LEARNER_VERSION = 1
"""Version of the outcome of a replay: tables with another version are due for settling."""
BLOCK_LESSONS = 128  # scored together, before any of them is taught
STEP_LESSONS = 8  # learnt together by the logistic experts: one gather, one scatter
# fusion learns from the last lessons of each direction (corpora/RESULTS.md, "How many lessons
# fusion learns from")
FUSION_LESSONS = 2048
_TEMPORARY_BYTES = 1 << 24  # more than all temporaries of a block

LessonBlock = tuple[Sequence[str], Evidence]
"""Lessons side by side: the class of each, and their features."""


def replay(
    forwards: Iterable[LessonBlock],
    backwards: Iterable[LessonBlock],
    lessons: int,
    classes: Sequence[str],
    bits: int,
    traits: int,
    numbers: int,
    unwanted: frozenset[str] = frozenset({"spam"}),
) -> Tables:
    """Make tables that hold exactly these lessons, settled.

    Parameters
    ----------
    backwards
        The same lessons, the last one first.
    classes
        Those beside ham and spam, sorted; with these they are all labels.
    """
    # Have the C library keep what is freed: it returns memory larger than anything freed before.
    # Otherwise the temporaries of every block are pages faulted in again, six for each lesson.
    np.empty(_TEMPORARY_BYTES, np.uint8)

    def play(blocks: Iterable[LessonBlock], known: Ints32 | None = None) -> _Replayer:
        # with more than two classes a second set of weights, for those
        start_weights = np.tile(fusion.START_WEIGHTS, 2 if classes else 1)
        empty = tables.empty_tables(bits, traits, numbers, start_weights)
        for name in classes:
            tables.ensure_class_index(empty, name)
        if known is not None:
            tables.claim_blocks(empty, known)
        replayer = _Replayer(empty, unwanted, lessons)
        for labels, evidence in blocks:
            replayer.replay_block(labels, evidence)
        return replayer

    back = play(backwards)
    weights = back.take_weights()  # before others are made, with rows in the order of buckets
    replayer = play(forwards, back.tables.blocks)
    replayer.average_with(back, weights)
    return replayer.finish()


class _Replayer:
    """Tables while they grow."""

    def __init__(self, empty: Tables, unwanted: frozenset[str], lessons: int) -> None:
        self.tables, self.unwanted, self.lessons = empty, unwanted, lessons
        self.sides = tables.partition_classes(empty.classes, unwanted)
        self.fusion_lessons = np.zeros(2, np.intp)  # of wanted and unwanted mail

    def replay_block(self, labels: Sequence[str], batch: Evidence) -> None:
        """Score, step and count a block of lessons, in this order."""
        learnt = self.tables
        batch = batch._replace(buckets=tables.claim_places(learnt, batch.buckets))
        targets = np.array([learnt.classes.index(label) for label in labels])
        parameters = None
        if self.lessons - learnt.messages.sum() <= FUSION_LESSONS:
            parameters = experts.estimate_parameters(learnt, self.unwanted)
            counts = tables.read_counts(learnt, batch.buckets).astype(np.float64)
        margins = self._learn_batch(batch, targets)
        if parameters is not None:
            scores = experts.combine_scores(parameters, batch, counts, margins)
            self._learn_fusion(scores, targets)
        tables.add_sums(learnt, batch, targets)

    def _learn_batch(self, batch: Evidence, targets: Indices) -> Integers:
        """Learn weights and counts, STEP_LESSONS at a time.

        Returns the logistic log-odds before each step, (m, SETS, K-1).
        """
        borders = [*batch.starts[::STEP_LESSONS, 0].tolist(), len(batch.buckets)]
        roots = logistic.inverse_roots(batch.sizes)[..., np.newaxis]
        decay, lengths = logistic.weight_decay(batch.sizes), batch.sizes.sum(axis=1)
        truth, margins = targets[:, np.newaxis, np.newaxis], []
        for number, (start, end) in enumerate(pairwise(borders)):
            chosen = slice(number * STEP_LESSONS, (number + 1) * STEP_LESSONS)
            sizes, starts = batch.sizes[chosen], batch.starts[chosen] - start
            part = batch._replace(buckets=batch.buckets[start:end], sizes=sizes, starts=starts)
            before = _find_margins(self.tables, part, roots[chosen])
            errors = logistic.errors(before, truth[chosen])
            _apply_step(self.tables, part, roots[chosen], errors, decay[chosen].ravel())
            margins.append(before)
            # counted now, while their rows are in the cache
            logistic.count_features(self.tables, part.buckets, lengths[chosen], targets[chosen])
        return np.concatenate(margins)

    def _learn_fusion(self, scores: Integers, targets: Indices) -> None:
        learnt = self.tables
        bad = np.isin(targets, self.sides.unwanted).astype(np.intp)
        if (
            learnt.messages.any()
        ):  # before the first block nothing is counted, nothing can be learnt
            self.fusion_lessons += np.bincount(bad, minlength=2)
        weights, biases = fusion.side_weights(learnt.fusion_weights), learnt.fusion_biases[:1]
        for first in range(0, len(targets), STEP_LESSONS):
            block = slice(first, first + STEP_LESSONS)
            fusion.update_weights(scores[block, -1:], bad[block], weights, biases)
            if len(learnt.classes) > N_BASE:
                fusion.update_class_weights(scores[block, :-1], targets[block], learnt, self.sides)

    def take_weights(self) -> list[Ints32]:
        """The weights of all rows in use, in order, of every class but the first; rows go."""
        learnt = self.tables
        places = tables.block_places(learnt, tables.used_blocks(learnt.blocks))
        weights = [column[places] for column in logistic.weight_columns(learnt)]
        learnt.rows, learnt.columns = np.zeros((0, 4), np.int32), []
        return weights

    def average_with(self, back: _Replayer, weights: Sequence[Ints32]) -> None:
        """Take the mean of both directions, that of fusion by how much each had to learn from.

        The few lessons of one side may all come first in one direction, where nothing is known yet
        that they could correct.
        """
        learnt, other = self.tables, back.tables
        for every, theirs in zip(logistic.weight_columns(learnt), weights, strict=True):
            column = every[tables.BLOCK :][: len(theirs)]
            used = ((column | theirs) != 0).nonzero()[0]
            first, second = column.take(used), theirs.take(used)
            # the mean rounded down; the sum of both might not fit
            column[used] = (first >> 1) + (second >> 1) + (first & second & 1)
        learnt.biases[:] = learnt.biases + other.biases >> 1
        here, there = int(self.fusion_lessons.min()), int(back.fusion_lessons.min())
        if not here and not there:
            here = there = 1
        for name in ("fusion_weights", "fusion_biases"):
            mine, theirs = getattr(learnt, name), getattr(other, name)
            mine[:] = (mine * here + theirs * there) // (here + there)

    def finish(self) -> Tables:
        """The tables, with vocabulary and histogram made from the counts."""
        learnt = self.tables
        blocks, per_set = tables.used_blocks(learnt.blocks), len(learnt.blocks) // N_TOKEN_SETS
        by_set = np.split(blocks, blocks.searchsorted(np.arange(1, N_TOKEN_SETS) * per_set))
        for number, each in enumerate(by_set):
            counts = tables.read_counts(learnt, tables.block_places(learnt, each))
            known = counts.compress(reduce(or_, counts) != 0, axis=1)
            learnt.vocabulary[number] = known.shape[1]
            if not number:  # words
                width = int(known.max(initial=0)) + 2
                learnt.histogram = np.stack([np.bincount(row, minlength=width) for row in known])
        return learnt
