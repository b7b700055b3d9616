"""Prometheus's own parser reads the metrics, with the values that were put in."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard import __version__
from spamguard.counters import BUCKET_BOUNDS, MASTER_SLOT, CounterBoard
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


def test_every_value_is_read_back():
    values = samples()
    assert values["spamguard_messages_total", (("action", "tag"), ("verdict", "spam"))] == 1
    assert values["spamguard_messages_total", (("action", "none"), ("verdict", "not-scanned"))] == 1
    assert values["spamguard_message_bytes_total", ()] == 520
    assert (
        values[
            "spamguard_next_hop_errors_total",
            (("kind", "unreachable"), ("next_hop", 'lmtp:/odd "path"\\\n')),
        ]
        == 1
    )
    assert values["spamguard_lessons_total", (("class", "spam"), ("origin", "folder"))] == 4
    assert values["spamguard_last_lesson_by_person_timestamp_seconds", ()] == 5_000
    assert values["spamguard_class_messages", (("class", "ham"),)] == 7
    assert values["spamguard_table_load_ratio", (("tokens", "words"),)] == 0.25
    assert (values["spamguard_ledger_bytes", ()], values["spamguard_tables_bytes", ()]) == (
        4096,
        8192,
    )
    assert (values["spamguard_start_time_seconds", ()], values["spamguard_workers", ()]) == (
        1000,
        2,
    )
    assert values["spamguard_state_usable", ()] == 1
    assert values["spamguard_build_info", (("version", __version__),)] == 1


def test_histograms_add_up():
    values = samples()
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in values.items()
        if name == "spamguard_stage_seconds_bucket"
    }
    judge = {
        float(dict(labels)["le"]): value
        for (name, labels), value in values.items()
        if name == "spamguard_stage_seconds_bucket" and ("stage", "judge") in labels
    }
    assert len(buckets) == len(BUCKET_BOUNDS) + 1
    assert [judge[bound] for bound in sorted(judge)] == sorted(judge.values())
    assert (judge[0.0025], judge[0.005], judge[600.0], judge[float("inf")]) == (0, 1, 1, 2)
    assert values["spamguard_stage_seconds_count", (("stage", "judge"),)] == 2
    assert values["spamguard_stage_seconds_sum", (("stage", "judge"),)] == pytest.approx(700.003)


def test_counters_end_in_total_and_every_metric_has_a_help_text():
    families = list(parsed(whole()))
    assert all(family.documentation for family in families)
    kinds = {
        line.split()[2]: line.split()[3]
        for line in whole().splitlines()
        if line.startswith("# TYPE")
    }
    assert set(kinds.values()) == {"counter", "gauge", "histogram"}
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())


def test_units_are_those_that_prometheus_counts_in():
    """Seconds, bytes and ratios, not parts of or many of them, as `promtool check metrics` wants
    it.
    """
    names = {line.split()[2] for line in whole().splitlines() if line.startswith("# TYPE")}
    others = {
        "milliseconds",
        "minutes",
        "hours",
        "days",
        "weeks",
        "bits",
        "kilobytes",
        "megabytes",
        "percent",
    }
    assert not [name for name in names if others & set(name.split("_"))]


def test_series_for_alerts_exist_from_the_start():
    """A rate begins with the second value, so it would miss the first unscanned messages."""
    text = monitor.encode_metrics(CounterBoard.create(), None, "")[0].decode()
    assert 'spamguard_messages_total{action="none",verdict="not-scanned"} 0.0\n' in text


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
