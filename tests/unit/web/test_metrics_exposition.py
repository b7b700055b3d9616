"""Prometheus's own parser reads the metrics, with the values that were put in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parsed

from spamguard.counters import BUCKET_BOUNDS, sum_slots
from spamguard.records import Status
from spamguard.web import metrics
from spamguard.web.health import FilterReport
from tests.unit.slots import unshared

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


def whole() -> str:
    slot = unshared()
    slot.count_message("spam", "tag", 500)
    slot.count_message("not-scanned", "none", 20)
    slot.add_seconds(1, 0.003)
    slot.add_seconds(1, 700.0)
    slot.count_next_hop_error('lmtp:/odd "path"\\\n', "unreachable", "no", 1)
    slot.count_lessons("spam", "folder", 4)
    lines = [
        *metrics.counter_metrics("1.2", 1000, 2, sum_slots([slot])),
        *metrics.filter_metrics(FilterReport(STATUS, 5_000)),
    ]
    return metrics.encode_page(lines).decode()


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
    text = metrics.encode_page(
        metrics.counter_metrics("1.2", 1000, 2, sum_slots([unshared()]))
    ).decode()
    assert 'spamguard_messages_total{verdict="not-scanned",action="none"} 0\n' in text


def test_an_unreadable_state_gives_no_other_filter_metrics():
    text = metrics.encode_page(metrics.filter_metrics(None)).decode()
    assert [
        (sample.name, sample.value) for family in parsed(text) for sample in family.samples
    ] == [("spamguard_state_usable", 0)]


@given(st.text(), st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_any_label_and_value_come_back(text, value):
    lines = metrics.encode_page(metrics.gauge("a", "About.", [({"x": text}, value)])).decode()
    ((sample,),) = [family.samples for family in parsed(lines)]
    assert sample.labels == {"x": text}
    assert sample.value == pytest.approx(value)
