"""How often a client may ask, and the line in the log of each request."""

from __future__ import annotations

from spamguard.web import requests
from spamguard.web.requests import RateLimiter

# ---- rates


def test_each_client_has_its_limit_for_a_period() -> None:
    limiter = RateLimiter(2, 60.0)
    assert [limiter.take("a", 1.0), limiter.take("a", 2.0), limiter.take("b", 2.0)] == [0.0] * 3
    assert limiter.take("a", 31.0) == 30.0
    assert limiter.take("a", 61.0) == 0.0


def test_few_clients_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(requests, "_MAX_KEYS", 3)
    limiter = RateLimiter(1)
    assert [limiter.take(name, 1.0) for name in "abcd"] == [0.0] * 4
    assert limiter.take("d", 1.0) == 0.0  # forgotten with all others
    assert limiter.take("d", 1.0) > 0
