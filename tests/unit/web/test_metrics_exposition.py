"""Prometheus's own parser reads the metrics, with the values that were put in."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard.counters import MASTER_SLOT, CounterBoard
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
    board = CounterBoard.create()
    board.slot(MASTER_SLOT).assign(1, 1000)
    for pid in (2, 3):
        board.free_slot().assign(pid, 1000)
    slot = next(board.worker_slots())
    slot.count_message("spam", "tag", 500)
    slot.count_message("not-scanned", "none", 20)
    slot.add_seconds(1, 0.003)
    slot.add_seconds(1, 700.0)
    slot.count_next_hop_error('lmtp:/odd "path"\\\n', "unreachable", "no", 1)
    slot.count_lessons("spam", "folder", 4)
    return monitor.encode_metrics(board, FilterReport(STATUS, 5_000), accept)[0].decode()


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
    page, chosen = monitor.encode_metrics(CounterBoard.create(), None, accept)
    assert chosen == content_type
    assert page.endswith(b"# EOF\n") == ("openmetrics" in chosen)


def test_no_series_says_when_it_was_created():
    assert "_created" not in whole() + whole("application/openmetrics-text")
