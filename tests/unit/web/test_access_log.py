"""Each request is one line in the log, except the polling of an open page."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.unit.web.served import ANNA, served


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
