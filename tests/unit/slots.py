"""A slot that is nobody else's."""

from __future__ import annotations

from spamguard import counters
from spamguard.counters import CounterSlot


def unshared() -> CounterSlot:
    return CounterSlot(
        memoryview(bytearray(counters._SLOT_WORDS * counters.WORD_BYTES)).cast("q"), 0
    )
