"""How a filter is tried out: which messages it is taught, and when, between judging them.

No message is judged after it was taught, and the user's own model is never touched: every run has a filter of its own in a
temporary directory. The protocols are those of the TREC spam track (Cormack & Lynam 2005) and of how people really teach.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from spamguard import secret
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.engine import Filter
from spamguard.evaluation.report import Scored
from spamguard.prepare import Preparer, Teaching
from spamguard.sources import Message

# The key decides which tokens collide and in which order lessons are replayed. A filter that lives for one trial guards no secret;
# with the same key for all, the same mail gives the same figures.
_KEY = b"the key of every filter on trial"


@dataclass(frozen=True, slots=True)
class Trial:
    """One message judged: its scores row, and its probability of being unwanted."""

    row: Scored
    probability: float


@dataclass(frozen=True, slots=True)
class Settings:
    """profile: how to judge. delay: messages until feedback comes, in `delayed`. share: taught first, in `split`.
    unwanted: whether a class is, other than ham and spam."""

    profile: str
    delay: int = 500
    share: float = 0.7
    unwanted: Callable[[str], bool] = lambda _: False


def run(protocol: str, messages: Callable[[], Iterable[Message]], settings: Settings) -> Generator[Trial]:
    """Try a filter out on labelled messages, in their order. messages: gives them anew each time it is called."""
    with tempfile.TemporaryDirectory(prefix="spamguard-evaluate-") as directory:
        secret.store(Path(directory) / "key", _KEY)
        with Filter.open(directory, profile=settings.profile, durable=False) as subject:
            yield from PROTOCOLS[protocol](_Pupil(subject, settings.unwanted), messages, settings)


class _Pupil:
    """A filter under trial: reads each message once, for judging and for teaching."""

    def __init__(self, subject: Filter, unwanted: Callable[[str], bool]) -> None:
        self._filter = subject
        self._unwanted = unwanted
        self._preparer = Preparer(subject.key)
        self._number = 0
        self._classes = {*BASE_CLASSES}

    def judge(self, message: Message, *, taught: bool | None) -> tuple[Trial, Teaching]:
        """Judge a message. taught: whether it will be taught; None: only if the verdict is wrong or unsure."""
        ready = self._preparer.ready(message.raw)
        verdict = self._filter.judge_features(ready.features)
        self._number += 1
        gold = str(message.label)
        trained = verdict.label != gold if taught is None else taught
        row = Scored(self._number, gold, verdict.label, verdict.log_odds, trained)
        return Trial(row, verdict.probability), ready

    def teach(self, ready: Teaching, label: str) -> None:
        """Teach it, and settle when the running daemon would."""
        self._learn(ready, label)
        self._filter.settle_if_due()

    def teach_first(self, messages: Iterable[Message]) -> None:
        """Teach messages without judging them, then settle."""
        for message in messages:
            self._learn(self._preparer.ready(message.raw), str(message.label))
            self._number += 1
        self._filter.settle()

    def _learn(self, ready: Teaching, label: str) -> None:
        """Whatever class a corpus has is meant, however much it looks like another one."""
        if label not in self._classes:
            self._filter.define_class(label, unwanted=self._unwanted(label))
            self._classes.add(label)
        self._filter.learn_ready([ready], label)


def _online(pupil: _Pupil, messages: Callable[[], Iterable[Message]], _settings: Settings) -> Iterator[Trial]:
    """Immediate feedback: judge, then teach, every message."""
    for message in messages():
        trial, ready = pupil.judge(message, taught=True)
        yield trial
        pupil.teach(ready, trial.row.gold)


def _delayed(pupil: _Pupil, messages: Callable[[], Iterable[Message]], settings: Settings) -> Iterator[Trial]:
    """Feedback comes `delay` messages late; for the last ones it comes too late."""
    waiting: deque[tuple[Trial, Teaching]] = deque()
    for message in messages():
        trial, ready = pupil.judge(message, taught=True)
        waiting.append((trial, ready))
        if len(waiting) > settings.delay:
            trial, ready = waiting.popleft()
            yield trial
            pupil.teach(ready, trial.row.gold)
    for trial, _ in waiting:
        yield Trial(trial.row._replace(trained=False), trial.probability)


def _corrections(pupil: _Pupil, messages: Callable[[], Iterable[Message]], _settings: Settings) -> Iterator[Trial]:
    """People teach only what was wrong or unsure."""
    for message in messages():
        trial, ready = pupil.judge(message, taught=None)
        yield trial
        if trial.row.trained:
            pupil.teach(ready, trial.row.gold)


def _split(pupil: _Pupil, messages: Callable[[], Iterable[Message]], settings: Settings) -> Iterator[Trial]:
    """The first part is taught, the rest judged by the settled filter, which learns no more."""
    border = int(settings.share * sum(1 for _ in messages()))
    later = iter(messages())
    pupil.teach_first(message for _, message in zip(range(border), later, strict=False))
    for message in later:
        yield pupil.judge(message, taught=False)[0]


PROTOCOLS: dict[str, Callable[[_Pupil, Callable[[], Iterable[Message]], Settings], Iterator[Trial]]] = {
    "online": _online,
    "delayed": _delayed,
    "corrections": _corrections,
    "split": _split,
}


def interleaved(ham: Iterable[Message], ham_count: int, spam: Iterable[Message], spam_count: int) -> Iterator[Message]:
    """Two folders as one stream: each keeps its own order, and both run out together."""

    def due(messages: Iterable[Message], count: int, label: str) -> Iterator[tuple[float, Message]]:
        return ((number / max(count, 1), Message(one.name, one.raw, label)) for number, one in enumerate(messages, 1))

    both = heapq.merge(due(ham, ham_count, "ham"), due(spam, spam_count, "spam"), key=itemgetter(0))
    return (message for _, message in both)
