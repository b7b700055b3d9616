"""Sessions with one next hop that wait for the next message.

Must never hand out a session whose last transaction was not free of errors, and never keep one for longer or more than set.
"""

from __future__ import annotations

import asyncio

from spamguard.relay.session import Session
from spamguard.settings import Hop


class Pool:
    """Idle sessions. The one used last is taken first, so that those not needed grow old."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._idle: dict[Session, asyncio.TimerHandle] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self) -> Session | None:
        """A session in which nothing has happened since it was put here."""
        while self._idle:
            session, timer = self._idle.popitem()
            timer.cancel()
            if session.usable:
                session.reused = True
                return session
            session.abort()
        return None

    def put(self, session: Session) -> None:
        """Take a session back after its transaction, however that ended."""
        if session.usable and not self._closed and len(self._idle) < self._hop.sessions:
            self._idle[session] = asyncio.get_running_loop().call_later(self._hop.idle_seconds, self._expire, session)
        else:
            self._dismiss(session)

    async def close(self) -> None:
        """End the idle sessions; those that come back later are ended too."""
        self._closed = True
        for session in list(self._idle):
            self._idle[session].cancel()
            self._expire(session)
        await asyncio.gather(*self._leaving)

    def _expire(self, session: Session) -> None:
        del self._idle[session]
        self._dismiss(session)

    def _dismiss(self, session: Session) -> None:
        """QUIT, without anybody waiting for it; where that would be out of step, it is cut off."""
        task = asyncio.get_running_loop().create_task(session.quit())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
