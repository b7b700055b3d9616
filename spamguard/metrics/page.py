"""The metrics there are: their names, what they mean, and their values. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator

from spamguard.metrics.counters import BOUNDS
from spamguard.metrics.exposition import counter, gauge, histogram
from spamguard.metrics.knowledge import Known
from spamguard.metrics.totals import Totals

_NOT_JUDGED = ("not-scanned", "none")  # there from the beginning: the rate of what comes later does not know its first ones


def counted(version: str, began: int, workers: int, totals: Totals) -> Iterator[str]:
    """What the daemon's processes count. began: the daemon, seconds since 1970. workers: processes that speak SMTP."""
    yield from gauge("spamguard_build_info", "Version of the program; always 1.", [({"version": version}, 1)])
    yield from gauge("spamguard_start_time_seconds", "When the daemon began, since 1970.", [({}, began)])
    yield from gauge("spamguard_workers", "Processes that speak SMTP, those that drain included.", [({}, workers)])
    yield from counter(
        "spamguard_messages_total",
        "Messages handled, by verdict (a class, unsure, not-scanned) and action (none: not judged).",
        [({"verdict": verdict, "action": action}, number) for (verdict, action), number in {_NOT_JUDGED: 0, **totals.messages}.items()],
    )
    yield from counter("spamguard_message_bytes_total", "Bytes of the messages handled, as received.", [({}, totals.bytes)])
    yield from histogram(
        "spamguard_stage_seconds",
        "How long a message took: receive its data, judge it, hand it on.",
        BOUNDS,
        [({"stage": stage}, counts, seconds) for stage, (counts, seconds) in totals.stages.items()],
    )
    yield from counter(
        "spamguard_next_hop_errors_total",
        "Times that a next hop could not be asked, was lost or kept us waiting; its refusals are none.",
        [({"next_hop": endpoint, "kind": kind}, number) for (endpoint, kind), number in totals.next_hop_errors.items()],
    )
    yield from counter(
        "spamguard_lessons_total",
        "Lessons since the daemon began, by class and where they came from; by commands, too.",
        [({"class": label, "origin": origin}, number) for (label, origin), number in totals.lessons.items()],
    )


def known(found: Known | None) -> Iterator[str]:
    """What the filter knows; None when it could not be read."""
    yield from gauge("spamguard_state_usable", "Whether ledger and tables could be opened.", [({}, int(found is not None))])
    if found is None:
        return
    status, person = found
    yield from gauge(
        "spamguard_class_messages", "Messages taught, by class.", [({"class": name}, number) for name, number in status.classes.items()]
    )
    yield from gauge("spamguard_unsettled_events", "Lessons since the experts were settled.", [({}, status.unsettled)])
    if person is not None:
        about = "When somebody last taught, not in bulk, since 1970."
        yield from gauge("spamguard_last_lesson_by_person_timestamp_seconds", about, [({}, person)])
    yield from gauge(
        "spamguard_table_load_ratio", "Share of buckets in use.", [({"tokens": name}, load) for name, load in status.used.items()]
    )
    yield from gauge("spamguard_ledger_bytes", "Size of the ledger.", [({}, status.ledger_bytes)])
    yield from gauge("spamguard_tables_bytes", "Size of the tables on the disk.", [({}, status.tables_bytes)])
