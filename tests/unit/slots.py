"""A slot that is nobody else's."""

from __future__ import annotations

from spamguard import counters
from spamguard.counters import CounterSlot


def unshared() -> CounterSlot:
    return CounterSlot(bytearray(counters.SLOT_BYTES), 0)
