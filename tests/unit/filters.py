"""What the tests of filters share: a small filter with a known key, messages, and everything it
holds to compare bit for bit.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from corpora.synthetic import generate
from spamguard import keys
from spamguard.bayes.tables import PER_CLASS, PER_OTHER_CLASS, Tables, spread_rows
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from tests.support.waiting import PATIENCE

KEY = b"the key of all filters in tests!"
READER = ExampleReader(KEY)
"""Reads messages as these filters do."""
BITS = 14
ROOT = Path(__file__).parents[2]


def opened(
    directory: Path, *, bits: int = BITS, durable: bool = False, load: bool = True, **settings: Any
) -> Filter:
    """The filter in `directory`; a new one gets the known key, so that canonical orders repeat."""
    directory.mkdir(exist_ok=True)
    if not (directory / "ledger.sqlite").exists() and not (directory / "key").exists():
        keys.store_key(directory / "key", KEY)
    return Filter.open(directory, _bits=bits, _durable=durable, _load=load, **settings)


def upgraded(directory: Path) -> None:
    """All that was taught there was read by an older extractor."""
    with closing(sqlite3.connect(directory / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET extractor = extractor - 1, packed = x'00'")
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%'")


def mail(size: int, seed: int = 1) -> list[tuple[str, bytes]]:
    """The first messages of `corpora.synthetic`; each is made once for all tests of a process."""
    made, more = _made(seed)
    made.extend(islice(more, max(0, size - len(made))))
    return made[:size]


@cache
def _made(seed: int) -> tuple[list[tuple[str, bytes]], Iterator[tuple[str, bytes]]]:
    return [], generate(1 << 40, seed)


def teach(spam_filter: Filter, lessons: Sequence[tuple[str, bytes]], user: str = "") -> None:
    """One by one, without settling."""
    for label, raw in lessons:
        spam_filter.learn_examples([READER.read_example(raw)], label, user=user)


def bits_of(tables: Tables) -> dict[str, Any]:
    """Everything in the tables, comparable bit for bit; how much room a histogram has in reserve is
    nobody's business.
    """
    arrays = {
        name: getattr(tables, name)
        for name in (*PER_CLASS, *PER_OTHER_CLASS, "vocabulary", "fusion_weights")
    }
    width = max([1, *(arrays["histogram"].any(axis=0).nonzero()[0] + 1).tolist()])
    arrays["histogram"] = arrays["histogram"][:, :width]
    for at, column in enumerate(tables.columns):
        arrays[f"column {at}"] = spread_rows(tables, column)
    return {
        "rows": spread_rows(tables, tables.rows).tobytes(),
        "classes": tables.classes,
        **{name: array.tobytes() for name, array in arrays.items()},
    }


def held(spam_filter: Filter) -> dict[str, Any]:
    """All bits a filter holds, after taking in what there is."""
    spam_filter._refresh()
    return bits_of(spam_filter._store.tables)


def files(directory: Path) -> dict[str, bytes]:
    """Every byte in a directory; the shared-memory index of SQLite, in which readers leave their
    marks, is none of the data.
    """
    found = (
        path for path in directory.rglob("*") if path.is_file() and path.suffix != ".sqlite-shm"
    )
    return {path.name: path.read_bytes() for path in found}


def python(
    code: str, *arguments: str, module: str = "tests.unit.filters"
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, in which the names of a module are known."""
    head = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from {module} import *\nfrom pathlib import Path\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def serve(directory: str, connection: Any) -> None:
    """Judge what comes through a connection, in a process of its own, until nothing comes."""
    with opened(Path(directory)) as spam_filter:
        while raw := connection.recv():
            verdict = spam_filter.judge(raw)
            connection.send((verdict.label, verdict.log_odds))
