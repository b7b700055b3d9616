"""How often one may ask."""

from __future__ import annotations

from spamguard.web import middleware
from spamguard.web.middleware import RateLimiter


def test_a_minutes_worth_at_once_and_then_steadily() -> None:
    found = RateLimiter(60)
    assert [found.take("a", 100.0) for _ in range(60)] == [0.0] * 60
    assert found.take("a", 100.0) == 1.0
    assert found.take("b", 100.0) == 0.0
    assert found.take("a", 101.0) == 0.0
    assert found.take("a", 101.5) == 0.5
    assert found.take("a", 102.0) == 0.0  # asking too early costs nothing
    assert [found.take("a", 1000.0) for _ in range(61)][-1] > 0


def test_there_is_an_end_to_what_is_remembered(monkeypatch) -> None:
    monkeypatch.setattr(middleware, "_MAX_BUCKETS", 3)
    found = RateLimiter(1)
    assert [found.take(name, 1.0) for name in "abcd"] == [0.0] * 4
    assert found.take("d", 1.0) > 0
    assert found.take("a", 1.0) == 0.0  # was asked of longest ago
    assert len(found._buckets) == 3
