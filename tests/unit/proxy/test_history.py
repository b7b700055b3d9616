"""The history keeps judgements within its size and age."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.errors import HistoryError
from spamguard.proxy.history import (
    COLUMNS,
    MAX_RECIPIENTS,
    MIN_BYTES,
    HistoryRow,
    row_from_values,
    row_values,
)
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from spamguard.records import Word
from tests.support import disks
from tests.support.disks import needs_disks
from tests.support.waiting import PATIENCE
from tests.unit.proxy.history_rows import recent, row

ROOT = Path(__file__).parents[3]
DAY = 86_400


def opened(directory: Path, size: int = 64 << 20, days: int = 30) -> HistorySearch:
    return HistorySearch.open(directory / "history.sqlite", size, days)


def taken(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_what_was_kept_is_found_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        history.append([row(1), row(2)])
        history.append([])
        assert history.find(row(2).id) == row(2)
        assert history.find(row(3).id) is None
    with opened(tmp_path) as history:
        assert history.find(row(1).id) == row(1)


def test_it_is_private_and_its_directory_holds_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        history.append([row(1)])
        assert {path.name.removeprefix("history.sqlite") for path in tmp_path.iterdir()} == {
            "",
            "-wal",
            "-shm",
        }
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


def test_newest_first_page_by_page(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        assert recent(history, 10) == []
        history.append([row(number) for number in (3, 1, 5, 2, 4)])
        assert recent(history, 2) == [row(5), row(4)]
        assert recent(history, 9, before=row(4).id) == [row(3), row(2), row(1)]


def test_an_id_that_is_known_stays_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        history.append([row(1)])
        history.append([row(1, label="ham"), row(2)])
        assert history.find(row(1).id) == row(1)
        assert history.find(row(2).id) == row(2)


def test_joiners_are_a_part_of_what_is_written(tmp_path: Path) -> None:
    """In Persian, Hindi and emoji; but no address looks like another."""
    subject = "می\u200cخواهم \U0001f468\u200d\U0001f469"
    with opened(tmp_path) as history:
        history.append(
            [row(1, subject=subject, sender="a\u200cb@example.org", words=(Word(1, subject, 1.0),))]
        )
        found = history.find(row(1).id)
        assert found is not None
        assert (found.subject, found.words[0].text, found.sender) == (
            subject,
            subject,
            "a\ufffdb@example.org",
        )
        assert [
            row.id for row in history.find_page(HistoryFilter(subject="می\u200cخواهم"), 5).rows
        ] == [found.id]


def test_texts_of_strangers_are_bounded_and_printable(tmp_path: Path) -> None:
    odd = "\x1b[31m\0\n\u202e\udcff" + "x" * 10_000
    words = tuple(Word(number, odd, 1 / 3) for number in range(1000))
    many = {f"{number}{odd}": "spam" for number in range(1000)}
    with opened(tmp_path) as history:
        history.append(
            [
                row(
                    1,
                    sender=odd,
                    subject=odd,
                    client=odd,
                    reply=odd,
                    author=odd,
                    recipients=(odd,) * 5000,
                    words=words,
                    label=odd,
                    action=odd,
                    personal=many,
                )
            ]
        )
        found = history.find(row(1).id)
    assert found is not None
    assert len(found.recipients) == len(found.personal) == MAX_RECIPIENTS
    assert len(found.subject) == 200
    for text in (
        found.sender,
        found.author,
        found.subject,
        found.client,
        found.reply,
        found.label,
        found.action,
        *found.recipients,
        *found.personal,
        found.words[0].text,
    ):
        assert text.isprintable()
        assert len(text) <= 500
    assert found.words[0].part == pytest.approx(1 / 3, abs=1e-6)
    assert taken(tmp_path) < 200_000


def test_a_hundred_words_are_kept_in_little_more_than_their_letters() -> None:
    words = tuple(Word(number << 20, f"word{number:05}", number / 8) for number in range(120))
    values = row_values(row(1, words=words))
    assert row_from_values(values[: len(COLUMNS)]).words == words[:100]
    assert len(values[COLUMNS.index("words")]) < 100 * (len("word00000") + 10)


def test_the_table_has_a_column_for_everything() -> None:
    assert tuple(HistoryRow.__slots__) == COLUMNS


# ---- bounds


@pytest.mark.slow
def test_twenty_thousand_rows_stay_within_the_bytes(tmp_path: Path) -> None:
    """75 MB of rows through 16 MB, in batches of every size: never more, and what is kept is the
    newest.
    """
    dice = random.Random(1)
    size, number, most = 16 << 20, 0, 0
    with opened(tmp_path, size) as history:
        while number < 20_000:
            batch = dice.choice((1, 10, 100, 256))
            history.append(
                [
                    row(at, packed=dice.randbytes(dice.randrange(500, 6000)))
                    for at in range(number, number + batch)
                ]
            )
            number += batch
            most = max(most, taken(tmp_path))
        kept = recent(history, 100_000)
    assert most <= size
    assert taken(tmp_path) > size / 2
    assert len(kept) > 1500
    assert [row.id for row in kept] == [
        row(at).id for at in range(number - 1, number - 1 - len(kept), -1)
    ]


def test_rows_grow_old(tmp_path: Path) -> None:
    with opened(tmp_path, days=2) as history:
        for number in range(100):
            history.append([row(number, time=number * DAY / 10)])
        assert [row.time for row in recent(history, 100)] == [
            number * DAY / 10 for number in range(99, 78, -1)
        ]


def test_a_clock_that_was_behind_costs_nothing_but_its_own_rows(tmp_path: Path) -> None:
    """A machine may start in 1970 until its clock is set: earlier rows are no older for it."""
    with opened(tmp_path, days=30) as history:
        history.append([row(number, time=1e9 + number) for number in range(300)])
        history.append([row(number, time=number) for number in range(300, 600)])
        for number in range(600, 700):
            history.append([row(number, time=1e9 + number)])
        kept = {int(row.time - 1e9) for row in recent(history, 1000)}
    assert kept >= set(range(300)) | set(range(600, 700))


def test_a_clock_that_jumps_forward_removes_nothing_at_once(tmp_path: Path) -> None:
    """Some minutes of a wrong year once removed all rows."""
    now, jumped = 1e9, 1.2e9
    with opened(tmp_path, days=30) as history:
        history.append([row(number, time=now + number * 60) for number in range(100)])
        history.append([row(100, time=jumped)])
        assert len(recent(history, 1000)) == 101
    with opened(tmp_path, days=30) as history:  # a restart believes no sooner
        for number in range(101, 124):
            history.append([row(number, time=jumped + (number - 100) * 3600)])
        assert len(recent(history, 1000)) == 124
        history.append([row(124, time=now + 7000)])  # set right, and wrong once more
        history.append([row(125, time=jumped + 2 * DAY)])
        assert len(recent(history, 1000)) == 126
        history.append([row(126, time=jumped + 3 * DAY)])  # it has gone on for a day
        for number in range(127, 140):
            history.append([row(number, time=jumped + 3 * DAY)])
        assert min(row.time for row in recent(history, 1000)) >= jumped


@pytest.mark.slow
def test_a_file_that_has_become_too_large_shrinks_step_by_step(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        for start in range(0, 10_000, 500):
            history.append([row(number) for number in range(start, start + 500)])
    before = taken(tmp_path)
    assert before > 30 << 20
    with opened(tmp_path, MIN_BYTES) as history:
        sizes = []
        for number in range(10_000, 10_000 + 400):
            history.append([row(number)])
            sizes.append(taken(tmp_path))
        assert sizes[0] > before / 2  # not at once: each step is short
        assert sizes[-1] <= MIN_BYTES
        assert recent(history, 1) == [row(10_399)]


def test_less_than_the_least_is_the_least(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as history:
        history.append([row(number) for number in range(500)])
        history.append([row(501)])
        assert len(recent(history, 1000)) == 501


# ---- trouble


def spoil_header(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def spoil_program(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA application_id = 99")
    db.close()


def spoil_table(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("DROP TABLE judgements")
    db.close()


def spoil_words(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE contents SET words = '[1'")
    db.commit()
    db.close()


@pytest.mark.parametrize("spoil", [spoil_header, spoil_program, spoil_table, spoil_words])
def test_a_file_that_is_no_history_is_one_line_of_error(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    with opened(tmp_path) as history:
        history.append([row(1)])
    spoil(tmp_path / "history.sqlite")

    def use() -> None:
        with opened(tmp_path) as history:
            history.find(row(1).id)

    with pytest.raises(
        HistoryError, match=r"history\.sqlite: .*(move it away|cannot be read)"
    ) as error:
        use()
    assert "\n" not in str(error.value)


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="check its directory"):
        opened(tmp_path / "missing")


@pytest.mark.slow
def test_several_processes_make_and_fill_it_at_once(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.unit.proxy.test_history import *\nfirst = int(sys.argv[2])\n"
        "with opened(Path(sys.argv[1])) as history:\n"
        "    for number in range(first, first + 100): history.append([row(number)])\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(first)], stderr=subprocess.PIPE
        )
        for first in (0, 1000, 2000, 3000)
    ]
    assert [process.communicate(timeout=PATIENCE)[1] for process in running] == [b""] * 4
    with opened(tmp_path) as history:
        assert len(recent(history, 1000)) == 400
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


@pytest.mark.slow
def test_killed_while_writing_it_keeps_whole_batches(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.unit.proxy.test_history import *\n"
        "with opened(Path(sys.argv[1])) as history:\n"
        "    for start in range(0, 10**6, 50):\n"
        "        history.append([row(number) for number in range(start, start + 50)])\n"
        "        print(start, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        done = [int(process.stdout.readline()) for _ in range(20)][-1] + 50
        process.send_signal(signal.SIGKILL)
    with opened(tmp_path) as history:
        rows = [row.id for row in recent(history, 10**6)]
    assert len(rows) >= done
    assert len(rows) % 50 == 0
    assert rows == [row(number).id for number in range(len(rows) - 1, -1, -1)]


@needs_disks
def test_a_full_disk_costs_the_rows_and_nothing_else(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", "1m") as place, opened(place) as history:
        history.append([row(1)])
        with pytest.raises(HistoryError, match="the disk is full: make room"):
            history.append([row(number) for number in range(2, 2000)])
        assert recent(history, 10) == [row(1)]
        history.append([row(2000)])
        assert len(recent(history, 10)) == 2


@pytest.mark.slow
def test_readers_beside_a_writer(tmp_path: Path) -> None:
    faults: list[Exception] = []

    def read() -> None:
        try:
            with opened(tmp_path) as mine:
                for _ in range(50):
                    rows = recent(mine, 1000)
                    assert [replace(row, id="") for row in rows] == [
                        replace(row(number), id="") for number in range(len(rows) - 1, -1, -1)
                    ]
        except Exception as error:  # noqa: BLE001  asserted below
            faults.append(error)

    with opened(tmp_path) as history:
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(200):
            history.append([row(number)])
        for thread in threads:
            thread.join()
    assert faults == []


@pytest.mark.parametrize(
    ("version", "reason"),
    [(1, "schema 1, .* move it away"), (99, "schema 99, .* restart")],
)
def test_a_file_of_another_version_is_left_alone(tmp_path: Path, version: int, reason: str) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "history.sqlite") as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(HistoryError, match=reason):
        opened(tmp_path)
