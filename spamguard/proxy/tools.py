"""What every message that passes needs, made once for each worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spamguard.proxy.journal import Entry
from spamguard.proxy.people import People
from spamguard.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class Tools:
    """quarantine: for what is held. key: gives the key that signs our verdicts; SpamguardError. record: keeps what became of a
    message, never waits. settle: says that lessons wait for settling. people: who has which address, where recipients are judged
    for themselves."""

    quarantine: Quarantine
    key: Callable[[], bytes]
    record: Callable[[Entry], None]
    settle: Callable[[], None]
    people: People | None = None
