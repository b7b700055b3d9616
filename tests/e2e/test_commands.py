"""The commands as processes of their own: killed, short of disk and rights, many at once.

What needs no process is in tests/unit/cli.
"""

from __future__ import annotations

import io
import json
import mailbox
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from corpora import synthetic
from spamguard import Filter
from spamguard.bayes.tables import counted_state
from spamguard.ledger import SqliteLedger
from tests.support.processes import children, has_open
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
BITS = 16
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
COMMAND = [sys.executable, "-m", "spamguard"]


def spamguard(state, *arguments, stdin=b"", **settings):
    """Run a command to its end."""
    line = [*COMMAND, "--state", str(state), *map(str, arguments)]
    return subprocess.run(line, input=stdin, capture_output=True, env=ENVIRONMENT, timeout=60, check=False, **settings)


def assert_failed(done, *words):
    """It failed with one clear line."""
    err = done.stderr.decode()
    assert (done.returncode, done.stdout, err.count("\n")) == (2, b"", 1), err
    assert err.startswith("spamguard: ")
    assert "Traceback" not in err
    assert all(word in err for word in words), err


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus that other users can read too."""
    base = tmp_path_factory.mktemp("mail")
    synthetic.write(base / "corpus", 400, 7)
    return base / "corpus"


@pytest.fixture
def state(tmp_path):
    Filter.open(tmp_path / "state", bits=BITS, durable=False).close()
    return tmp_path / "state"


@pytest.fixture(scope="module")
def master(tmp_path_factory, corpus):
    place = tmp_path_factory.mktemp("master") / "state"
    Filter.open(place, bits=BITS, durable=False).close()
    assert spamguard(place, "learn", corpus).returncode == 0
    return place


@pytest.fixture
def taught(tmp_path, master):
    return Path(shutil.copytree(master, tmp_path / "taught"))


def counted(state):
    with Filter.open(state) as spam_filter:
        return {name: np.array(values) for name, values in counted_state(spam_filter._store.tables)}


def assert_receipts_and_tables_agree(state):
    """The tables as they are equal the tables made anew from the receipts, bit for bit. Both have one size only where what is not
    settled yet makes them no larger (`bayes.tables.table_bits`)."""
    before = counted(state)
    with Filter.open(state, load=False) as spam_filter:
        spam_filter.settle()
    after = counted(state)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


# One after another


def test_a_walk_through_all_commands(state, tmp_path, corpus):
    file = tmp_path / "file"
    done = spamguard(state, "learn", corpus)
    assert (done.returncode, done.stderr) == (0, b"")
    assert spamguard(state, "judge", corpus / "data").returncode == 1
    message = (corpus / "data" / "00001").read_bytes()
    assert spamguard(state, "filter", stdin=message).stdout.endswith(message)
    assert b"sum" in spamguard(state, "explain", corpus / "data" / "00001").stdout
    assert spamguard(state, "export", "--with-key", file).returncode == 0
    assert spamguard(tmp_path / "other", "import", file).returncode == 0
    assert spamguard(state, "forget", corpus / "data").returncode == 0
    assert spamguard(state, "rebuild").returncode == 0
    classes = json.loads(spamguard(state, "status", "--json").stdout)["classes"]
    assert [one["messages"] for one in classes.values()] == [0, 0]


def test_a_reader_that_goes_away_is_no_error(taught, corpus):
    line = [*COMMAND, "--state", str(taught), "judge", *[str(corpus / "data")] * 20]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as judge:
        judge.stdout.readline()
        judge.stdout.close()
        assert judge.stderr.read() == b""
    assert judge.returncode == 141


def test_an_interrupt_leaves_no_traceback(state, corpus):
    mail = as_mbox(corpus, 20)
    with subprocess.Popen(
        [*COMMAND, "--state", str(state), "learn", "--as", "ham", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as learn:
        learn.stdin.write(mail)
        learn.stdin.flush()
        eventually(lambda: has_open(learn.pid, state / "ledger.sqlite"), "it has begun")
        learn.send_signal(signal.SIGINT)
        assert learn.stderr.read() == b""
    assert learn.returncode == 130
    assert_receipts_and_tables_agree(state)


@pytest.mark.parametrize("delay", [0, 0.05, 0.2, 0.5])
def test_an_interrupt_from_the_keyboard_is_not_answered_by_the_pool(tmp_path, corpus, delay):
    """It reaches every process of the terminal, also those that are just starting."""
    state = tmp_path / "state"
    Filter.open(state, bits=BITS + 1, durable=False).close()  # large enough for however much is learnt by then
    line = [*COMMAND, "--state", str(state), "learn", *[str(corpus)] * 60]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True) as learn:
        eventually(lambda: children(learn.pid), "processes of the pool")
        time.sleep(delay)
        os.killpg(learn.pid, signal.SIGINT)
        assert learn.stderr.read() == b""
    assert learn.returncode == 130
    assert_receipts_and_tables_agree(state)


def as_mbox(corpus, number):
    """The first messages of the corpus as an mbox."""
    found = io.BytesIO()
    for path in sorted((corpus / "data").iterdir())[:number]:
        found.write(b"From a@example.org Thu Jan  4 10:11:12 2024\n" + path.read_bytes() + b"\n")
    return found.getvalue()


@pytest.mark.parametrize("command", [["judge"], ["status"], ["explain"]])
def test_an_answer_that_cannot_be_written(taught, corpus, command):
    paths = [] if command == ["status"] else [str(corpus / "data" / "00001")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "--state", str(taught), *command, *paths], stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False
        )
    assert done.returncode == 2
    assert done.stderr == b"spamguard: No space left on device: make room and try again\n"


def test_filter_tells_the_delivery_agent_when_mail_could_not_be_written(taught):
    with Path("/dev/full").open("wb") as full:
        line = [*COMMAND, "--state", str(taught), "filter"]
        done = subprocess.run(line, input=b"Subject: x\n\nx\n", stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert done.returncode == 75
    assert done.stderr.count(b"\n") == 1


def test_names_that_are_no_text(taught, tmp_path, corpus):
    name = os.fsencode(tmp_path) + b"/\xff\x1b[31m.eml"
    Path(os.fsdecode(name)).write_bytes((corpus / "data" / "00001").read_bytes())
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    line = [*map(str, COMMAND), "--state", str(taught), "judge", name]
    done = subprocess.run(line, capture_output=True, env=environment, check=False)
    assert done.returncode in (0, 1, 3)
    assert b"\\xff\\x1b[31m.eml" in done.stdout


# Bad places


def spoil(state):
    (state / "ledger.sqlite").write_bytes(b"no ledger" * 1000)


def other_schema(state):
    data = bytearray((state / "ledger.sqlite").read_bytes())
    data[60:64] = (99).to_bytes(4, "big")  # user_version in SQLite's file header
    (state / "ledger.sqlite").write_bytes(data)


def other_key(state):
    (state / "key").write_bytes(bytes(32))


def no_key(state):
    (state / "key").unlink()


def half_a_key(state):
    (state / "key").write_bytes(b"half")


DAMAGES = [
    (spoil, "not a spamguard ledger"),
    (other_schema, "schema 99"),
    (other_key, "taught with key"),
    (no_key, "key"),
    (half_a_key, "not a key"),
]


@pytest.mark.parametrize(("damage", "word"), DAMAGES)
def test_a_damaged_place(taught, corpus, damage, word):
    damage(taught)
    before = {file.name: file.read_bytes() for file in taught.iterdir()}
    for command in (["learn", corpus], ["judge", corpus / "data"], ["status"], ["rebuild"], ["export", taught / "file"]):
        assert_failed(spamguard(taught, *command), word)
    assert spamguard(taught, "filter", stdin=b"Subject: x\n\nx\n").stdout.endswith(b"\nSubject: x\n\nx\n")
    assert {file.name: file.read_bytes() for file in taught.iterdir()} == before


def limit_files(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [0, 1 << 14, 1 << 17, 1 << 19])
def test_a_full_disk_while_learning(state, corpus, size):
    done = spamguard(state, "learn", corpus, preexec_fn=limit_files(size))
    assert_failed(done, str(state))
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() < 400
    assert_receipts_and_tables_agree(state)
    assert not list(state.glob(".*.new"))
    assert spamguard(state, "learn", corpus).returncode == 0
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() == 400


@pytest.mark.parametrize("command", [["export", "file"], ["export", "--without-receipts", "file"], ["rebuild"]])
def test_a_full_disk_otherwise(taught, tmp_path, command):
    done = spamguard(taught, *command, preexec_fn=limit_files(1 << 15), cwd=tmp_path)
    assert_failed(done)
    assert [one.name for one in tmp_path.iterdir()] == ["taught"]
    assert not list(taught.glob(".*.new"))
    assert_receipts_and_tables_agree(taught)


@pytest.fixture
def public(tmp_path_factory):
    """A directory that another user can reach; root is not bound by permission bits, so children run without root."""
    base = tmp_path_factory.mktemp("public")
    for directory in (base, *base.parents):
        if directory.stat().st_uid == os.getuid() and not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    base.chmod(0o777)
    return base


AS_NOBODY = """
import locale, os, sys
from spamguard import bulk, engine
from spamguard.cli import main, parser, portable
parser()  # loads what it needs of the standard library, which another user may not be allowed to read
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def as_nobody(state, *arguments, stdin=b""):
    line = [sys.executable, "-c", AS_NOBODY, "--state", str(state), *map(str, arguments)]
    return subprocess.run(line, input=stdin, capture_output=True, env=ENVIRONMENT, timeout=60, check=False)


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_directory_that_cannot_be_written(public, mode):
    message = public / "message"
    message.write_bytes(b"Subject: x\n\nx\n")
    (public / "place").mkdir()
    (public / "place").chmod(mode)
    for state in (public / "place", public / "place" / "state"):
        for command in (["learn", "--as", "ham", message], ["judge", message], ["status"]):
            assert_failed(as_nobody(state, *command), str(public / "place"))
        done = as_nobody(state, "filter", stdin=b"Subject: x\n\nx\n")
        assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
        assert done.stdout.startswith(b"X-Spamguard: not-scanned; reason=")
        assert done.stdout.endswith(b"\nSubject: x\n\nx\n")
    (public / "place").chmod(0o755)
    assert list((public / "place").iterdir()) == []


def test_somebody_elses_filter(public, master):
    state = Path(shutil.copytree(master, public / "state"))
    state.chmod(0o755)
    (public / "message").write_bytes(b"Subject: x\n\nx\n")
    for command in (["judge", public / "message"], ["status"], ["rebuild"]):
        assert_failed(as_nobody(state, *command), "key", "run as the user who owns it")


def test_mail_that_may_not_be_read(public):
    state, secret = public / "state", public / "secret"
    secret.write_bytes(b"Subject: x\n\nx\n")
    secret.chmod(0o000)
    assert_failed(as_nobody(state, "learn", "--as", "ham", secret), "secret: cannot be read", "permissions")
    box = mailbox.Maildir(public / "box")
    box.close()
    (public / "box" / "new").chmod(0o000)
    assert_failed(as_nobody(state, "judge", public / "box"), "cannot be read")


# Many at once

WORKER = """
import io, json, sys
from types import SimpleNamespace
from spamguard.cli import main
from corpora import synthetic
number, state = int(sys.argv[1]), sys.argv[2]
own = [(label, raw) for at, (label, raw) in enumerate(synthetic.generate(240, 11)) if at % 4 == number]
print("ready", flush=True)
sys.stdin.readline()
for label, raw in own:
    for command in (["learn", "--as", label, "-"], ["judge", "--json", "-"], ["filter"]):
        sys.stdin = SimpleNamespace(buffer=io.BytesIO(raw))
        assert main(["--state", state, *command]) in (0, 1, 3), command
"""


def test_four_processes_teach_and_judge_at_once(state):
    line = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen(
            [*line, str(number), str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        for number in range(4)
    ]
    for worker in workers:
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert (worker.returncode, err) == (0, b""), err
        assert out.count(b"taught 1 message as ") == 60
    expected = Counter(label for label, _ in synthetic.generate(240, 11))
    with Filter.open(state) as spam_filter:
        assert dict(spam_filter.status().classes) == expected
    assert_receipts_and_tables_agree(state)


def test_a_lesson_is_in_force_in_another_process_at_its_next_judgement(taught, corpus, tmp_path):
    """One process stays and judges; another one teaches it the opposite of everything."""
    messages = [path.read_bytes() for path in sorted((corpus / "data").iterdir())[:5]]
    with Filter.open(taught) as resident:
        for number, raw in enumerate(messages):
            before = resident.judge(raw)
            assert resident.judge(raw) == before
            known = max(before.probabilities, key=lambda name: before.probabilities[name])
            other = "ham" if known == "spam" else "spam"
            (tmp_path / "message").write_bytes(raw)
            assert spamguard(taught, "learn", "--as", other, tmp_path / "message").returncode == 0
            after = resident.judge(raw)
            assert after.probabilities[other] > before.probabilities[other], number
            with Filter.open(taught) as fresh:
                assert fresh.judge(raw) == after


def test_a_single_lesson_is_not_kept_waiting_by_bulk_teaching(taught, corpus, tmp_path):
    synthetic.write(tmp_path / "much", 1500, 8)
    bulk = subprocess.Popen([*COMMAND, "--state", str(taught), "learn", str(tmp_path / "much")], stdout=subprocess.PIPE, env=ENVIRONMENT)
    waits, started = [], time.perf_counter()
    with bulk, SqliteLedger.open(taught / "ledger.sqlite", fingerprint_of(taught)) as ledger:
        while bulk.poll() is None:
            begun = time.perf_counter()
            ledger.set_meta("test", "x")
            waits.append(time.perf_counter() - begun)
            time.sleep(0.005)
    assert bulk.returncode == 0
    assert len(waits) > 20
    assert max(waits) < max(2.0, (time.perf_counter() - started) / 4)  # on a busy machine all takes longer


def fingerprint_of(state):
    from spamguard import secret

    return secret.fingerprint(secret.load(state / "key", create=False))


# Killed at any moment

NURSERY = """
import os, sys
from spamguard import bulk, engine
from spamguard.cli import main
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(line.rstrip("\\n").split("\\t")))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Starts commands at once: a process that has everything loaded, and nothing open, forks for each."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.communicate(timeout=20)

    def run(self, *arguments, kill_after=None):
        """Run a command, killed after some seconds if it still runs; its exit status (-9: killed)."""
        self._process.stdin.write("\t".join(map(str, arguments)) + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(self._process.stdout.readline())


SLICE = 136  # messages: two batches and a short one


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Ten mboxes of `SLICE` messages."""
    place = tmp_path_factory.mktemp("slices")
    for number, (_, raw) in enumerate(synthetic.generate(10 * SLICE, 13)):
        with (place / f"{number // SLICE}.mbox").open("ab") as mbox:
            mbox.write(b"From a@example.org Thu Jan  4 10:11:12 2024\n" + raw.replace(b"\nFrom ", b"\n>From ") + b"\n")
    return sorted(place.iterdir())


def test_killed_a_hundred_times(state, slices):
    """Learning and forgetting, killed at random moments: every batch is there whole or not at all, and tables follow the receipts."""
    rng = random.Random(17)
    killed = 0
    taught: list[tuple[Path, str]] = []
    added: set[int] = set()  # events that commands left behind
    with Nursery() as nursery:
        for part in slices[:4]:  # the first one takes longer; after all of them the tables are as large as they become
            begun = time.perf_counter()
            assert nursery.run("--state", state, "learn", "--as", "ham", "--user", "first", part) == 0
            long = time.perf_counter() - begun
        for round_ in range(400):
            if killed == 100:
                break
            part, command, user = rng.choice(slices), ["learn", "--as", rng.choice(["ham", "spam"])], f"user{round_}"
            if taught and rng.random() < 0.3:
                command = ["forget"]
                part, user = taught.pop(rng.randrange(len(taught)))
            else:
                taught.append((part, user))
            last = last_event(state)
            status = nursery.run("--state", state, *command, "--user", user, part, kill_after=rng.uniform(0, long))
            killed += status == -signal.SIGKILL
            long *= 1.02 if status == -signal.SIGKILL else 0.95  # the machine may be busier at times, and less busy then
            added.add(last_event(state) - last)
            if round_ % 25 == 0:
                assert_receipts_and_tables_agree(state)
    assert killed == 100
    assert added <= {0, 64, 128, SLICE}  # whole batches only,
    assert added & {64, 128}  # and some were killed between two
    assert_receipts_and_tables_agree(state)
    assert spamguard(state, "status").returncode == 0


def last_event(state):
    with SqliteLedger.open(state / "ledger.sqlite", fingerprint_of(state), durable=False) as ledger:
        return ledger.last_seq()
