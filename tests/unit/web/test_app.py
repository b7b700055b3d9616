"""How often a client may ask, and the line in the log of each request."""

from __future__ import annotations

from spamguard.web import requests
from spamguard.web.requests import RateLimiter

# ---- rates


def test_few_clients_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(requests, "_MAX_BUCKETS", 3)
    limiter = RateLimiter(1)
    assert [limiter.take(name, 1.0) for name in "abcd"] == [0.0] * 4
    assert limiter.take("d", 1.0) > 0
    assert limiter.take("a", 1.0) == 0.0  # forgotten: it had asked longest ago
    assert limiter.take("b", 1.0) == 0.0  # and now this one
    assert limiter.take("a", 1.0) > 0
