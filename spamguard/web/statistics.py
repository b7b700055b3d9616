"""Numbers for the page: the last hours, the model, the counts of a word.

The numbers come from indexes of history and ledger; reading features, or all of the ledger, only
to count would take too long. Word counts come from the tables: every token that the extractor makes
of the word, wherever the word may stand in a message.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np

from spamguard import __version__
from spamguard.engine.filter import Filter
from spamguard.engine.policy import UNSURE, missing_lessons
from spamguard.engine.prepare import ExampleReader
from spamguard.errors import UsageError
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.mail.headers import host_token
from spamguard.proxy.delivery_log import NOT_SCANNED
from spamguard.proxy.history import readable
from spamguard.proxy.history_search import HistoryFilter
from spamguard.records import EXTRACTOR, Explanation, Features, Status
from spamguard.web import models
from spamguard.web.auth import Person
from spamguard.web.models import TokenCounts
from spamguard.web.workers import ReadConnection, Visibility

_HOUR_SECONDS = 3600
_MAX_VOTES = 20_000  # the latest votes that are compared with verdicts


def summarize_hours(
    reading: ReadConnection, visibility: Visibility, person: Person, hours: int
) -> models.Today:
    """Count mail, lessons and mistakes of the last whole hours, the current hour included."""
    reading.catch_up()
    hours = max(1, min(hours, models.MAX_HOURS))
    start = (int(time.time()) // _HOUR_SECONDS - hours + 1) * _HOUR_SECONDS
    parts = visibility.search_parts(person)
    period = HistoryFilter(since=start, first=new_id(start, bytes(RANDOM_BYTES)), parts=parts)
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
    digests = (vote.digest for vote in votes)
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

_DAY_SECONDS = 86_400
_MAX_SCORED = 5000  # of the last votes, for the calibration
_BINS = 10


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """The part of the model page that comes from the ledger.

    scores: first-time scores of the last messages, by class.
    """

    growth: Sequence[models.Growth]
    users: Sequence[models.User]
    scores: Mapping[str, list[bytes]]


def summarize_ledger(reading: ReadConnection) -> LedgerSummary:
    """Go through an index of all votes: do so seldom."""
    users = reading.ledger.users
    days = users.count_by_day()
    growth = [
        models.Growth(day * _DAY_SECONDS, total)
        for day, total in zip(days, accumulate(days.values()), strict=True)
    ]
    scores: defaultdict[str, list[bytes]] = defaultdict(list)
    scored = users.latest_scores(_MAX_SCORED, EXTRACTOR)
    for label, message_scores in scored.values():
        scores[label].append(message_scores)
    last, lessons = users.last_vote_times(), users.count_lessons()
    rows = [
        models.User(user, lessons[user], last.get(user))
        for user in sorted(lessons, key=lambda user: -last.get(user, 0))
    ]
    return LedgerSummary(growth, rows, dict(scores))


def summarize_model(spam_filter: Filter, ledger: LedgerSummary, person: Person) -> models.Model:
    """Describe the filter as it is now."""
    status = spam_filter.status()
    name = person.voter
    return models.Model(
        summarize_classes(status),
        missing_lessons(status.classes, status.unwanted),
        summarize_tables(status),
        status.events,
        status.unsettled,
        status.extractor,
        status.fingerprint,
        ledger.growth,
        _calibrate(spam_filter, ledger.scores),
        [row for row in ledger.users if person.operator or row.user == name],
    )


def summarize_classes(status: Status) -> Mapping[str, models.Class]:
    """Count the lessons of each class."""
    return {
        name: models.Class(number, name in status.unwanted)
        for name, number in status.classes.items()
    }


def summarize_tables(status: Status) -> Mapping[str, models.Table]:
    """Measure how full each table is."""
    return {
        name: models.Table(status.vocabulary.get(name, 0), load)
        for name, load in status.used.items()
    }


def filter_status(spam_filter: Filter) -> dict[str, Any]:
    """Under the names of `spamguard status --json`."""
    status = spam_filter.status()
    classes, tables = summarize_classes(status), summarize_tables(status)
    return {
        "key": status.fingerprint,
        "versions": {"program": __version__, "extractor": status.extractor},
        "classes": {name: asdict(summary) for name, summary in classes.items()},
        "events": status.events,
        "unsettled": status.unsettled,
        "buckets": status.buckets,
        "tables": {name: asdict(summary) for name, summary in tables.items()},
        "bytes": {"ledger": status.ledger_bytes, "tables": status.tables_bytes},
    }


def _calibrate(spam_filter: Filter, scores: Mapping[str, list[bytes]]) -> list[models.Bin]:
    """Compare first-time probabilities with what people said; bins without messages are left out.

    The last bin includes a probability of 1.
    """
    wanted, unwanted = (
        1.0 / (1.0 + np.exp(-np.clip(spam_filter.fuse_scores(side), -700, 700)))
        for side in (
            [
                message_scores
                for label, label_scores in scores.items()
                if (label in spam_filter.unwanted) == is_unwanted
                for message_scores in label_scores
            ]
            for is_unwanted in (False, True)
        )
    )
    bins = []
    for number in range(_BINS):
        low, high = number / _BINS, (number + 1) / _BINS
        inside = [
            side[(side >= low) & ((side < high) | (high >= 1.0))] for side in (wanted, unwanted)
        ]
        messages = len(inside[0]) + len(inside[1])
        if messages:
            mean, share = float(np.concatenate(inside).mean()), len(inside[1]) / messages
            bins.append(models.Bin(low, high, messages, mean, share))
    return bins


# ---- words

MIN_LESSONS = 5
"""Below so many lessons, only operators see the counts of a word: they may be from others' mail."""
_MAX_WORD = 64  # characters
_MAX_TOKENS = 100
_NO_TRAITS, _NO_NUMBERS = np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16)

# A message with the word in every place that the extractor reads: so it names the tokens itself.
_WORD_EVERYWHERE = """\
From: {0} <{0}@{0}>
To: {0} <{0}@{0}>
Cc: {0} <{0}@{0}>
Reply-To: {0} <{0}@{0}>
Sender: {0} <{0}@{0}>
Subject: {0}
Received: from {0} by {0}
Message-ID: <{0}@{0}>
List-Id: {0} <{0}>
Organization: {0}
User-Agent: {0}
X-Mailer: {0}
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="="

--=
Content-Type: text/plain; charset=utf-8

{0}

http://{0}/{0}

--=
Content-Type: text/html; charset=utf-8

<html><body><p>{0}</p><a href="http://{0}/{0}">{0}</a><{0} {0}="{0}"><img alt="{0}" src="{0}">
<span style="display:none">{0}</span></body></html>

--=
Content-Type: application/octet-stream; name="{0}"
Content-Disposition: attachment; filename="{0}"

--=--
"""


def count_word(spam_filter: Filter, word: str, min_lessons: int = 1) -> Sequence[TokenCounts]:
    """Count all tokens of a word, or of two neighbours; the most frequent token comes first.

    UsageError: the text is not a word.
    """
    word = " ".join(word.split())
    if not word or word != readable(word, _MAX_WORD):
        raise UsageError(f"a word has 1 to {_MAX_WORD} letters")
    extractor = ExampleReader(spam_filter.key).extractor
    in_text = extractor.token_texts(f"\n{word}\n".encode()).values()
    words = {text for text in in_text if ":" not in text}
    neighbours = {text for text in words if " " in text}
    texts = {*(neighbours or words), host_token(word.lower().encode()).decode()}
    everywhere = extractor.token_texts(_WORD_EVERYWHERE.format(word).encode())
    tokens = (item for item in everywhere.items() if item[1].rpartition(":")[2] in texts)
    rows = []
    for token, text in islice(tokens, _MAX_TOKENS):
        message = Features(np.array([token], np.uint32), _NO_TRAITS, _NO_NUMBERS)
        (clue,) = spam_filter.explain_features(message, {token: text}).clues
        if _lesson_count(clue.counts) >= min_lessons:
            rows.append(TokenCounts(text, dict(clue.counts), clue.part))
    return sorted(rows, key=lambda row: (-_lesson_count(row.messages), row.text))


def mask_rare_words(why: Explanation) -> Explanation:
    """Hide the counts of rare words from people who are not operators.

    What such a word adds stays: the verdict on a message of that one word would tell it too.
    """
    clues = [
        clue if _lesson_count(clue.counts) >= MIN_LESSONS else replace(clue, counts={})
        for clue in why.clues
    ]
    return replace(why, clues=clues)


def _lesson_count(counts: Mapping[str, int]) -> int:
    return sum(counts.values())
