"""Numbers for the page: the last hours, the model, and whether all is well, in words.

Counts come from indexes of history and ledger; reading features, or all of the ledger, only to
count would take too long. `check_daemon` looks at the listeners, the other processes, folders and
disk; what it is told of filter and next hops comes from
`HealthReporter`, which asks them. `judge_health` puts the problems of these parts beside what the
model lacks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import ACCOUNTS_SIGHTINGS, Settings
from spamguard.counters import DaemonReport
from spamguard.engine import snapshot
from spamguard.engine.policy import missing_lessons
from spamguard.imap.status import read_status
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


def summarize_users(reader: Reader) -> Sequence[models.User]:
    users = reader.ledger.users
    last, lessons = users.last_vote_times(), users.count_lessons()
    return [
        models.User(user, lessons[user], last.get(user))
        for user in sorted(lessons, key=lambda user: -last.get(user, 0))
    ]


def summarize_model(status: Status, users: Sequence[models.User], person: Person) -> models.Model:
    return models.Model(
        summarize_classes(status),
        missing_lessons(status.classes, status.unwanted, status.stayed),
        status.unsettled,
        [row for row in users if person.operator or row.user == person.voter],
    )


def summarize_classes(status: Status) -> Mapping[str, models.Class]:
    return {
        name: models.Class(number, name in status.unwanted)
        for name, number in status.classes.items()
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


# ---- the daemon

_LASTING_SECONDS = 120  # most troubles of the watcher pass sooner


class PartHealth(NamedTuple):
    """A part of the daemon, and how it is. time: when that was, seconds since 1970; None: now.

    problems: a line for each; without any the part is well.
    """

    name: str
    detail: str
    problems: Sequence[str] = ()
    time: float | None = None


class DaemonHealth(NamedTuple):
    """The daemon when it was looked at. looked_at, began: seconds since 1970. messages: since it
    began.
    """

    looked_at: float
    began: int
    messages: int
    parts: Sequence[PartHealth]

    @property
    def problems(self) -> list[str]:
        return [line for part in self.parts for line in part.problems]


def check_daemon(
    settings: Settings,
    report: DaemonReport,
    filter_trouble: str,
    last_taught: int | None,
    unreachable: Sequence[str],
) -> DaemonHealth:
    listening = [*(each.listen for each in settings.listeners)]
    listening += [each.listen for each in settings.scanners]
    hops = dict.fromkeys(str(each.next_hop.to) for each in settings.listeners)
    filter_detail = "the ledger can be read" + (", a person last taught" if last_taught else "")
    try:
        disk, remedy = describe_disk(settings.state, snapshot.snapshot_bytes(settings.state))
    except OSError as error:
        disk, remedy = f"{settings.state}: {error.strerror}", "see `spamguard doctor`"
    parts = [
        PartHealth(
            "Listeners",
            ", ".join(map(str, listening)),
            [*report.stuck, *report.missing_scorers],
        ),
        PartHealth("Other processes", "all have been heard lately", report.absent),
        *([_check_folders(settings.state)] if settings.watch else ()),
        *([_check_folders(settings.state / ACCOUNTS_SIGHTINGS)] if settings.accounts else ()),
        *_check_accounts(settings),
        *([PartHealth("Next hops", ", ".join(hops), unreachable)] if hops else ()),
        PartHealth("Filter", filter_detail, [filter_trouble] * bool(filter_trouble), last_taught),
        *([_check_shared(settings)] if settings.shared else ()),
        PartHealth("Disk", disk, [f"disk: {disk}: {remedy}"] * bool(remedy)),
    ]
    return DaemonHealth(
        time.time(),
        report.began,
        sum(report.counters.messages.values()),
        parts,
    )


def _check_folders(place: Path) -> PartHealth:
    status, now = read_watcher_status(place), time.time()
    if status is None:
        return PartHealth("Folders", "no watcher has been seen yet")
    lasting = [
        f"folders: {f'{trouble.user}: ' if trouble.user else ''}{trouble.text}"
        for trouble in status.troubles
        if now - trouble.since >= _LASTING_SECONDS
    ]
    detail = f"mailboxes watched: {status.mailboxes:,}, last"
    return PartHealth("Folders", detail, lasting, status.seen)


def _check_accounts(settings: Settings) -> Iterator[PartHealth]:
    statuses = read_status(settings.state) if settings.accounts else {}
    for account in settings.accounts:
        if status := statuses.get(account.name):
            trouble = [f"account {account.name}: {status.trouble}"] * bool(status.trouble)
            yield PartHealth(f"Account {account.name}", status.text, trouble)
        else:
            yield PartHealth(f"Account {account.name}", f"{account.mode}, not looked at yet")


def _check_shared(settings: Settings) -> PartHealth:
    from spamguard.shared.status import read_status  # noqa: PLC0415  on such nodes only

    status, now = read_status(settings.state), time.time()
    others = max(0, len(status.nodes) - 1)
    waiting = f", {status.waiting:,} lessons to be sent" if status.waiting else ""
    detail = f"other nodes: {others}, {status.position:,} events{waiting}, last read"
    return PartHealth("Shared log", detail, list(status.notes(now)), status.contact or None)


# ---- what is wrong

_SETTLE_LATE = 0.2  # of all lessons: twice what makes settling due
_MIN_UNSETTLED = 20


def judge_health(daemon: DaemonHealth | None, model: models.Model) -> list[str]:
    """Say what needs something to be done, in sentences: all is well if there is none.

    daemon: None for people who are not operators.
    """
    worries = daemon.problems if daemon else []
    if model.missing:
        worries.append(f"{model.missing[0].upper()}{model.missing[1:]}.")
    lessons = sum(row.messages for row in model.classes.values())
    if lessons and model.unsettled > max(_MIN_UNSETTLED, _SETTLE_LATE * lessons):
        worries.append(
            f"{model.unsettled:,} lessons wait for settling, more than is usual. If the number "
            "does not fall within an hour, see the log of the daemon."
        )
    return worries
