"""The part of `status` about users and the watcher."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.learning import status_files
from spamguard.learning.status_files import (
    DROPPED_FILE,
    RefusalLog,
    RefusedLessons,
    WatcherStatus,
    WatcherTrouble,
    write_dropped,
)
from tests.unit.cli.conftest import new_mail


def note(state, **values):
    found = WatcherStatus(**{"began": 0, "seen": int(time.time()), "mailboxes": 2, **values})
    (state / status_files.WATCHER_FILE).write_text(json.dumps(asdict(found)))


def say(state, user, label, number, origin="folder Junk"):
    with Filter.open(state) as spam_filter:
        spam_filter.learn_examples(
            [ExampleReader(spam_filter.key).read_example(raw) for raw in new_mail(label, number)],
            label,
            user=user,
            origin=origin,
        )


def test_refusals(run, status_of, taught, one_day):
    note(
        taught,
        refused={"anna": RefusedLessons(one_day.isoformat(), 7, int(time.time()) + 5, "Junk")},
    )
    answer = status_of(taught)
    (warning,) = answer["warnings"]
    assert warning.startswith("anna: 7 lessons of ")
    assert "lessons_per_day" in warning
    out = run(taught, "status").out
    assert "\nwarning: anna: 7 lessons" in out
    note(taught, refused={"anna": RefusedLessons("2020-01-01", 7, 1_577_836_800, "Junk")})
    assert status_of(taught)["warnings"] == []  # that is long ago


def test_dropped_lessons_of_programs(status_of, taught, one_day):
    refusals = RefusalLog({})
    refusals.add("anna", "teach-pipe", 3)
    write_dropped(taught, refusals)
    answer = status_of(taught)
    (warning,) = answer["warnings"]
    assert re.fullmatch(
        (
            r"anna: 3 lessons of \S+ were dropped, the last one by teach-pipe at .*: "
            r"beyond lessons_per_day"
        ),
        warning,
    )
    old = json.loads((taught / DROPPED_FILE).read_bytes())
    old["anna"]["last"] -= 100_000
    (taught / DROPPED_FILE).write_text(json.dumps(old))
    assert status_of(taught)["warnings"] == []


def test_trouble_is_a_warning_if_it_lasts(status_of, taught):
    now = int(time.time())
    note(
        taught,
        troubles=(
            WatcherTrouble("anna", "Junk: cannot be looked at", now - 180),
            WatcherTrouble("", "the disk is full", now - 60),
        ),
    )
    (warning,) = status_of(taught)["warnings"]
    assert warning.startswith("since ")
    assert warning.endswith(": Junk: cannot be looked at")


def test_a_damaged_status_file_counts_as_none(run, status_of, taught):
    text = '{"began": 1e400, "seen": 1, "mailboxes": "x", "refused": {}, "troubles": [{"text": 1}]}'
    (taught / status_files.WATCHER_FILE).write_text(text)
    assert "nobody has watched folders here" in run(taught, "status").out
    assert status_of(taught)["watcher"] is None
