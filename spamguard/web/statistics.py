"""Numbers for the page: the last hours, and the model.

They come from indexes of history and ledger; reading features, or all of the ledger, only to count
would take too long.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from spamguard import __version__
from spamguard.engine.filter import Filter
from spamguard.engine.policy import UNSURE, missing_lessons
from spamguard.proxy.history import NOT_SCANNED
from spamguard.proxy.history_search import HistoryFilter
from spamguard.records import Explanation, Status
from spamguard.web import models
from spamguard.web.auth import Person
from spamguard.web.workers import ReadConnection, Visibility

_HOUR_SECONDS = 3600
_MAX_VOTES = 20_000  # the latest votes that are compared with verdicts


def summarize_hours(
    reading: ReadConnection, visibility: Visibility, person: Person, hours: int
) -> models.Today:
    """Count mail, lessons and mistakes of the last whole hours, the current hour included."""
    reading.catch_up()
    start = (int(time.time()) // _HOUR_SECONDS - hours + 1) * _HOUR_SECONDS
    parts = visibility.search_parts(person)
    period = HistoryFilter(since=start, parts=parts)
    search = reading.history
    mail: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for hour, label, recipients, number in search.count_by_hour(start, period):
        if visibility.may_see(person, recipients):
            mail[hour][label] += number
    confusion: Counter[tuple[str, str]] = Counter()
    for label, lesson, recipients, number in search.count_verdicts_and_lessons(period):
        if visibility.may_see(person, recipients):
            confusion[label, lesson] += number
    user, end = None if person.operator else person.voter, start + hours * _HOUR_SECONDS
    lessons = reading.ledger.users.count_by_hour(user, start, end)
    corrections = _count_corrections(reading, user, start, end)
    rows = [
        models.Hour(start + at * _HOUR_SECONDS, dict(mail[at]), lessons.get(at, 0), corrections[at])
        for at in range(hours)
    ]
    passed = sum(counts.total() for counts in mail.values())
    mistakes = [
        models.ConfusionCell(label, lesson, n) for (label, lesson), n in sorted(confusion.items())
    ]
    return models.Today(rows, passed, sum(row.lessons for row in rows), mistakes)


def _count_corrections(
    reading: ReadConnection, user: str | None, start: int, end: int
) -> Counter[int]:
    """Count, by hour, the votes that contradict the verdict that their user got."""
    votes = reading.ledger.users.latest_votes(user, start, end, _MAX_VOTES)
    verdicts: defaultdict[bytes, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    digests = [vote.digest for vote in votes]
    for digest, label, personal in reading.history.find_verdicts(digests):
        verdicts[digest].append((label, personal))
    return Counter(
        (vote.time - start) // _HOUR_SECONDS
        for vote in votes
        if any(
            personal.get(vote.user, label) not in (UNSURE, NOT_SCANNED, vote.label)
            for label, personal in verdicts[vote.digest]
        )
    )


# ---- the model


def summarize_users(reading: ReadConnection) -> Sequence[models.User]:
    """Count the lessons of each user, the latest first; goes through an index of all votes."""
    users = reading.ledger.users
    last, lessons = users.last_vote_times(), users.count_lessons()
    return [
        models.User(user, lessons[user], last.get(user))
        for user in sorted(lessons, key=lambda user: -last.get(user, 0))
    ]


def summarize_model(
    spam_filter: Filter, users: Sequence[models.User], person: Person
) -> models.Model:
    """Describe the filter as it is now."""
    status = spam_filter.status()
    return models.Model(
        summarize_classes(status),
        missing_lessons(status.classes, status.unwanted),
        status.events,
        status.unsettled,
        status.extractor,
        status.fingerprint,
        [row for row in users if person.operator or row.user == person.voter],
    )


def summarize_classes(status: Status) -> Mapping[str, models.Class]:
    """Count the lessons of each class."""
    return {
        name: models.Class(number, name in status.unwanted)
        for name, number in status.classes.items()
    }


def filter_status(spam_filter: Filter) -> dict[str, Any]:
    """Under the names of `spamguard status --json`."""
    status = spam_filter.status()
    return {
        "key": status.fingerprint,
        "versions": {"program": __version__, "extractor": status.extractor},
        "classes": {name: asdict(row) for name, row in summarize_classes(status).items()},
        "events": status.events,
        "unsettled": status.unsettled,
        "buckets": status.buckets,
        "tables": {
            name: {"used": status.vocabulary.get(name, 0), "load": load}
            for name, load in status.used.items()
        },
        "bytes": {"ledger": status.ledger_bytes, "tables": status.tables_bytes},
    }


MIN_LESSONS = 5
"""Below so many lessons, only operators see the counts of a word: they may be from others' mail."""


def mask_rare_words(why: Explanation) -> Explanation:
    """Hide the counts of rare words from people who are not operators.

    What such a word adds stays: the verdict on a message of that one word would tell it too.
    """
    clues = [
        clue if sum(clue.counts.values()) >= MIN_LESSONS else replace(clue, counts={})
        for clue in why.clues
    ]
    return replace(why, clues=clues)
