"""Grafana's dashboard, and the alerts of systemd/README.md, by a real Prometheus that asks a real
daemon.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard.engine.filter import Filter
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE, eventually

DASHBOARD = json.loads((daemon.ROOT / "config/grafana/spamguard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in PANELS
    for target in panel.get("targets", ())
}
# What Grafana fills in: the interval is several scrapes long.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".+"}


def fill_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus"
)


class Prometheus:
    """A server that scrapes one address each second."""

    def __init__(self, place: Path, target: str) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        file = place / "prometheus.yml"
        scraping = {"job_name": "spamguard", "static_configs": [{"targets": [target]}]}
        file.write_text(
            yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scraping]})
        )
        with (place / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={file}",
                    f"--storage.tsdb.path={place / 'series'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )

    def values(self, expression: str) -> list[float]:
        """The values of an expression now. AssertionError: it is not valid."""
        try:
            answer = httpx.get(
                f"http://{self._address}/api/v1/query",
                params={"query": expression},
                timeout=PATIENCE,
            )
        except httpx.ConnectError:  # it is starting
            return []
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, (expression, answer.text)
        return [float(sample["value"][1]) for sample in answer.json()["data"]["result"]]

    def shows(self, expression: str) -> bool:
        """Whether there are values, and all of them numbers."""
        values = self.values(expression)
        return bool(values) and not any(map(math.isnan, values))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, str]]:
    """A Prometheus that knows all metrics of a daemon, and the page of these metrics."""
    place = tmp_path_factory.mktemp("site")
    state = daemon.taught(place / "state")
    port, lost, monitors = free_port(), free_port(), free_port()
    settings = {
        "state": str(state),
        "workers": 1,
        "metrics": f"127.0.0.1:{monitors}",
        "listeners": [
            {"listen": f"smtp://127.0.0.1:{at}", "position": "standalone", "next_hop": hop}
            for at, hop in (
                (port, f"maildir:{place / 'Maildir'}"),
                (lost, f"smtp://127.0.0.1:{free_port()}"),
            )
        ],
    }
    file = place / "spamguard.yaml"
    file.write_text(yaml.safe_dump(settings))
    with daemon.running(state, "--config", str(file), port=port) as running:
        running.lines("monitors may ask")
        server = Prometheus(place, f"127.0.0.1:{monitors}")
        try:
            settled = fill_in(EXPRESSIONS["Settle age A"])
            eventually(lambda: server.shows(settled), "it knows when all was settled")
            spam, ham = daemon.unseen("spam", 3), daemon.unseen("ham", 3)
            for raw in (*spam, *ham):
                with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
                    client.sendmail("a@example.org", ["b@example.org"], raw)
            with (
                smtplib.SMTP("127.0.0.1", lost, timeout=PATIENCE) as client,
                pytest.raises(smtplib.SMTPException),
            ):
                client.sendmail("a@example.org", ["b@example.org"], ham[0])
            with Filter.open(state) as spam_filter:
                assert spam_filter.learn(spam[0], "spam", user="anna", origin="folder Junk")
            eventually(lambda: server.shows("spamguard_lessons_total"), "the lesson is counted")
            yield server, httpx.get(f"http://127.0.0.1:{monitors}/metrics").text
        finally:
            server.process.terminate()
            server.process.wait(PATIENCE)


@needs_prometheus
@pytest.mark.parametrize("panel", EXPRESSIONS)
def test_every_panel_shows_data(site: tuple[Prometheus, str], panel: str) -> None:
    server, _ = site
    eventually(lambda: server.shows(fill_in(EXPRESSIONS[panel])), f"{panel} shows data")


@needs_prometheus
def test_every_metric_of_the_daemon_has_a_panel(site: tuple[Prometheus, str]) -> None:
    shown = " ".join(EXPRESSIONS.values())
    names = {family.name + "_total" * (family.type == "counter") for family in parsed(site[1])}
    assert {name for name in names if name not in shown} == set()


@needs_prometheus
def test_the_alerts_of_the_page_are_valid(site: tuple[Prometheus, str]) -> None:
    page = (daemon.ROOT / "systemd" / "README.md").read_text()
    alerts = re.findall(r"^- `(.*spamguard_.*)`$", page, re.MULTILINE)
    assert len(alerts) == 3
    for alert in alerts:
        assert site[0].values(alert) == []  # all is well
        assert site[0].values(re.sub(" (>|==) [^>=]*$", "", alert))


@needs_prometheus
def test_prometheus_finds_no_fault_in_the_metrics(site: tuple[Prometheus, str]) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=site[1], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
