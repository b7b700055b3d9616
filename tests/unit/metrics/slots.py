"""A slot that is nobody else's."""

from __future__ import annotations

from spamguard.metrics import counters
from spamguard.metrics.counters import Slot


def unshared() -> Slot:
    return Slot(memoryview(bytearray(counters._SLOT * counters.WORD)).cast("q"), 0)
