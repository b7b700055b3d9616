"""The real daemon with `keep`: it forgets the oldest lessons, settles, and goes on judging."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from corpora import synthetic
from spamguard import keys
from spamguard.engine.filter import Filter
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.support.waiting import COMMAND_SECONDS
from tests.unit.filters import KEY, READER, held

LESSONS = 1100
KEEP = 1000
SETTLED = "settled in"


def spamguard(state: Path, *words: str, data: bytes = b"") -> str:
    """Run a command beside the daemon; what it prints."""
    line = [*daemon.COMMAND, "--state", str(state), *words]
    done = subprocess.run(
        line,
        input=data,
        capture_output=True,
        env=daemon.ENVIRONMENT,
        timeout=COMMAND_SECONDS,
        check=True,
    )
    return done.stdout.decode()


def teach(state: Path, mail: list[tuple[str, bytes]]) -> None:
    """Make a filter that was taught all of it, a message each hour until now."""
    state.mkdir(mode=0o700)
    keys.store_key(state / "key", KEY)
    now = int(time.time())
    with Filter.open(state, _durable=False) as spam_filter:
        votes = []
        for label in ("ham", "spam"):
            numbers = [number for number, (each, _) in enumerate(mail) if each == label]
            examples = [READER.read_example(mail[number][1]) for number in numbers]
            for number, vote in zip(numbers, spam_filter.make_votes(examples, label), strict=True):
                votes.append((number, vote._replace(time=now - (len(mail) - number) * 3600)))
        spam_filter.cast_votes([vote for _, vote in sorted(votes)])
        spam_filter.settle()


def test_the_daemon_forgets_the_oldest_lessons(tmp_path: Path) -> None:
    mail = list(dict.fromkeys(synthetic.generate(LESSONS, 5)))
    state, port = tmp_path / "state", free_port()
    teach(state, mail)
    excess = len(mail) - KEEP
    assert excess >= KEEP // 20
    configuration = tmp_path / "spamguard.yaml"
    configuration.write_text(
        f"state: {state}\nkeep: {KEEP}\nscanners:\n  - listen: spamd://127.0.0.1:{port}\n"
    )
    oldest_label, oldest = mail[0]
    with daemon.running(state, "--config", str(configuration), port=port) as running:
        running.lines(f"forgot the {excess} oldest lessons (keep: {KEEP})")
        running.lines(SETTLED)
        status = json.loads(spamguard(state, "status", "--json"))
        assert status["daemon"]["keep"] == str(KEEP)
        assert status["kept"]["aged"] == excess
        assert sum(each["messages"] for each in status["classes"].values()) == KEEP
        teach(tmp_path / "never", mail[excess:])
        with Filter.open(state) as aged, Filter.open(tmp_path / "never") as never:
            lessons = {lesson.digest: lesson.label for lesson in aged.ledger.lessons()}
            assert lessons == {READER.digest(raw): label for label, raw in mail[excess:]}
            assert held(aged) == held(never)
        today = time.strftime("%Y-%m-%d %H:%M")
        undone = spamguard(state, "undo", "--user", "(the site)", "--since", today)
        assert "nothing to take back" in undone
        spamguard(state, "learn", "--as", oldest_label, "-", data=oldest)
        status = json.loads(spamguard(state, "status", "--json"))
        assert sum(each["messages"] for each in status["classes"].values()) == KEEP + 1
        assert f"kept       {KEEP:,} lessons (keep), since " in spamguard(state, "status")
