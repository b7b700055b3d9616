"""Prometheus's own parser reads the metrics, with the values that were put in."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard.counters import Counters, DaemonReport
from spamguard.records import Status
from spamguard.web import monitor
from spamguard.web.monitor import FilterReport

STATUS = Status(
    {"ham": 7, "spam": 5},
    frozenset({"spam"}),
    1 << 20,
    {"words": 9},
    {"words": 0.25},
    12,
    3,
    4096,
    8192,
    1,
    "abc",
)


def whole(accept: str = "") -> str:
    counters = Counters()
    counters.count_message("spam", "tag", 500)
    counters.count_message("not-scanned", "none", 20)
    counters.add_seconds(1, 0.003)
    counters.add_seconds(1, 700.0)
    counters.count_next_hop_error('lmtp:/odd "path"\\\n', "unreachable", "no", 1)
    counters.count_lessons("spam", "folder", 4)
    daemon = DaemonReport(1000, 2, counters)
    return monitor.encode_metrics(daemon, FilterReport(STATUS, 5_000), accept)[0].decode()


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(parsed(whole()))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_an_unreadable_state_gives_no_other_filter_metrics():
    assert [
        sample.value for metric in monitor.filter_metrics(None) for sample in metric.samples
    ] == [0]


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
    page, chosen = monitor.encode_metrics(DaemonReport(), None, accept)
    assert chosen == content_type
    assert page.endswith(b"# EOF\n") == ("openmetrics" in chosen)


def test_no_series_says_when_it_was_created():
    assert "_created" not in whole() + whole("application/openmetrics-text")
