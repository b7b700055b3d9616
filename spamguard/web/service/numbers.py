"""Numbers of the last hours and of all that was learnt. Must never read features, or all of the ledger, to count."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from spamguard.engine import Filter
from spamguard.history.looks import Wanted
from spamguard.ids import RANDOM_BYTES, new_id
from spamguard.ledger.users import Cast
from spamguard.policy import UNSURE, missing
from spamguard.proxy.journal import NOT_SCANNED
from spamguard.records import EXTRACTOR, Status
from spamguard.web.service.reading import Reading
from spamguard.web.service.scope import Scope, voice
from spamguard.web.service.values import MOST_HOURS, Bin, Class, Growth, Hour, Model, Person, Table, Today, User, Wrong

_HOUR, _DAY = 3600, 86_400  # seconds
_VOTES = 20_000  # the latest of the time, that are held against what had been said
_SCORED = 5000  # of the last events, that calibration is drawn from
_BINS = 10
_NO_OPINION = (UNSURE, NOT_SCANNED)


def today(reading: Reading, scope: Scope, person: Person, hours: int) -> Today:
    """The last hours, whole ones, the one that has begun among them."""
    reading.catch_up()
    hours = max(1, min(hours, MOST_HOURS))
    start = (int(time.time()) // _HOUR - hours + 1) * _HOUR
    wanted = Wanted(since=start, first=new_id(start, bytes(RANDOM_BYTES)), parts=scope.parts(person))
    mail: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for hour, label, recipients, number in reading.history.looks.by_hour(start, wanted):
        if scope.may_see(person, recipients):
            mail[hour][label] += number
    wrong: Counter[tuple[str, str]] = Counter()
    for said, taught, recipients, number in reading.history.looks.said_and_taught(wanted):
        if scope.may_see(person, recipients):
            wrong[said, taught] += number
    lessons, corrections = _lessons(reading, person, start, start + hours * _HOUR)
    told = [Hour(start + at * _HOUR, dict(mail[at]), lessons.get(at, 0), corrections[at]) for at in range(hours)]
    spoken = [Wrong(said, taught, number) for (said, taught), number in sorted(wrong.items())]
    return Today(told, sum(counts.total() for counts in mail.values()), sum(one.lessons for one in told), spoken)


def _lessons(reading: Reading, person: Person, start: int, end: int) -> tuple[Mapping[int, int], Counter[int]]:
    """By hour, how many votes, and how many of them against what had been said to that user when the message passed."""
    user = None if person.operator else voice(person)
    users = reading.ledger.users
    lately = users.cast_lately(user, start, end, _VOTES)
    said: defaultdict[bytes, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    for digest, label, personal in reading.history.looks.of_digests(vote.digest for vote in lately):
        said[digest].append((label, personal))
    corrections = Counter((vote.time - start) // _HOUR for vote in lately if _corrects(vote, said[vote.digest]))
    return users.cast_by_hour(user, start, end), corrections


def _corrects(vote: Cast, said: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    labels = {personal.get(vote.user, label) for label, personal in said}
    return any(label not in (*_NO_OPINION, vote.label) for label in labels)


# ---- the model


@dataclass(frozen=True, slots=True)
class Taught:
    """What the ledger tells of the model. scores: by class, first-time scores of the last messages."""

    growth: Sequence[Growth]
    users: Sequence[User]
    scores: Mapping[str, list[bytes]]


def taught(reading: Reading) -> Taught:
    """Once in a while: it goes through an index of all votes."""
    users = reading.ledger.users
    days = users.by_day()
    growth = [Growth(day * _DAY, whole) for day, whole in zip(days, accumulate(days.values()), strict=True)]
    scores: defaultdict[str, list[bytes]] = defaultdict(list)
    for label, scored in users.scored_after(reading.ledger.last_seq() - _SCORED, EXTRACTOR).values():
        scores[label].append(scored)
    last, lessons = users.last_times(), users.lessons()
    told = [User(user, lessons[user], last.get(user)) for user in sorted(lessons, key=lambda user: -last.get(user, 0))]
    return Taught(growth, told, dict(scores))


def model(spam_filter: Filter, found: Taught, person: Person) -> Model:
    """As of now."""
    status = spam_filter.status()
    own = [one for one in found.users if person.operator or one.user == voice(person)]
    return Model(
        classes(status),
        missing(status.classes, status.unwanted),
        tables(status),
        status.events,
        status.unsettled,
        status.extractor,
        status.fingerprint,
        found.growth,
        _calibration(spam_filter, found.scores),
        own,
    )


def classes(status: Status) -> Mapping[str, Class]:
    """Lessons of each."""
    return {name: Class(number, name in status.unwanted) for name, number in status.classes.items()}


def tables(status: Status) -> Mapping[str, Table]:
    """How full each is."""
    return {name: Table(status.vocabulary.get(name, 0), load) for name, load in status.used.items()}


def _calibration(spam_filter: Filter, scores: Mapping[str, list[bytes]]) -> list[Bin]:
    sides = [[one for label, some in scores.items() if (label in spam_filter.unwanted) == bad for one in some] for bad in (False, True)]
    good, bad = (1.0 / (1.0 + np.exp(-np.clip(spam_filter.as_fused_now(side), -700, 700))) for side in sides)
    return list(filter(None, (_bin(number / _BINS, (number + 1) / _BINS, good, bad) for number in range(_BINS))))


def _bin(low: float, high: float, good: NDArray[np.float64], bad: NDArray[np.float64]) -> Bin | None:
    """Of the predictions from `low` on and below `high`, or up to 1; None: there are none."""
    inside = [side[(side >= low) & ((side < high) | (high >= 1.0))] for side in (good, bad)]
    messages = len(inside[0]) + len(inside[1])
    if not messages:
        return None
    return Bin(low, high, messages, float(np.concatenate(inside).mean()), len(inside[1]) / messages)
