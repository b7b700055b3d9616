"""Values kept between two requests: bounded, for one user, for a short time."""

from __future__ import annotations

from spamguard.web.auth import Person
from spamguard.web.context import UserTtlStore

ANNA, BEN = Person("anna"), Person("ben")


class Bench:
    """A shelf with a clock that can be set."""

    def __init__(self, each: int = 2, most: int = 3) -> None:
        self.now = 0.0
        self.dropped: list[str] = []
        self.shelf: UserTtlStore[str] = UserTtlStore(
            each, most, 10, lambda: self.now, self.dropped.append
        )


def test_a_value_is_for_the_user_who_stored_it() -> None:
    shelf = Bench().shelf
    name = shelf.put(ANNA, "a")
    assert shelf.get(ANNA, name) == "a"
    assert shelf.get(BEN, name) is None
    assert shelf.get(Person("anna", operator=True), name) is None
    shelf.remove(BEN, name)
    assert shelf.get(ANNA, name) == "a"
    assert shelf.get(ANNA, "") is None


def test_the_oldest_goes_first() -> None:
    bench = Bench()
    names = [bench.shelf.put(ANNA, thing) for thing in "abc"]
    assert bench.dropped == ["a"]
    assert [bench.shelf.get(ANNA, name) for name in names] == [None, "b", "c"]
    bench.shelf.put(BEN, "d")
    bench.shelf.put(BEN, "e")
    assert bench.dropped == ["a", "b"]


def test_nothing_is_kept_for_long() -> None:
    bench = Bench()
    name = bench.shelf.put(ANNA, "a")
    bench.now = 9.9
    assert bench.shelf.get(ANNA, name) == "a"
    bench.now = 10
    assert bench.shelf.get(ANNA, name) is None
    assert bench.dropped == ["a"]


def test_a_value_that_is_taken_is_dropped() -> None:
    bench = Bench()
    name = bench.shelf.put(ANNA, "a")
    bench.shelf.remove(BEN, name)
    assert bench.dropped == []
    bench.shelf.remove(ANNA, name)
    assert bench.dropped == ["a"]
