"""How often a client may ask."""

from __future__ import annotations

from spamguard.web import app
from spamguard.web.app import RateLimiter


def test_a_burst_of_a_minute_and_then_a_steady_rate() -> None:
    limiter = RateLimiter(60)
    assert [limiter.take("a", 100.0) for _ in range(60)] == [0.0] * 60
    assert limiter.take("a", 100.0) == 1.0
    assert limiter.take("b", 100.0) == 0.0
    assert limiter.take("a", 101.0) == 0.0
    assert limiter.take("a", 101.5) == 0.5
    assert limiter.take("a", 102.0) == 0.0  # asking too early costs nothing
    assert [limiter.take("a", 1000.0) for _ in range(61)][-1] > 0


def test_few_clients_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(app, "_MAX_BUCKETS", 3)
    limiter = RateLimiter(1)
    assert [limiter.take(name, 1.0) for name in "abcd"] == [0.0] * 4
    assert limiter.take("d", 1.0) > 0
    assert limiter.take("a", 1.0) == 0.0  # forgotten: it had asked longest ago
    assert limiter.take("b", 1.0) == 0.0  # and now this one
    assert limiter.take("a", 1.0) > 0
