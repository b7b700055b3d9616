"""Events for tests of the shared log, which knows nothing of what they hold."""

from __future__ import annotations

import random
from hashlib import sha256

from spamguard.ledger.events import SharedEvent


def event(number: int, node: str = "a" * 16, size: int = 300) -> SharedEvent:
    """An event that depends on the number alone."""
    body = b"\x01" + random.Random(number).randbytes(size)
    return SharedEvent(
        subject=sha256(b"%d" % number).digest()[:16],
        clock=number + 1,
        node=node,
        content=sha256(body).digest()[:16],
        time=1_700_000_000 + number,
        body=body,
    )
