"""Sightings are kept, found again after a restart, small and private, and their errors are one
line.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from spamguard.errors import SpamguardError
from spamguard.folders.reconcile import Sighting
from spamguard.folders.sightings import (
    DAMAGED_SUFFIX,
    MAX_GONE_SECONDS,
    SIGHTINGS_FILE,
    Sightings,
    SightingsError,
)

DAY = 86_400
ROOT = Path(__file__).parents[3]
WORDS = ("SELECT", "UPDATE", "DELETE")
A, B = b"a" * 16, b"b" * 16
FULL = Sighting(
    ".Junk \udcff", -(1 << 63), A, (1 << 32) - 1, "", True, True, 1_800_000_000, 1_900_000_000
)
PLAIN = Sighting("", 7, A)


def opened(directory: Path) -> Sightings:
    return Sightings.open(directory / SIGHTINGS_FILE)


def test_what_was_seen_is_found_as_it_was(tmp_path: Path) -> None:
    copies = [FULL, PLAIN, Sighting("", 8, B, origin=".Junk"), Sighting(".Junk", 9, b"")]
    with opened(tmp_path) as sightings:
        sightings.update("anna", copies, [])
        sightings.update("anna", [], [])
        for digests, gone, found in (
            ([A], [], copies[:2]),
            ([B, A, A], [], copies[:3]),
            ([], [("", 7)], copies[:2]),
            ([B], [("", 8), (".Junk", 9), ("nowhere", 1), ("", 99)], copies[2:]),
            ([b"", b"c" * 16], [], []),
        ):
            assert sorted(sightings.find("anna", digests, gone)) == sorted(found)
    with opened(tmp_path) as sightings:
        assert sorted(sightings.find("anna", [A, B], [(".Junk", 9)])) == sorted(copies)


def test_names_are_those_of_files_that_are_there(tmp_path: Path) -> None:
    def names(folder: str) -> list[int]:
        return sightings.name_keys("anna", folder).tolist()

    with opened(tmp_path) as sightings:
        assert names("") == []
        assert sightings.folders("anna") == []
        sightings.update("anna", [Sighting("", number, A) for number in (5, -3, 9)] + [FULL], [])
        assert names("") == [-3, 5, 9]
        assert sightings.folders("anna") == [""]
        sightings.update(
            "anna",
            [Sighting("", 9, A, gone=1), Sighting("", 2, B), Sighting(".Junk", 4, B)],
            [("", 5), ("", 77)],
        )
        assert (names(""), names(".Junk"), names(".other")) == ([-3, 2], [4], [])
        assert sightings.name_keys("anna", "").dtype == np.int64
        sightings.update("anna", [Sighting("", 9, A)], [("", -3)])
        assert names("") == [2, 9]
    with opened(tmp_path) as sightings:
        assert (names(""), names(".Junk")) == ([2, 9], [4])
        assert sightings.folders("anna") == ["", ".Junk"]


def test_names_in_memory_are_those_of_the_file_whatever_happens(tmp_path: Path) -> None:
    chance = random.Random(1)
    with opened(tmp_path) as sightings:
        for _ in range(200):
            kept = {
                number: Sighting("", number, A, gone=chance.choice((0, 1)))
                for number in chance.sample(range(20), 4)
            }
            removed = [("", number) for number in chance.sample(range(20), 4) if number not in kept]
            sightings.update("anna", list(kept.values()), removed)
            with opened(tmp_path) as other:
                assert (
                    sightings.name_keys("anna", "").tolist() == other.name_keys("anna", "").tolist()
                )


def test_a_message_that_everybody_has_costs_nobody_more(tmp_path: Path) -> None:
    """A circular to 20,000 users would take minutes if the rows of all others were read for each of
    them.
    """
    steps = []
    with opened(tmp_path) as sightings:
        for number in range(300):
            sightings.update(f"user{number}", [PLAIN], [])
        sightings._db.connection.set_progress_handler(lambda: steps.append(1), 10)
        assert sightings.find("user200", [A], []) == [PLAIN]
    assert len(steps) < 30


def test_mailboxes_are_kept_apart_and_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        for name in ("bert", "anna \udcff"):
            sightings.update(name, [PLAIN, FULL], [])
            sightings.mark_scanned(name)
        sightings.update("bert", [], [("", 7)])
        assert sightings.mailboxes() == ["anna \udcff", "bert"]
        assert sightings.find("anna \udcff", [A], []) == [PLAIN, FULL]
        assert sightings.find("bert", [A], []) == [FULL]
        sightings.forget("anna \udcff")
        assert sightings.mailboxes() == ["bert"]
        assert sightings.find("anna \udcff", [A], [("", 7)]) == []
        assert sightings.name_keys("anna \udcff", "").tolist() == []
        assert not sightings.is_scanned("anna \udcff")
        sightings.update("anna \udcff", [PLAIN], [])
        assert sightings.name_keys("anna \udcff", "").tolist() == [7]
        assert sightings.find("bert", [A], []) == [FULL]


def test_a_first_scan_is_finished_once(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        sightings.update("anna", [PLAIN], [])
        assert not sightings.is_scanned("anna")
        sightings.mark_scanned("anna")
        sightings.mark_scanned("bert")
    with opened(tmp_path) as sightings:
        assert sightings.is_scanned("anna")
        assert sightings.is_scanned("bert")
        assert not sightings.is_scanned("carl")


def test_what_went_is_forgotten_after_thirty_days(tmp_path: Path) -> None:
    now = 2_000_000_000
    copies = [
        Sighting("", 1, A, gone=now - MAX_GONE_SECONDS),
        Sighting("", 2, A, gone=now - MAX_GONE_SECONDS - 1),
        Sighting("", 3, A, seen=1),
    ]
    with opened(tmp_path) as sightings:
        sightings.update("anna", copies, [])
        assert sightings.prune(now) == 1
        assert sightings.find("anna", [A], []) == [copies[0], copies[2]]
        assert sightings.prune(now) == 0


def test_it_is_private_and_its_directory_holds_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        sightings.update("anna", [PLAIN], [])
        assert {path.name.removeprefix(SIGHTINGS_FILE) for path in tmp_path.iterdir()} == {
            "",
            "-wal",
            "-shm",
        }
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == [SIGHTINGS_FILE]


def test_a_failed_change_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        sightings.update("anna", [PLAIN], [])
        assert sightings.name_keys("anna", "").tolist() == [7]
        with pytest.raises(SightingsError):
            sightings.update("anna", [Sighting("", 8, B), Sighting(".new", 1 << 63, B)], [("", 7)])
        assert sightings.name_keys("anna", "").tolist() == [7]
        assert sightings.find("anna", [A, B], []) == [PLAIN]
        assert sightings.folders("anna") == [""]
        sightings.update("anna", [Sighting(".new", 8, B)], [])
        assert sightings.find("anna", [B], []) == [Sighting(".new", 8, B)]


def test_a_killed_process_loses_no_finished_change(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from spamguard.folders.sightings import Sightings\n"
        "from spamguard.folders.reconcile import Sighting\n"
        "sightings = Sightings.open(Path(sys.argv[1]))\n"
        "for number in range(10**9):\n"
        "    new = [Sighting('', number, b'a' * 16), Sighting('.Junk', number, b'b' * 16)]\n"
        "    sightings.update('anna', new, [])\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / SIGHTINGS_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            done = int(line)
            if done == 50:
                process.send_signal(signal.SIGKILL)
    with opened(tmp_path) as sightings:
        names = sightings.name_keys("anna", "").tolist()
        assert names == sightings.name_keys("anna", ".Junk").tolist() == list(range(len(names)))
        assert len(names) >= done + 1


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_refused_in_one_line_and_set_aside_by_who_learns_from_it(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SIGHTINGS_FILE).write_bytes(content)
    with pytest.raises(
        SpamguardError, match=r"^sightings .*: move it away and restart the daemon[^\n]*$"
    ):
        opened(tmp_path)
    with Sightings.open(tmp_path / SIGHTINGS_FILE, replace_damaged=True) as sightings:
        sightings.update("anna", [PLAIN], [])
    assert (tmp_path / (SIGHTINGS_FILE + DAMAGED_SUFFIX)).read_bytes() == content
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with opened(tmp_path) as sightings:
        assert sightings.mailboxes() == ["anna"]


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / SIGHTINGS_FILE) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(SightingsError, match="not a spamguard sightings file"):
        opened(tmp_path)
    with sqlite3.connect(tmp_path / SIGHTINGS_FILE) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["mine"]
    db.close()


def test_errors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SightingsError, match=r"^sightings /[^\n]* \[No such file or directory\]$"):
        Sightings.open(tmp_path / "nowhere" / SIGHTINGS_FILE)
    sightings = opened(tmp_path)
    sightings.close()
    with pytest.raises(SightingsError):
        sightings.name_keys("anna", "")
    with opened(tmp_path) as sightings:
        blocker = sqlite3.connect(tmp_path / SIGHTINGS_FILE, isolation_level=None)
        sightings._db.execute("PRAGMA busy_timeout = 10")
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(SightingsError, match="locked"):
            sightings.update("anna", [PLAIN], [])
        blocker.close()


@pytest.mark.slow
def test_a_hundred_thousand_messages_are_small_and_loaded_at_once(tmp_path: Path) -> None:
    keys = np.unique(np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, 100_000)).tolist()
    with opened(tmp_path) as sightings:
        sightings.update(
            "anna",
            [
                Sighting(".Archive", name, os.urandom(16), number, seen=1_700_000_000)
                for number, name in enumerate(keys)
            ],
            [],
        )
    with opened(tmp_path) as sightings:
        tracemalloc.start()
        assert sightings.name_keys("anna", ".Archive").tolist() == keys
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept / len(keys) < 50
    with opened(tmp_path) as sightings:
        before = time.process_time()
        sightings.name_keys("anna", ".Archive")
        assert time.process_time() - before < 0.5
        before = time.process_time()
        sightings.update(
            "anna", [Sighting(".Archive", keys[0], A, gone=1), Sighting(".Junk", keys[0], A)], []
        )
        assert time.process_time() - before < 0.25
    assert (tmp_path / SIGHTINGS_FILE).stat().st_size / len(keys) < 150


def daily(start: int, end: int) -> list[int]:
    """A scan each day, as the watcher does it more often: a clock that jumps is not believed."""
    return [*range(start, end, DAY), end]


def missed(
    sightings: Sightings, there: set[str], times: list[int], closed: Collection[str] = ()
) -> list[str]:
    return [name for now in times for name in sightings.forget_missing(there, now, closed)]


def test_mailboxes_that_are_missing_are_forgotten_after_a_while(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        for name in ("anna", "ben", "carl"):
            sightings.mark_scanned(name)
        assert sightings.forget_missing({"anna"}, 10**9) == []
        assert missed(sightings, {"anna", "ben"}, daily(10**9, 10**9 + MAX_GONE_SECONDS)) == []
        assert sightings.forget_missing({"anna"}, 10**9 + MAX_GONE_SECONDS + 1) == ["carl"]
        assert sightings.mailboxes() == ["anna", "ben"]


def test_mailboxes_below_a_closed_directory_are_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        for name in ("/home/anna/Maildir", "/home/ben/Maildir"):
            sightings.mark_scanned(name)
        times = daily(10**9, 10**9 + MAX_GONE_SECONDS + 1)
        assert missed(sightings, set(), times, {"/home/anna"}) == ["/home/ben/Maildir"]
        assert sightings.mailboxes() == ["/home/anna/Maildir"]
        # it counts from when it can be looked for
        assert sightings.forget_missing(set(), 10**9 + MAX_GONE_SECONDS + 2) == []


def test_a_clock_that_jumps_forgets_nothing_at_once(tmp_path: Path) -> None:
    now, jumped = 10**9, 2 * 10**9
    gone = Sighting("", 1, A, gone=now - 1)
    with opened(tmp_path) as sightings:
        sightings.update("anna", [gone], [])
        for name in ("anna", "ben"):
            sightings.mark_scanned(name)
        assert sightings.prune(now) == 0
        assert sightings.forget_missing({"anna"}, now) == []
        assert sightings.prune(jumped) == 0
    with opened(tmp_path) as sightings:
        assert sightings.prune(jumped + DAY - 1) == 0
        assert sightings.forget_missing({"anna"}, jumped + DAY - 1) == []
        assert sightings.prune(now + 1) == 0  # set right
        assert sightings.find("anna", [A], []) == [gone]
        assert sightings.prune(jumped) == 0
        assert sightings.prune(jumped + DAY) == 1
        assert sightings.forget_missing({"anna"}, jumped + DAY) == ["ben"]


def test_nothing_looks_through_all_that_was_seen(tmp_path: Path) -> None:
    """There are millions of rows where there are many mailboxes."""
    asked: list[str] = []
    with opened(tmp_path) as sightings:
        sightings._db.connection.set_trace_callback(asked.append)
        sightings.update("anna", [Sighting("", 1, A), Sighting(".Junk", 2, B)], [("", 7)])
        sightings.mark_done("anna", "", [1])
        sightings.find("anna", [A], [("", 1)])
        sightings.find_present([A])
        (
            sightings.folders("anna"),
            sightings.name_keys("anna", ""),
            sightings.find_digests("anna", "", [1]),
            sightings.done_names("anna", "", [1]),
        )
        sightings.prune(10**9)
        sightings.forget("anna")
        sightings._db.connection.set_trace_callback(None)
        plans = [
            (one, row[3])
            for one in asked
            if one.startswith(WORDS)
            for row in sightings._db.execute(f"EXPLAIN QUERY PLAN {one}")
        ]
    assert len(plans) > 20
    assert [
        plan
        for plan in plans
        if plan[1] in {f"SCAN {table}" for table in ("s", "sightings", "marks")}
    ] == []


def test_a_new_folder_has_no_marks_of_one_that_was_forgotten(tmp_path: Path) -> None:
    """It may get the number of the forgotten one; and a file may have been marked without being
    seen, as one that could not be read yet.
    """
    with opened(tmp_path) as sightings:
        sightings.update("anna", [Sighting(".Old", 1, A)], [])
        sightings.mark_done("anna", ".Old", [2])
        sightings.update("anna", [], [(".Old", 1)])
        sightings.update("anna", [Sighting(".New", 3, B)], [])
        assert sightings.done_names("anna", ".New", (1, 2, 3)) == set()
