"""What is particular to the SQLite ledger: its file, its refusals, full disks, killed writers,
foreign connections.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.errors import LedgerError
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote
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


# Refusals


def test_another_schema(path, ledger):
    ledger._db.execute("PRAGMA user_version = 99")
    assert "schema 99" in refusal(path)


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE meta",
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


# Speed that would be lost by a wrong query plan
