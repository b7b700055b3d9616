"""Prometheus' own parser reads the metrics, in each of its formats; and their documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard.counters import Counters, DaemonReport
from spamguard.imap.status import AccountStatus
from spamguard.web import monitor
from spamguard.web.monitor import MetricsPage

README = Path(__file__).parents[3] / "systemd" / "README.md"


def whole(accept: str = "") -> str:
    counters = Counters()
    counters.count_message("not-scanned", "none", 20)
    counters.add_seconds(1, 700.0)
    counters.count_next_hop_error('lmtp:/odd "path"\\\n', "unreachable", "no", 1)
    page = MetricsPage(DaemonReport(1000, 2, counters), "state: unreadable")
    return page.encode(accept).body.decode()


def test_an_unreadable_state_gives_no_other_filter_metrics():
    families = {family.name: family for family in parsed(whole())}
    assert [sample.value for sample in families["spamguard_state_usable"].samples] == [0]
    assert not families.keys() & {metric.name for metric in monitor.FILTER_METRICS}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html, */*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=odd", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=odd", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
    ],
)
def test_the_client_chooses_the_format(accept, content_type):
    page = MetricsPage(DaemonReport(), "").encode(accept)
    assert page.headers["content-type"] == content_type
    assert page.body.endswith(b"# EOF\n") == ("openmetrics" in content_type)


def test_accounts_are_summed_without_a_name():
    accounts = [
        AccountStatus(connected_since=9, waiting=2, moved=3),
        AccountStatus(connected_since=9, moved=4, trouble="a password"),
        AccountStatus(trouble="refused"),
    ]
    page = MetricsPage(DaemonReport(), "", accounts=accounts).encode("")
    lines = page.body.decode().splitlines()
    for name, number in {"connected": 2, "in_trouble": 2, "waiting": 2, "moved": 7}.items():
        assert f"spamguard_accounts_{name} {number}.0" in lines


def test_no_series_says_when_it_was_created():
    assert "_created" not in whole() + whole("application/openmetrics-text")


def test_the_documentation_has_each_metric_as_it_is_declared():
    declared = (
        *monitor.DAEMON_METRICS,
        *monitor.STATE_METRICS,
        *monitor.FILTER_METRICS,
        *monitor.SHARED_METRICS,
        *monitor.ACCOUNT_METRICS,
    )
    rows = [
        f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.about} |" for metric in declared
    ]
    table = "\n".join(["| metric | labels | |", "| --- | --- | --- |", *rows, ""])
    assert table in README.read_text(), f"the table of metrics should be:\n{table}"
