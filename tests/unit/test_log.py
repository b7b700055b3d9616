"""The log, and how texts, times and this machine are named."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import log
from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.log import hostname
from tests.support.waiting import PATIENCE

CODE = """
import logging, os
from spamguard import log
log.configure()
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


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_nothing_breaks_an_object(message: str, facts: Mapping[str, str]) -> None:
    found = parsed(log.JournalFormatter().format(record(message, facts)))
    assert found["event"] == "handled"
    assert parsed(log.JournalFormatter().format(record(message)))["event"] == message


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
