"""Fixtures: a corpus of made-up mail, a filter taught with it, and commands in this process."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corpora import synthetic
from spamguard.cli import main
from spamguard.engine.filter import Filter

BITS = 16  # tables of one megabyte: tests make many


@dataclass
class Done:
    """Exit status and output of a command."""

    status: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def failed(self, *words: str) -> bool:
        """Whether it failed with one line that has these words, and printed nothing else."""
        one_line = (
            self.err.count("\n") == 1 and self.err.startswith("spamguard: ") and len(self.err) < 400
        )
        return self.status == 2 and one_line and all(word in self.err for word in words)


Run = Callable[..., Done]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """120 messages as a TREC corpus (index, data/), and by class: ham.mbox, spam (a Maildir)."""
    directory = tmp_path_factory.mktemp("mail") / "corpus"
    synthetic.write(directory, 120, 3)
    for part in ("cur", "new", "tmp"):
        (directory / "spam" / part).mkdir(parents=True)
    with (directory / "ham.mbox").open("wb") as mbox:
        for number, (label, raw) in enumerate(synthetic.generate(120, 3)):
            if label == "ham":
                mbox.write(
                    b"From a@example.org Thu Jan  4 10:11:12 2024\n"
                    + raw.replace(b"\nFrom ", b"\n>From ")
                    + b"\n"
                )
            else:
                (directory / "spam" / "cur" / f"{number:04d}.x:2,S").write_bytes(raw)
    return directory


@pytest.fixture(scope="session")
def counts() -> dict[str, int]:
    labels = [label for label, _ in synthetic.generate(120, 3)]
    return {"ham": labels.count("ham"), "spam": labels.count("spam")}


@pytest.fixture(scope="session")
def _master(tmp_path_factory, corpus) -> Path:
    state = tmp_path_factory.mktemp("master") / "state"
    Filter.open(state, _bits=BITS, _durable=False).close()
    assert main(["--state", str(state), "learn", str(corpus)]) == 0
    return state


@pytest.fixture(scope="session")
def clear(_master) -> dict[str, bytes]:
    """The ham and the spam that the taught filter is surest of, whatever its thresholds are."""
    with Filter.open(_master) as spam_filter:
        ranked = sorted(
            (raw for _, raw in synthetic.generate(120, 3)),
            key=lambda raw: spam_filter.judge(raw).log_odds,
        )
    return {"ham": ranked[0], "spam": ranked[-1]}


@pytest.fixture
def state(tmp_path) -> Path:
    """A new filter with small tables."""
    Filter.open(tmp_path / "state", _bits=BITS, _durable=False).close()
    return tmp_path / "state"


@pytest.fixture
def taught(tmp_path, _master) -> Path:
    """A filter that was taught the whole corpus; each test has a copy of its own."""
    return Path(shutil.copytree(_master, tmp_path / "taught"))


@pytest.fixture
def run(capsysbinary, monkeypatch) -> Run:
    """Run a command: `run(state, "judge", path, stdin=b"")`."""

    def command(state: Path | None, *arguments: object, stdin: bytes | None = None) -> Done:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capsysbinary.readouterr()
        status = main([*([] if state is None else ["--state", str(state)]), *map(str, arguments)])
        out, err = capsysbinary.readouterr()
        return Done(status, out, err.decode())

    return command


@pytest.fixture
def status_of(run: Run) -> Callable[[Path], Any]:
    """What `status` says of a filter, for programs."""
    return lambda state: run(state, "status", "--json").json


@pytest.fixture
def new_spam(tmp_path) -> Path:
    """A message that no filter was taught."""
    path: Path = tmp_path / "message.eml"
    path.write_bytes(new_mail("spam")[0])
    return path


def lessons(state: Path) -> dict[str, int]:
    """The number of messages of each class that a filter was taught."""
    with Filter.open(state) as spam_filter:
        return dict(spam_filter.status().classes)


def new_mail(label: str, number: int = 1, seed: int = 99) -> list[bytes]:
    """Messages of a class that the corpus does not have."""
    return [
        raw for own_label, raw in synthetic.generate(20 * number + 20, seed) if own_label == label
    ][:number]
