"""The part of `status` about the daemon, whatever the daemon answers."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
import pytest

from spamguard import __version__
from spamguard.cli import status
from spamguard.config.values import KeptLessons
from spamguard.counters import DaemonReport
from spamguard.daemon import status as daemon_status
from spamguard.learning.undo import age_votes
from tests.unit.filters import READER, mail, opened

HEALTHY = {
    "pid": 7,
    "version": __version__,
    "listeners": [],
    "scanners": ["spamd://127.0.0.1:783"],
    "metrics": None,
    "web": None,
    "stopping": False,
    "workers": [{"pid": 8, "ready": True, "draining": False, "silent": 0.1}],
    "report": msgspec.to_builtins(DaemonReport(began=1000, scoring=True)),
}


@contextmanager
def saying(state, answer):
    """A daemon that gives this answer to one client."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(state / daemon_status.STATUS_SOCKET))
        listening.listen()

        def serve():
            connected, _ = listening.accept()
            with connected:
                connected.sendall(json.dumps(answer).encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def values(state, **changes):
    with saying(state, HEALTHY | changes):
        return status.daemon_values(state)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"stopping": True}, "it is stopping"),
        ({"workers": []}, "workers: none accepts mail"),
        ({"report": msgspec.to_builtins(DaemonReport())}, "scorers: none is ready"),
        (
            {
                "report": HEALTHY["report"]
                | {"absent": ["page and API: nobody serves them for 12 s"]}
            },
            "page and API: nobody serves them for 12 s",
        ),
        (
            {
                "listeners": [
                    {
                        "listen": "smtp://127.0.0.1:1",
                        "position": "standalone",
                        "next_hop": "lmtp:/none",
                        "tls": "off",
                    }
                ]
            },
            "next hop lmtp:/none",
        ),
    ],
)
def test_each_problem_is_named(tmp_path, changes, line):
    report = values(tmp_path, **changes)
    assert report["ready"] is False
    assert report["not_ready"][0].startswith(line)
    assert status.daemon_lines(report)[0].startswith("NOT READY, pid 7")
    assert status.daemon_lines(report)[1].startswith(f"not ready: {line}")


def test_a_daemon_of_another_version(tmp_path):
    with saying(tmp_path, {"pid": 7, "version": "0.0.1", "odd": []}):
        report = status.daemon_values(tmp_path)
    assert report == {"pid": 7, "version": "0.0.1", "ready": False}
    assert status.daemon_lines(report) == [
        f"pid 7 runs version 0.0.1, this program is {__version__}: restart it"
    ]


def test_a_daemon_that_does_not_answer_and_none_at_all(tmp_path):
    assert status.daemon_lines(status.daemon_values(tmp_path)) == [
        "none runs on this state directory"
    ]
    (line,) = status.daemon_lines({"pid": 7, "version": None, "ready": False})
    assert "pid 7 runs and does not answer" in line


@pytest.mark.parametrize(
    ("keep", "aged", "line"),
    [
        (None, 0, "kept       since 2026-01-0"),
        ("2 years", 0, "kept       since 2026-01-01 (keep: 2 years)"),
        (
            "20000",
            2,
            "kept       since 2026-01-11 (keep: 20000)"
            "; 2 older lessons were forgotten in the last 30 days",
        ),
        (None, 2, "kept       since 2026-01-11; 2 older"),
    ],
)
def test_what_is_kept_and_since_when(tmp_path, run, keep, aged, line):
    january = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp())
    with opened(tmp_path) as spam_filter:
        for number, (label, raw) in enumerate(mail(3)):
            (vote,) = spam_filter.make_votes([READER.read_example(raw)], label)
            spam_filter.cast_votes([vote._replace(time=january + number * 5 * 86_400)])
        if aged:
            age_votes(spam_filter, KeptLessons(days=12), january + 20 * 86_400)
    with saying(tmp_path, HEALTHY | {"keep": keep}):
        out = run(tmp_path, "status").out
    (kept,) = (each for each in out.splitlines() if each.startswith("kept"))
    assert re.sub(r"(?<=-[012])[0-9]", "", kept).startswith(re.sub(r"(?<=-[012])[0-9]", "", line))
    (tmp_path / daemon_status.STATUS_SOCKET).unlink()
    with saying(tmp_path, HEALTHY):
        answer = json.loads(run(tmp_path, "status", "--json").out)["kept"]
    assert answer["aged"] == aged
    assert answer["since"] == january + 10 * 86_400 * bool(aged)
