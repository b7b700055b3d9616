"""Messages that are handed over: read and judged in processes that can be killed, never here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from spamguard.errors import BusyError, LedgerError, UsageError
from spamguard.files import SPOOL
from spamguard.mail.rewrite import NEAR_TOP, without_prefix
from spamguard.model.fold import features_of
from spamguard.prepare import Teaching
from spamguard.proxy.contract import NotScanned
from spamguard.proxy.scoring import ScorerPool
from spamguard.records import Scan
from spamguard.relay.threads import finished
from spamguard.settings import Settings
from spamguard.spool import Spool
from spamguard.web.service.reading import ensure
from spamguard.web.service.values import Person

WORDS = 30  # each way, that an explanation of such a message can name
_MOST, _MOST_OF_ONE = 32, 8  # messages at once, and those of one person who is no operator
_NEW_FILTER = 5.0  # seconds that scorers may take to find a filter that has just been made
_AGAIN = 0.2
_TEMPORARY = ("busy", "stopping", "no-model", "unreadable", "crashed", "timeout")  # it may go well next time


class Scanning:
    """Start it before it is asked. one_wrong_in: as of a `Policy`. settle: called when there is something to settle, or no tables that
    can be used."""

    def __init__(self, settings: Settings, one_wrong_in: int, settle: Callable[[], object]) -> None:
        self._pool = ScorerPool(settings.state, settings.scoring, one_wrong_in, words=WORDS)
        self._settle = settle
        self._state = settings.state
        self._spool = settings.state / SPOOL
        self._has_filter = False
        self._running = Counter[Person]()

    async def start(self) -> None:
        """Start the scorers."""
        await self._pool.start()

    async def close(self) -> None:
        """End them."""
        await self._pool.close()

    async def scan(self, message: Spool, person: Person, users: Sequence[str] = ()) -> Scan:
        """What is made of a message as its sender wrote it. UsageError: it cannot be judged; BusyError: not now."""
        most = _MOST if person.operator else _MOST_OF_ONE
        if self._running.total() >= _MOST or self._running[person] >= most:
            raise BusyError("too many messages are handed over at once: come again in a moment")
        self._running[person] += 1
        try:
            return await self._as_written(message, users)
        except OSError as error:
            raise BusyError(f"the message cannot be kept while it is read: {error.strerror}") from error
        finally:
            self._running[person] -= 1
            self._running += Counter()  # forgets who has none

    async def _as_written(self, message: Spool, users: Sequence[str]) -> Scan:
        if not message.size:
            raise UsageError("there is no message: nothing was handed over")
        head = message.head(NEAR_TOP)
        written = without_prefix(head)
        if written is head:
            return await self._scanned(message, users)
        with closing(Spool(self._spool)) as copy:
            await finished(partial(_copy, message, copy, written, len(head)))
            return await self._scanned(copy, users)

    async def _scanned(self, message: Spool, users: Sequence[str]) -> Scan:
        if not self._has_filter:
            await finished(partial(ensure, self._state))
            self._has_filter = True
        found = await self._judged(message, users)
        if found.settle:
            self._settle()
        if isinstance(found, NotScanned):
            raise _refusal(found.reason)
        return found

    async def _judged(self, message: Spool, users: Sequence[str]) -> Scan | NotScanned:
        """Asked again while scorers may not have found the filter yet."""
        until = asyncio.get_running_loop().time() + _NEW_FILTER
        while isinstance(found := await self._pool.judge(message, b"", users), NotScanned) and found.reason == "no-model":
            if asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(_AGAIN)
        return found


def _refusal(reason: str) -> BusyError | UsageError:
    if reason in _TEMPORARY:
        return BusyError(f"messages cannot be judged now ({reason}): come again in a moment")
    return UsageError(f"this message cannot be judged ({reason})")


def lesson(scan: Scan) -> Teaching:
    """What teaching the message needs. LedgerError: its features are none of ours."""
    if not scan.packed:
        raise LedgerError("a scorer has told nothing of a message")
    return Teaching(scan.digest, features_of([scan.packed])[0])


def _copy(message: Spool, copy: Spool, head: bytes, skip: int) -> None:
    """The message with another beginning, without what we have put before its subject: so it is told apart from others."""
    copy.write(head)
    for chunk in message.chunks(skip):
        copy.write(chunk)
