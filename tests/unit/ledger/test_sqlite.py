"""What is particular to the SQLite ledger: its file, its refusals, full disks, killed writers,
foreign connections.
"""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from spamguard.errors import LedgerError
from spamguard.ledger import codec, schema
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote
from spamguard.records import Features
from tests.support.reachable import let_others_pass
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


def new_vote(digest: bytes, label: str | None = "spam", size: int = 0) -> NewVote:
    return NewVote(digest, "", label, b"x" * size, b"", "", 0, 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "receipts.ledger"


@pytest.fixture
def ledger(path):
    with SqliteLedger.open(path, "key") as opened:
        yield opened


def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
    head = (
        "import sys; from pathlib import Path; from spamguard.ledger.sqlite import *\n"
        "from spamguard.errors import LedgerError\n"
    )
    command = [sys.executable, "-c", head + code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def refusal(path: Path, fingerprint: str = "key") -> str:
    """The one line with which the ledger at `path` is refused."""
    with pytest.raises(LedgerError) as caught:
        SqliteLedger.open(path, fingerprint).close()
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def files(directory):
    return sorted(one.name for one in directory.iterdir())


# The file


def test_a_new_file_is_for_its_owner_alone(path):
    before = os.umask(0)
    try:
        with SqliteLedger.open(path, "key") as ledger:
            ledger.append([new_vote(b"d")])
            assert files(path.parent) == [
                f"{path.name}{end}" for end in ("", "-last", "-shm", "-wal")
            ]
            assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}
    finally:
        os.umask(before)
    assert files(path.parent) == [path.name, f"{path.name}-last"]


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_settings_of_the_connection(path, durable, synchronous):
    with SqliteLedger.open(path, "key", durable=durable) as ledger:
        wanted = {
            "journal_mode": "wal",
            "synchronous": synchronous,
            "busy_timeout": 30_000,
            "user_version": schema.SCHEMA_VERSION,
        }
        assert {
            name: ledger._db.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted
        } == wanted


def test_one_index_serves_the_lookups_and_one_the_users(ledger):
    indexes = ledger._db.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'events'"
    ).fetchall()
    assert sorted(indexes) == [("events_of_users",), ("sqlite_autoindex_events_1",)]


@pytest.mark.parametrize("name", ["ledger with space", "q?mode=ro#x", "100%41", "ü"])
def test_names_that_mean_something_in_addresses(tmp_path, name):
    with SqliteLedger.open(tmp_path / name, "key") as ledger:
        ledger.append([new_vote(b"d")])
    assert files(tmp_path) == [name, f"{name}-last"]


def test_two_openings_in_one_process_share_the_file(path, ledger):
    with SqliteLedger.open(path, "key") as other:
        other.append([new_vote(b"d")])
        ledger.append([new_vote(b"e")])
        assert other.last_seq() == 2


def test_a_faster_creator_wins(path, monkeypatch):
    with SqliteLedger.open(path, "key") as first:
        monkeypatch.setattr(
            Path, "exists", lambda self: False
        )  # as if the other had not yet linked its file
        with SqliteLedger.open(path, "key") as second:
            assert second.node == first.node
    monkeypatch.undo()
    assert files(path.parent) == [path.name, f"{path.name}-last"]


# Refusals


@pytest.mark.parametrize(
    "content", [b"", b"From anna@example.org Mon Jan  1 00:00:00 2024\n" * 400]
)
def test_a_file_that_is_no_database(path, content):
    path.write_bytes(content)
    assert "not a spamguard ledger" in refusal(path)
    assert path.read_bytes() == content


def test_another_programs_database(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE events (x)")
    db.close()
    assert "not a spamguard ledger" in refusal(path)


def test_another_schema(path, ledger):
    ledger._db.execute("PRAGMA user_version = 99")
    assert "schema 99" in refusal(path)


def test_another_key(path, ledger):
    assert "restore its key" in refusal(path, "another")


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE meta",
        "DELETE FROM meta",
        "DELETE FROM meta WHERE key = 'ledger.clock'",
        "UPDATE meta SET value = '0 ' || value || 'x' WHERE key = 'ledger.clock'",
    ],
)
def test_a_ledger_without_what_it_notes_of_itself(path, ledger, damage):
    ledger._db.execute(damage)
    with (
        pytest.raises(LedgerError, match="restore it from a backup"),
        SqliteLedger.open(path, "key") as opened,
    ):
        opened.append([new_vote(b"d")])


def test_text_that_is_none_any_more_is_damage(path):
    with SqliteLedger.open(path, "key") as ledger:
        ledger.append([new_vote(b"d")])
        ledger._db.execute("UPDATE events SET origin = CAST(x'ff' AS TEXT)")
        with pytest.raises(LedgerError, match="it is damaged: restore it from a backup"):
            ledger.get_vote(b"d", "")


def test_a_damaged_file(path):
    with SqliteLedger.open(path, "key") as ledger:
        ledger.append([new_vote(bytes([index]), size=9000) for index in range(1, 99)])
    with path.open("r+b") as file:
        file.seek(schema.PAGE_BYTES)
        file.write(b"\xff" * (20 * schema.PAGE_BYTES))
    with pytest.raises(LedgerError, match="damaged"), SqliteLedger.open(path, "key") as ledger:
        list(ledger.changes_after(0))


def test_a_path_at_which_no_file_can_be(path):
    assert "directory" in refusal(path.parent / "absent" / "ledger")
    path.touch()
    assert "directory" in refusal(path / "ledger")
    path.unlink()
    path.symlink_to(path.with_name("absent"))
    assert "must be a file" in refusal(path)
    path.unlink()
    path.mkdir()
    assert "must be a file" in refusal(path)


@pytest.fixture
def public(tmp_path_factory):
    """A directory that another user can reach; a child tries as one."""
    return let_others_pass(tmp_path_factory.mktemp("public"))


OPEN_AS_ANOTHER = """
import os
ledger_path = Path(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with SqliteLedger.open(ledger_path, "key") as ledger:
        ledger.append([NewVote(b"d", "", "spam", b"", b"", "", 0, 1)])
except LedgerError as error:
    print(error)
else:
    print("opened")
"""


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("directory_mode", "file_mode"),
    [(0o555, 0o666), (0o777, 0o444), (0o777, 0o000), (0o000, 0o666)],
)
def test_without_permission(public, exists, directory_mode, file_mode):
    path = public / "receipts.ledger"
    if exists:
        SqliteLedger.open(path, "key").close()
        path.chmod(file_mode)
    elif directory_mode == 0o777:
        directory_mode = 0o555
    public.chmod(directory_mode)
    try:
        done = run(OPEN_AS_ANOTHER, str(path))
    finally:
        public.chmod(0o777)
    assert done.stderr == ""
    assert done.stdout.startswith(f"ledger {path}: it ")
    assert "read and write" in done.stdout
    assert done.stdout.count("\n") == 1
    assert files(public) == ([path.name, f"{path.name}-last"] if exists else [])


def test_with_permission_the_same_child_opens(public):
    public.chmod(0o777)
    assert run(OPEN_AS_ANOTHER, str(public / "receipts.ledger")).stdout == "opened\n"


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_a_log_without_its_ledger_gets_into_no_new_one(path, end):
    log = path.with_name(path.name + end)
    log.write_bytes(b"what SQLite would believe")
    assert f"it is gone, but its log {log} is not" in refusal(path)
    assert [one.name for one in path.parent.iterdir()] == [log.name]


# Failures while writing


def test_nothing_is_written_into_a_file_that_nobody_finds_any_more(path, ledger):
    ledger.append([new_vote(b"kept")])
    aside = path.rename(path.with_name("aside"))
    writes = (
        lambda: ledger.append([new_vote(b"d")]),
        lambda: ledger.set_meta("note", "x"),
        lambda: ledger.compact(1),
    )
    for _ in range(2):
        for write in writes:
            with pytest.raises(LedgerError, match="while it was open: restart what uses it"):
                write()
        path.write_bytes(b"another one")
    assert ledger.last_seq() == 1  # reading goes on
    aside.replace(path)
    assert ledger.append([new_vote(b"d")]) == [True]


def test_a_full_disk_loses_the_batch_and_nothing_else(ledger):
    ledger.append([new_vote(b"kept")])
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages + 3}")
    with pytest.raises(LedgerError, match="disk is full"):
        ledger.append([new_vote(bytes([index]), size=9000) for index in range(1, 99)])
    ledger._db.execute("PRAGMA max_page_count = 100000")
    assert [vote.digest for vote in ledger.all_votes()] == [b"kept"]
    assert ledger.append([new_vote(b"more")]) == [True]
    assert ledger.get_vote(b"more", "").clock == 2


LIMITED = """
import resource
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    with SqliteLedger.open(path, "key") as ledger:
        for index in range(1, 200):
            digests = [bytes([index, part]) for part in range(4)]
            ledger.append([NewVote(d, "", "spam", b"x" * 5000, b"", "", 0, 1) for d in digests])
            print("committed")
except LedgerError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [0, 1 << 15, 1 << 18, 1 << 19])
def test_a_disk_that_stops_taking_bytes(path, limit):
    done = run(LIMITED, str(path), str(limit))
    *committed, line = done.stdout.splitlines()
    assert done.stderr == ""
    assert line.startswith(f"ledger {path}: the disk ")
    assert bool(committed) == (limit > 1 << 16)
    with SqliteLedger.open(path, "key") as ledger:
        assert ledger.last_seq() == 4 * len(committed)
        assert ledger._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert files(path.parent) == [path.name, f"{path.name}-last"]


def test_a_writer_that_never_ends_is_named_as_the_trouble(path, ledger):
    ledger._db.execute("PRAGMA busy_timeout = 20")
    with SqliteLedger.open(path, "key") as other:
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process kept it locked"):
            ledger.append([new_vote(b"d")])
        assert ledger.last_seq() == 0  # reading goes on
        other._db.execute("ROLLBACK")
    assert ledger.append([new_vote(b"d")]) == [True]


def test_another_thread_is_refused(ledger):
    caught = []

    def use():
        try:
            ledger.append([new_vote(b"d")])
        except LedgerError as error:
            caught.append(str(error))

    worker = threading.Thread(target=use)
    worker.start()
    worker.join()
    assert "same thread" in caught[0]


KILLED = """
batch = 0
with SqliteLedger.open(Path(sys.argv[1]), "key") as ledger:
    start = ledger.last_seq()
    while True:
        batch += 1
        digests = [f"{start} {batch} {part}".encode() for part in range(20)]
        votes = [NewVote(d, "", "spam", b"x" * 5000, b"", "", 0, 1) for d in digests]
        ledger.append(votes)
        print(batch, flush=True)
"""


@pytest.mark.slow
def test_killed_writers_leave_whole_batches_and_all_they_had_promised(path):
    promised = 0
    head = "import sys; from pathlib import Path; from spamguard.ledger.sqlite import *\n"
    for delay in (0.0, 0.013, 0.05, 0.11):
        worker = subprocess.Popen(
            [sys.executable, "-c", head + KILLED, str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout.readline() == "1\n"
        time.sleep(delay)
        worker.send_signal(signal.SIGKILL)
        promised += 1 + len(worker.communicate()[0].splitlines())
        with SqliteLedger.open(path, "key") as ledger:
            assert ledger._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            votes = list(ledger.all_votes())
            assert len(votes) % 20 == 0
            assert len(votes) // 20 - promised in (
                0,
                1,
            )  # one may have been committed and not yet reported
            assert [vote.clock for vote in votes] == list(range(1, len(votes) + 1))
            promised = len(votes) // 20


# Speed that would be lost by a wrong query plan


def test_reading_looks_digests_up_instead_of_walking_the_log(ledger):
    def plan(statement, values):
        return " / ".join(
            row[3] for row in ledger._db.execute("EXPLAIN QUERY PLAN " + statement, values)
        )

    assert "SEARCH events USING INDEX sqlite_autoindex_events_1 (digest=?)" in plan(
        schema.EARLIER_VOTES_OF_DIGESTS.format("?, ?"), (b"d", b"e", 9)
    )
    for statement in (schema.STANDING_VOTE, schema.STANDING_LABEL):
        assert "sqlite_autoindex_events_1 (digest=? AND user=?)" in plan(statement, (b"d", ""))
        assert "TEMP B-TREE" not in plan(statement, (b"d", ""))
    one_range = "SEARCH events USING INDEX sqlite_autoindex_events_1 (digest>? AND digest<?)"
    several = (
        "LIST SUBQUERY 1 / SEARCH events USING COVERING INDEX sqlite_autoindex_events_1 "
        "(digest>? AND digest<?)"
    )
    assert plan(schema.LESSONS_OF_DIGESTS, (b"a", b"b", 9)) == f"{one_range} / {several}"
    assert (
        plan(schema.EVENTS_OF_DIGESTS, (b"a", b"b", 9))
        == f"SEARCH events USING INDEX sqlite_autoindex_events_1 (digest=?) / {several}"
    )
    counting = {"upto": 9, "extractor": 1}
    assert plan(schema.LABELS_OF_EVENTS, counting).startswith(
        "SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"
    )  # page after page
    assert "SEARCH events USING INDEX sqlite_autoindex_events_1 (digest=?)" in plan(
        schema.VOTES_OF_SEVERAL_EVENTS, (9,)
    )
    dropping = plan(schema.DROP_SUPERSEDED, {"upto": 9, "before": 9, "joined": False})
    assert dropping.startswith("SEARCH events USING INDEX sqlite_autoindex_events_1 (digest=?)")
    assert "SCAN events USING COVERING INDEX sqlite_autoindex_events_1" in dropping
    assert "TEMP B-TREE" not in dropping


def test_no_question_walks_the_log(ledger):
    """It would take minutes in a large ledger."""
    for statement, values in (
        (schema.LABELS_BY_USER, ()),
        (schema.SUPERSEDED_BY_USER, ()),
        (schema.COUNT_VOTES_OF_USER, ("", 0, 1, "", "", 1)),
        (schema.LAST_VOTE_OF_USER, ("", "", "")),
        (schema.DIGESTS_OF_USER, ("", 0)),
        (schema.LATEST_SEQS_OF_USER, ("", 1, 1, 1)),
        (schema.RECEIPTS_BY_SEQ.format("?, ?"), (1, 2)),
        (schema.USERS_BETWEEN, (1, 2)),
        (schema.VOTES_OF_KEY, (b"", "")),
        (schema.USERS_OF_DIGEST, (b"",)),
    ):
        plan = [row[3] for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        walks = [
            line for line in plan if line.startswith("SCAN events") and "COVERING INDEX" not in line
        ]
        assert walks == [], (statement, plan)


@pytest.mark.parametrize("statement", [schema.VOTES_BY_HOUR, schema.LAST_TIME_BY_USER])
def test_questions_by_user_are_answered_by_their_index_alone(ledger, statement):
    values = (None, 1, 2) if "?3" in statement else ()
    plan = " ".join(row[3] for row in ledger._db.query(f"EXPLAIN QUERY PLAN {statement}", values))
    assert "SCAN events" not in plan
    assert "COVERING INDEX events_of_users" in plan


def test_packed_features_come_back_bit_for_bit(ledger):
    features = Features(
        np.arange(0, 2**32, 2**21, dtype=np.uint32),
        np.arange(12, dtype=np.uint8),
        np.arange(10, dtype=np.int16),
    )
    ledger.append(
        [NewVote(b"d", "", "spam", codec.pack(features), codec.pack_scores([1.5]), "", 0, 1)]
    )
    (taught,) = ledger.lessons()
    np.testing.assert_array_equal(codec.unpack(taught.packed).tokens, features.tokens)
    assert codec.unpack_scores(taught.scores) == (1.5,)
