"""Numbers for the page: the last hours, the model, and whether all is well, in words.

Counts come from indexes of history and ledger; reading features, or all of the ledger, only to
count would take too long. `check_daemon` looks at processes, folders, accounts and disk; what it is
told of filter and next hops comes from `HealthReporter`, which asks them. `judge_health` puts these
problems beside what the model lacks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import ACCOUNTS_SIGHTINGS, Settings
from spamguard.counters import DaemonReport
from spamguard.engine import snapshot
from spamguard.engine.policy import missing_lessons
from spamguard.imap.status import AccountStatus, read_status
from spamguard.learning.status_files import read_watcher_status
from spamguard.proxy.history_search import HistoryFilter
from spamguard.records import Explanation, Status
from spamguard.storage import describe_disk
from spamguard.web import models
from spamguard.web.auth import Person
from spamguard.web.history import EVERYTHING, Reader

_HOUR_SECONDS = 3600


def summarize_hours(reader: Reader, person: Person, hours: int) -> models.Today:
    reader.check_searchable(person, EVERYTHING)
    reader.catch_up()
    start = (int(time.time()) // _HOUR_SECONDS - hours + 1) * _HOUR_SECONDS
    period = HistoryFilter(since=start, parts=reader.search_parts(person))
    search = reader.history
    mail: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for hour, label, recipients, number in search.count_by_hour(start, period):
        if reader.may_see(person, recipients):
            mail[hour][label] += number
    confusion: Counter[tuple[str, str]] = Counter()
    for label, lesson, recipients, number in search.count_verdicts_and_lessons(period):
        if reader.may_see(person, recipients):
            confusion[label, lesson] += number
    user, end = None if person.operator else person.voter, start + hours * _HOUR_SECONDS
    lessons = reader.ledger.users.count_by_hour(user, start, end)
    rows = [
        models.Hour(start + at * _HOUR_SECONDS, dict(mail[at]), lessons.get(at, 0))
        for at in range(hours)
    ]
    passed = sum(counts.total() for counts in mail.values())
    mistakes = [
        models.ConfusionCell(label, lesson, n) for (label, lesson), n in sorted(confusion.items())
    ]
    return models.Today(rows, passed, sum(row.lessons for row in rows), mistakes)


# ---- the model


def summarize_model(reader: Reader, status: Status, person: Person) -> models.Model:
    votes = reader.ledger.users
    last = votes.last_vote_times()
    users = [
        models.User(user, lessons, last.get(user))
        for user, lessons in votes.count_lessons().items()
        if person.operator or user == person.voter
    ]
    return models.Model(
        {
            name: models.Class(number, name in status.unwanted)
            for name, number in status.classes.items()
        },
        missing_lessons(status.classes, status.unwanted, status.stayed),
        status.unsettled,
        sorted(users, key=lambda user: -(user.last or 0)),
    )


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


# ---- the daemon


class DaemonHealth(NamedTuple):
    """The daemon when it was looked at (seconds since 1970), and a line for each problem."""

    looked_at: float
    problems: Sequence[str]
    accounts: Mapping[str, AccountStatus]


def check_daemon(settings: Settings, report: DaemonReport, found: Sequence[str]) -> DaemonHealth:
    """Look at the daemon. found: what is wrong with filter, next hops and the shared log."""
    problems = [*report.stuck, *report.missing_scorers, *report.absent]
    if settings.watch:
        problems += _folder_problems(settings.state)
    accounts = read_status(settings.state) if settings.accounts else {}
    if accounts:
        problems += _folder_problems(settings.state / ACCOUNTS_SIGHTINGS)
        for name, account in accounts.items():
            problems += [f"account {name}: {account.trouble}"] * bool(account.trouble)
    problems += found
    disk, remedy = describe_disk(settings.state, snapshot.snapshot_bytes(settings.state))
    problems += [f"disk: {disk}: {remedy}"] * bool(remedy)
    return DaemonHealth(time.time(), problems, accounts)


def _folder_problems(place: Path) -> list[str]:
    status = read_watcher_status(place)
    return [
        f"folders: {f'{trouble.user}: ' if trouble.user else ''}{trouble.text}"
        for trouble in (status.troubles if status else ())
        if time.time() - trouble.since >= 120  # most troubles of the watcher pass sooner
    ]


def judge_health(daemon: DaemonHealth | None, model: models.Model) -> list[str]:
    """Say what needs something to be done, in sentences: all is well if there is none.

    daemon: None for people who are not operators.
    """
    worries = [*daemon.problems] if daemon else []
    if model.missing:
        worries.append(f"{model.missing[0].upper()}{model.missing[1:]}.")
    return worries
