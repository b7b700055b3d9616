"""The index of the quarantine, used by several threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

from spamguard.web.queries import QuarantineIndex
from tests.support.waiting import PATIENCE

ASKED, GO_ON = Event(), Event()
READERS: list[Thread] = []


class Id(str):
    """In comparing one, the reading of another comes to its end, if it can."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if ASKED.is_set() and not GO_ON.is_set():
            GO_ON.set()
            READERS[0].join(0.2)
        return str.__eq__(self, other)


class Held:
    """A quarantine in which something has always changed. The note of b takes its time."""

    def changed_at(self) -> int:
        return time.time_ns()

    def ids(self) -> Iterator[str]:
        return iter([Id("a"), Id("b"), Id("c")])

    def read_entries(self, names: Iterable[str]) -> Iterator[Any]:
        for name in names:
            if name == "b":
                ASKED.set()
                GO_ON.wait()
            yield SimpleNamespace(
                envelope=SimpleNamespace(
                    recipients=[SimpleNamespace(address=f"{name}@example.org")]
                )
            )


def test_a_note_that_is_read_during_a_listing() -> None:
    """The listing failed ("dictionary changed size during iteration")."""
    index: Any = QuarantineIndex(Held())
    found: list[Any] = []
    READERS.append(Thread(target=lambda: found.append(index.newest("~", 9, lambda _: True))))
    READERS[0].start()
    assert ASKED.wait(PATIENCE)
    try:
        assert index.newest("~", 9, lambda _: True) == (["c", "b", "a"], "")
    finally:
        GO_ON.set()
        READERS[0].join(PATIENCE)
    assert found == [(["c", "b", "a"], "")]
