"""Messages that are handed over: read and judged in processes that can be killed, never here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from spamguard.errors import BusyError, LedgerError, UsageError
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

WORDS = 30  # each way, that an explanation of such a message can name
_MOST = 8  # messages at once
_NEW_FILTER = 5.0  # seconds that scorers may take to find a filter that has just been made
_AGAIN = 0.2
_COME_AGAIN = ("busy", "stopping", "no-model", "unreadable")  # the message is not to blame


class Scanning:
    """Start it before it is asked."""

    def __init__(self, settings: Settings) -> None:
        bound = settings.listeners[0].policy.one_wrong_in if settings.listeners else 0
        self._pool = ScorerPool(settings.state, settings.scoring, bound, words=WORDS)
        self._state = settings.state
        self._spool = settings.state / "spool"
        self._running = 0

    async def start(self) -> None:
        """Start the scorers."""
        await self._pool.start()

    async def close(self) -> None:
        """End them."""
        await self._pool.close()

    async def scan(self, message: Spool, users: Sequence[str] = ()) -> Scan:
        """What is made of a message as its sender wrote it. UsageError: it cannot be judged; BusyError: not now."""
        if self._running >= _MOST:
            raise BusyError("too many messages are handed over at once: come again in a moment")
        self._running += 1
        try:
            written = await finished(partial(as_written, message, self._spool))
            if written is message:
                return await self._scanned(message, users)
            with closing(written):
                return await self._scanned(written, users)
        except OSError as error:
            raise BusyError(f"the message cannot be kept while it is read: {error.strerror}") from error
        finally:
            self._running -= 1

    async def _scanned(self, message: Spool, users: Sequence[str]) -> Scan:
        if not message.size:
            raise UsageError("there is no message: nothing was handed over")
        await finished(partial(ensure, self._state))
        until = asyncio.get_running_loop().time() + _NEW_FILTER
        while isinstance(found := await self._pool.judge(message, b"", users), NotScanned):
            if found.reason != "no-model" or asyncio.get_running_loop().time() > until:
                raise _refusal(found.reason)
            await asyncio.sleep(_AGAIN)
        return found


def _refusal(reason: str) -> BusyError | UsageError:
    if reason in _COME_AGAIN:
        return BusyError(f"messages cannot be judged now ({reason}): come again in a moment")
    return UsageError(f"this message cannot be judged ({reason})")


def lesson(scan: Scan) -> Teaching:
    """What teaching the message needs. LedgerError: its features are none of ours."""
    if not scan.packed:
        raise LedgerError("a scorer has told nothing of a message")
    return Teaching(scan.digest, features_of([scan.packed])[0])


def as_written(message: Spool, directory: Path) -> Spool:
    """The message without what we have put before its subject, as it is told apart from others; the same object where there is nothing."""
    head = message.head(NEAR_TOP)
    written = without_prefix(head)
    if written is head:
        return message
    copy = Spool(directory)
    try:
        copy.write(written)
        for chunk in message.chunks(len(head)):
            copy.write(chunk)
    except BaseException:
        copy.close()
        raise
    return copy
