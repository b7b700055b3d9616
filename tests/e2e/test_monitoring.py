"""Metrics, health, `status` and the log of the real daemon, as an operator reads them."""

from __future__ import annotations

import json
import os
import re
import signal
import smtplib
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.e2e import daemon
from tests.e2e.daemon import COMMAND, ENVIRONMENT, Daemon
from tests.e2e.peers import Hop
from tests.e2e.ports import free_port
from tests.support.processes import children, descendants
from tests.support.waiting import COMMAND_SECONDS, PATIENCE

Values = dict[tuple[str, ...], float]


class Monitored:
    """A daemon with two workers that monitors may ask."""

    def __init__(self, state: Path, next_hop: str = "") -> None:
        self.state = state
        self.port, self._http = free_port(), free_port()
        self.file = state.with_name(f"{state.name}.yaml")
        self._next_hop = next_hop or f"maildir:{state.with_name('Maildir')}"
        self.configure()

    def configure(self, **more: object) -> None:
        listener = {
            "listen": f"smtp://127.0.0.1:{self.port}",
            "position": "standalone",
            "next_hop": self._next_hop,
        }
        self.file.write_text(
            yaml.safe_dump(
                {
                    "state": str(self.state),
                    "workers": 2,
                    "metrics": f"127.0.0.1:{self._http}",
                    "listeners": [listener],
                    **more,
                }
            )
        )

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        with daemon.running(self.state, "--config", str(self.file), port=self.port) as running:
            running.lines("monitors may ask")
            yield running

    def send(self, raw: bytes) -> None:
        """Over a connection of its own, so that any worker may get it."""
        with smtplib.SMTP("127.0.0.1", self.port, timeout=PATIENCE) as client:
            client.sendmail("a@example.org", ["b@example.org"], raw)

    def ask(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._http}/{page}", timeout=PATIENCE
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def values(self) -> Values:
        """All samples: by name and the values of their labels, in the order of their names."""
        status, text = self.ask("metrics")
        assert status == 200
        return {
            (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
            for family in parsed(text)
            for sample in family.samples
        }

    def counted(self, running: Daemon) -> Values:
        """All samples, as soon as the messages are those of the log."""
        until = time.monotonic() + PATIENCE
        while counted(values := self.values()) != verdicts_of_log(running):
            assert time.monotonic() < until, f"never so: {values}"
            time.sleep(0.1)
        return values

    def becomes(self, page: str, status: int, line: str) -> None:
        until = time.monotonic() + PATIENCE
        while (reply := self.ask(page))[0] != status or not re.search(line, reply[1], re.MULTILINE):
            assert time.monotonic() < until, f"never so: {page} {status} {line}; last: {reply}"
            time.sleep(0.1)


def status(state: Path, *options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, "--state", str(state), "status", *options]
    return subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        env=ENVIRONMENT,
        check=False,
        **settings,
    )


def counted(values: Values) -> Counter[str]:
    """Messages by verdict."""
    counter: Counter[str] = Counter()
    for name, value in values.items():
        if name[0] == "spamguard_messages_total":
            counter[name[2]] += int(value)
    return counter


def growing(values: Values) -> Values:
    return {
        name: value
        for name, value in values.items()
        if name[0].endswith(("_total", "_bucket", "_count", "_sum"))
    }


def verdicts_of_log(running: Daemon) -> Counter[str]:
    """Messages by verdict, from the log."""
    return Counter(re.findall(r"verdict=(\S+)", running.log()))


def test_metrics_add_up_over_workers_a_reload_and_ends_of_processes(state: Path) -> None:
    site = Monitored(state)
    spam, ham = daemon.unseen("spam", 8), daemon.unseen("ham", 8)
    with site.running() as running:
        first = site.values()
        assert not counted(first).total()
        for raw in [*spam[:5], *ham[:5]]:
            site.send(raw)
        running.lines("verdict=", 10)
        before = site.counted(running)
        assert len(+counted(before)) >= 2
        assert before["spamguard_message_bytes_total",] == sum(
            map(int, re.findall(r" size=(\d+)", running.log()))
        )
        assert all(
            before["spamguard_stage_seconds_count", stage] == 10
            for stage in ("receive", "judge", "hand_on")
        )
        assert before["spamguard_state_usable",] == 1
        assert (
            before["spamguard_class_messages", "spam"] + before["spamguard_class_messages", "ham"]
            == daemon.MESSAGES
        )

        running.process.send_signal(signal.SIGHUP)
        running.lines("serving", 2)
        running.lines("has drained", 2)
        assert growing(site.values()) == growing(before)
        for raw in spam[5:]:
            site.send(raw)
        running.lines("verdict=", 13)
        site.counted(running)  # what was counted since the last heartbeat dies with its process

        for worker in children(running.process.pid, "daemon.worker"):
            os.kill(worker, signal.SIGKILL)
        running.lines("SIGKILL: replaced", 2)
        site.counted(running)
        (reporter,) = children(running.process.pid, "daemon.web")
        os.kill(reporter, signal.SIGKILL)
        running.lines("monitors may ask", 2)
        for raw in ham[5:]:
            site.send(raw)
        running.lines("verdict=", 16)
        last = site.counted(running)
        assert all(last[name] >= value for name, value in growing(before).items())


def test_it_is_ready_while_the_next_hop_answers(state: Path) -> None:
    hop = Hop()
    endpoint = f"smtp://127.0.0.1:{hop.port}"
    site = Monitored(state, endpoint)
    (raw,) = daemon.unseen("ham", 1)
    with site.running() as running:
        site.becomes("readyz", 503, f"^next hop {endpoint}: connect: ")
        site.becomes("healthz", 200, "^alive$")
        with pytest.raises((smtplib.SMTPException, OSError)):
            site.send(raw)
        values = site.values()
        assert values["spamguard_next_hop_errors_total", "unreachable", endpoint] >= 1
        answer = json.loads(status(state, "--json").stdout)["daemon"]
        assert answer["ready"] is False
        assert any(endpoint in line for line in answer["not_ready"])
        assert endpoint in answer["report"]["counters"]["last_errors"]
        assert running.process.poll() is None
        with hop.serving():
            site.becomes("readyz", 200, "^ready$")


def test_no_process_of_the_daemon_loads_what_only_evaluate_needs(state: Path) -> None:
    """Nor what estimators need. Each of these packages maps libraries of its own."""
    site, port = Monitored(state), free_port()
    site.configure(web=f"127.0.0.1:{port}")
    with site.running() as running:
        running.lines("page and API on")
        for raw in [*daemon.unseen("spam", 2), *daemon.unseen("ham", 2)]:
            site.send(raw)
        running.lines("verdict=", 4)
        site.becomes("readyz", 200, "^ready$")
        assert httpx.get(f"http://127.0.0.1:{port}/login").status_code == 200
        processes = [running.process.pid, *descendants(running.process.pid)]
        assert len(processes) >= 5  # master, workers, scorers and web
        for pid in processes:
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert re.findall(r"/(sklearn|scipy|matplotlib|pandas)/", mapped) == [], pid


def test_the_log_under_systemd(state: Path, tmp_path: Path) -> None:
    """Every process writes JSON objects; text that a sender puts into an address
    stays within them.
    """
    site = Monitored(state)
    file = tmp_path / "journal"
    with file.open("wb") as stream:
        journal = f"{os.fstat(stream.fileno()).st_dev}:{os.fstat(stream.fileno()).st_ino}"
        process = subprocess.Popen(
            [*COMMAND, "run", "--config", str(site.file)],
            env=ENVIRONMENT | {"JOURNAL_STREAM": journal},
            stdout=stream,
            stderr=stream,
        )
    running = Daemon(process, state, file)
    try:
        running.lines("monitors may ask")
        running.lines("serving")
        raw = b"Subject: =?utf-8?q?a=0A=1B=5B2Jb?=\r\n" + daemon.unseen("ham", 1)[0]
        site.send(raw)
        running.lines('"event": "handled"')
        os.kill(children(running.process.pid, "daemon.worker")[0], signal.SIGKILL)
        running.lines("SIGKILL")
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    lines = file.read_text().splitlines()
    objects = [json.loads(re.sub(r"^<[2346]>", "", line)) for line in lines]
    assert all(line.startswith("<") and line.isprintable() for line in lines)
    assert all(list(entry)[:4] == ["level", "logger", "process", "event"] for entry in objects)
    (handled,) = [entry for entry in objects if entry["event"] == "handled"]
    assert (handled["logger"], handled["from"], handled["client"]) == (
        "spamguard.mail",
        "<a@example.org>",
        "127.0.0.1",
    )
    assert {"id", "verdict", "action", "words", "reply", "judging", "size"} <= set(handled)
    assert any(entry["level"] == "error" and "SIGKILL" in entry["event"] for entry in objects)
