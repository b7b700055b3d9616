"""For tests of the service: a taught filter through which mail of anna and ben has passed, and
users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from spamguard.config.options import Hop, Listener, Position, Scoring, Settings, parse_endpoint
from spamguard.delivery.quarantine import DIRECTORY, Quarantine
from spamguard.engine.filter import Filter
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.proxy.history import HISTORY_FILE, History, HistoryRow, row_values
from spamguard.records import EXTRACTOR
from spamguard.smtp.envelope import Client, Envelope, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from spamguard.web.auth import Person
from spamguard.web.service import Service
from tests.unit.filters import READER, mail, opened, teach

ANNA, BEN, CARL = Person("anna"), Person("ben@example.org"), Person("carl")
OPERATOR = Person("root", operator=True)
MAIL = mail(140)
TAUGHT, PASSED = MAIL[:70], MAIL[70:100]
NOW = float(
    int(time.time()) - 1 | 1
)  # of the last message that passed; odd, so that none passes on the minute
TO = (("anna@example.org",), ("Anna+news@example.net", "ben@example.org"), ("ben@example.org",))
LISTENER = "smtp://127.0.0.1:10025"

Result = TypeVar("Result")


def name(number: int) -> str:
    """The id of a message that passed: the first is 0, the newest."""
    return new_id(NOW - 60 * number, number.to_bytes(RANDOM_BYTES, "big", signed=True))


def made(state: Path) -> Path:
    """A filter, and its history: the newest message went to the first of `TO`, the next to the
    second, and so on in turn.
    """
    with opened(state) as spam_filter:
        teach(spam_filter, TAUGHT)
        spam_filter.settle()
        remember(
            state, [passed(spam_filter, number, raw) for number, (_, raw) in enumerate(PASSED)]
        )
    (state / "spool").mkdir()
    return state


def passed(spam_filter: Filter, number: int, raw: bytes, **values: Any) -> HistoryRow:
    """As the journal has it."""
    scan, to = spam_filter.scan(raw), TO[number % 3]
    usual: dict[str, Any] = {
        "id": name(number),
        "time": NOW - 60 * number,
        "listener": LISTENER,
        "client": "192.0.2.1",
        "sender": f"Sender{number}@example.com",
        "recipients": to,
        "subject": f"Subject {number}",
        "size": len(raw),
        "digest": scan.digest,
        "label": scan.verdict.label,
        "probability": scan.verdict.probability,
        "log_odds": scan.verdict.log_odds,
        "action": "tag",
        "reply": f"250 2.0.0 <{to[-1]}> Ok",
        "packed": scan.packed,
        "words": scan.words,
        "line": scan.line,
        "extractor": EXTRACTOR,
        "fingerprint": spam_filter.ledger.fingerprint,
    }
    return HistoryRow(**usual | values)


def remember(state: Path, rows: list[HistoryRow]) -> None:
    with History.open(state / HISTORY_FILE, 64 << 20, 30) as history:
        history.append([row_values(row) for row in rows[::-1]])


def settings(
    state: Path, *, hops: tuple[str, ...] = ("maildir:/nonexistent/Maildir",), **values: Any
) -> Settings:
    listeners = [
        Listener(
            parse_endpoint(f"smtp://127.0.0.1:{10025 + number}"),
            Position.AFTER_QUEUE,
            Hop(parse_endpoint(hop)),
        )
        for number, hop in enumerate(hops)
    ]
    return Settings(state, tuple(listeners), **{"scoring": Scoring(20.0, 1), **values})


@asynccontextmanager
async def serving(
    configuration: Settings, settled: list[int] | None = None
) -> AsyncIterator[Service]:
    service = Service(
        configuration,
        lambda: settled.append(1) if settled is not None else None,
    )
    try:
        yield service
    finally:
        await service.close()


def asked(configuration: Settings | Path, work: Callable[[Service], Awaitable[Result]]) -> Result:
    """The result of a function of a service that exists for this call only."""

    async def run() -> Result:
        async with serving(
            settings(configuration) if isinstance(configuration, Path) else configuration
        ) as service:
            return await work(service)

    return asyncio.run(run())


def spooled(state: Path, raw: bytes) -> Spool:
    spool = Spool(state / "spool")
    spool.write(raw)
    return spool


def votes(state: Path) -> dict[tuple[str, str], str]:
    """The votes in force: by message (hex) and user, the class."""
    with opened(state) as spam_filter:
        return {
            (vote.digest.hex(), vote.user): vote.label
            for vote in spam_filter.ledger.all_votes()
            if vote.label is not None
        }


def digest(raw: bytes) -> str:
    return READER.digest(raw).hex()


def hold(
    state: Path,
    number: int,
    raw: bytes,
    *recipients: str,
    listener: str = LISTENER,
) -> str:
    """Put a message into the quarantine, under the id of one that passed; its id."""
    spool = spooled(state, raw)
    envelope = Envelope(
        Sender("a@example.com"), tuple(map(Recipient, recipients)), Client("192.0.2.1")
    )
    Quarantine(state / DIRECTORY).store(
        name(number), SpoolView(b"", spool, 0), envelope, "spam", NOW - 60 * number, listener
    )
    spool.close()
    return name(number)
