"""How often a client may ask, and the line in the log of each request."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from spamguard.web import requests
from spamguard.web.requests import RateLimiter
from tests.support.waiting import eventually
from tests.unit.web.served import ANNA, served

# ---- rates


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
    monkeypatch.setattr(requests, "_MAX_BUCKETS", 3)
    limiter = RateLimiter(1)
    assert [limiter.take(name, 1.0) for name in "abcd"] == [0.0] * 4
    assert limiter.take("d", 1.0) > 0
    assert limiter.take("a", 1.0) == 0.0  # forgotten: it had asked longest ago
    assert limiter.take("b", 1.0) == 0.0  # and now this one
    assert limiter.take("a", 1.0) > 0


# ---- the log


def test_a_page_that_is_left_open_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path) as running:
        browser = running.browser(ANNA)
        caplog.set_level(logging.INFO, "spamguard.web")
        seen = re.search(r'data-seen="(\w+)"', browser.get("/history").text)
        assert seen is not None
        assert [
            browser.get("/history", params={"seen": text}).status_code
            for text in (seen[1], seen[1], "other")
        ] == [204, 204, 200]

        def told() -> list[list[str]]:
            lines = [
                record.getMessage().partition(" anna ")[2].split()[:3]
                for record in caplog.records
                if record.name == "spamguard.web"
            ]
            return [line for line in lines if line and line[1].startswith("/history")]

        eventually(
            lambda: told() == [["GET", "/history", "200"], ["GET", "/history", "200"]],
            "one line for each but those",
        )
