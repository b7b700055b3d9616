"""Where pages of a list begin, and the index of the quarantine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spamguard.keys import id_time, is_id, new_id
from spamguard.web.quarantine import QuarantineIndex
from spamguard.web.queries import AFTER_LAST_ID, next_page_start
from tests.support.waiting import PATIENCE
from tests.unit.bayes.support import repeatable

# ---- pages

NAMES = st.builds(new_id, st.floats(0, 2**48 / 1000 - 1), st.binary(min_size=4, max_size=4))
NEAR = st.builds(new_id, st.floats(1e9, 1e9 + 300), st.binary(min_size=4, max_size=4))


@repeatable
@given(NEAR, st.none() | NEAR)
def test_the_start_is_between_the_last_seen_and_the_last_shown_row(
    one: str, other: str | None
) -> None:
    seen, last = (min(one, other), max(one, other)) if other else (one, "")
    start = next_page_start(seen, last)
    assert seen <= start <= (last or AFTER_LAST_ID)
    assert start == last or (id_time(start) % 60, start[-4:]) == (0, "0000")
    assert id_time(start) - id_time(seen) <= 60


@repeatable
@given(NAMES)
def test_every_name_gives_a_start(name: str) -> None:
    assert is_id(next_page_start(name, ""))


def test_where_all_was_seen_nothing_follows() -> None:
    assert next_page_start("", "") == next_page_start("", new_id(1e9, b"rand")) == ""


# ---- the index

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
