"""The log, and how texts, times and this machine are named."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import log
from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.log import hostname, local_time, rfc3339, utc_datetime
from tests.support.waiting import PATIENCE

CODE = """
import logging, os
from spamguard import log
log.configure(os.environ)
logger = logging.getLogger("spamguard.x")
logger.debug("not told")
logger.info("from=<%s>", "a\\nspamguard.x: forged \\x1b[2J é")
try:
    raise ValueError("b\\n2026-01-01 spamguard.x[1]: INFO: forged \\x1b[2J")
except ValueError:
    logger.exception("a fault")
"""


def logged(file: Path, journal: str | None = None) -> str:
    with file.open("wb") as stderr:
        environment = os.environ | {
            "JOURNAL_STREAM": journal
            or f"{os.fstat(stderr.fileno()).st_dev}:{os.fstat(stderr.fileno()).st_ino}"
        }
        subprocess.run(
            [sys.executable, "-c", CODE],
            env=environment,
            stderr=stderr,
            check=True,
            timeout=PATIENCE,
        )
    return file.read_text()


def test_lines_with_the_time(tmp_path: Path) -> None:
    line, fault, *traceback = logged(tmp_path / "log", journal="1:2").splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d .* spamguard\.x\[\d+\]: INFO: from=<", line)
    assert line.endswith(r"INFO: from=<a\nspamguard.x: forged \x1b[2J é>")
    assert fault.endswith("ERROR: a fault")
    assert traceback[0] == "  Traceback (most recent call last):"
    assert all(one.startswith("  ") and one.isprintable() for one in traceback)


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "14:13:20+0000 "),
        ("IST-5:30", "19:43:20+0530 "),
        ("XXX3", "11:13:20-0300 "),
    ],
)
def test_times_have_a_zone(monkeypatch: pytest.MonkeyPatch, zone: str, shown: str) -> None:
    event = record("x")
    event.created, event.msecs = 1_790_000_000.0, 0.0
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        line = log.TextFormatter().format(event)
    time.tzset()
    assert line.startswith(f"2026-09-21 {shown}")


def test_objects_for_the_journal(tmp_path: Path) -> None:
    first, second = logged(tmp_path / "log").splitlines()
    assert first.startswith("<6>{")
    told = json.loads(first[3:])
    assert list(told) == ["level", "logger", "process", "event"]
    assert (told["level"], told["logger"]) == ("info", "spamguard.x")
    assert told["event"] == "from=<a\nspamguard.x: forged \x1b[2J é>"
    assert "é" in first
    assert second.startswith("<3>{")
    fault = json.loads(second[3:])
    assert (fault["event"], fault["level"]) == ("a fault", "error")
    assert "ValueError: b\n" in fault["exception"].replace("\n  ", "\n")


def on_a_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    code = (
        "import logging, os\nfrom spamguard import log\nlog.configure(os.environ)\n"
        "logging.error('bad')\nlogging.info('well')"
    )
    plain = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {
        "TERM": "xterm"
    }
    try:
        subprocess.run(
            [sys.executable, "-c", code],
            env=plain | environment,
            stderr=theirs,
            check=True,
            timeout=PATIENCE,
        )
        return os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    "text", ["anna", "anna@example.org", "jürgen", "<a@b.example>", "C:\\x", "250;ok"]
)
def test_one_word_is_told_as_it_is(text: str) -> None:
    assert log.quote_value(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "anna b", "anna class=ham", 'a"b', "a=b", "a\xa0b", "jürgen\n", "\u202egnp", "\x1b[31m"],
)
def test_anything_else_stands_in_quotes(text: str) -> None:
    """So that a line can be taken apart, whatever strangers call themselves."""
    told = log.quote_value(text)
    assert json.loads(told) == text
    assert told.isprintable()


def test_letters_can_be_read_in_quotes_too() -> None:
    assert log.quote_value("Jürgen Groß") == '"Jürgen Groß"'


def record(message: str, facts: Mapping[str, str] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("spamguard.mail", logging.INFO, "", 0, "%s", (message,), None)
    if facts is not None:
        made.event, made.facts = "handled", lambda: facts
    return made


def parsed(line: str) -> dict[str, Any]:
    assert line.isprintable()
    found = json.loads(line[3:])
    assert isinstance(found, dict)
    return found


def test_facts_are_fields() -> None:
    found = parsed(
        log.JournalFormatter().format(
            record(
                "id=1 from=<a>", {"id": "1", "from": "<a>", "level": "forged", "event": "forged"}
            )
        )
    )
    assert found == {
        "level": "info",
        "logger": "spamguard.mail",
        "process": os.getpid(),
        "event": "handled",
        "id": "1",
        "from": "<a>",
    }


def test_a_lesson_is_a_line_or_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for way in ({"by": "web"}, {"from": "INBOX", "to": "Old junk"}):
        log.log_lesson(logging.getLogger("spamguard.x"), "anna b", way, "spam", bytes(16), "learnt")
    by, moved = caplog.records
    assert by.getMessage() == 'lesson user="anna b" by=web class=spam message=000000000000: learnt'
    assert moved.getMessage() == (
        "lesson user=\"anna b\" from='INBOX' to='Old junk' class=spam message=000000000000: learnt"
    )
    found = parsed(log.JournalFormatter().format(moved))
    assert found["event"] == "lesson"
    told = {
        "user": "anna b",
        "from": "INBOX",
        "to": "Old junk",
        "class": "spam",
        "message": "000000000000",
        "outcome": "learnt",
    }
    assert told.items() <= found.items()


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_nothing_breaks_an_object(message: str, facts: Mapping[str, str]) -> None:
    found = parsed(log.JournalFormatter().format(record(message, facts)))
    assert found["event"] == "handled"
    assert parsed(log.JournalFormatter().format(record(message)))["event"] == message


@pytest.mark.parametrize(
    "text", ["\udc80", "\x7f", "\x85", "\u2028", "\U000e0001", "a\r\nb", "\x00"]
)
def test_odd_letters(text: str) -> None:
    line = log.JournalFormatter().format(record(text))
    assert line.encode("utf-8")
    assert parsed(line)["event"] == text
    told = log.TextFormatter().format(record(text))
    assert told.isprintable()


def test_a_repeated_trouble_is_logged_again_only_when_its_text_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = log.WarnOnce(logging.getLogger("spamguard.test"))
    for why in ("full", "full", "gone", "gone"):
        trouble.report("cannot be written: %s", why)
    trouble.clear()
    trouble.report("cannot be written: %s", "gone")
    told = [("WARNING", f"cannot be written: {why}") for why in ("full", "gone", "gone")]
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == told


# ---- times


@pytest.fixture
def east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-14")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("east")
def test_people_are_told_their_own_time_and_programs_that_of_all() -> None:
    assert (local_time(1.9), local_time(1.9, exact=True)) == (
        "1970-01-01 14:00",
        "1970-01-01 14:00:01",
    )
    assert rfc3339(1.9) == "1970-01-01T00:00:01+00:00"


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize("seconds", [-1e30, -1, 1e12, 10**30, float("inf")])
def test_what_has_no_date(seconds: float) -> None:
    year = 9999 if seconds > 0 else 1970
    assert utc_datetime(seconds).year == year
    assert local_time(seconds).startswith(str(year))


# ---- the name of this machine


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ("mx.example.org", "mx.example.org"),
        ("under_scored", "under_scored"),
        ("MX-1", "MX-1"),
        ("", "localhost"),
        ("two words", "localhost"),
        ("evil\r\nRSET", "localhost"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "localhost"),
        ("ü" * 60, "localhost"),
    ],
)
def test_it_can_be_said_to_any_server(
    monkeypatch: pytest.MonkeyPatch, machine: str, told: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    assert hostname() == told
    SmtpNextHop(Hop(Endpoint(Protocol.SMTP, "127.0.0.1", 25)), hostname())
