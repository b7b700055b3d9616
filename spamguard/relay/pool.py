"""Sessions with one next hop that wait for the next message.

Must never hand out a session whose last transaction was not free of errors, and never keep one for longer or more than set.
"""

from __future__ import annotations

import asyncio

from spamguard.relay.session import Session
from spamguard.settings import Hop
from spamguard.timed import Timed


class Pool(Timed):
    """Idle sessions. The one used last is taken first, so that those not needed grow old."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._idle: dict[Session, float] = {}  # until when, a time of the event loop's clock; oldest first
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self) -> Session | None:
        """A session in which nothing has happened since it was put here."""
        while self._idle:
            session, _ = self._idle.popitem()
            if session.usable:
                session.reused = True
                return session
            session.abort()
        return None

    def put(self, session: Session) -> None:
        """Take a session back after its transaction, however that ended."""
        if session.usable and not self._closed and len(self._idle) < self._hop.sessions:
            self._idle[session] = asyncio.get_running_loop().time() + self._hop.idle_seconds
            self._watch_oldest()
        else:
            self._dismiss(session)

    async def close(self) -> None:
        """End the idle sessions; those that come back later are ended too."""
        self._closed = True
        self.forget_deadline()
        while self._idle:
            self._dismiss(self._idle.popitem()[0])
        await asyncio.gather(*self._leaving)

    def deadline_passed(self) -> None:
        """The oldest have been idle for long enough."""
        now = asyncio.get_running_loop().time()
        for session in [session for session, until in self._idle.items() if until <= now]:
            del self._idle[session]
            self._dismiss(session)
        self._watch_oldest()

    def _watch_oldest(self) -> None:
        for until in self._idle.values():
            self.set_deadline(until)
            break

    def _dismiss(self, session: Session) -> None:
        """QUIT, without anybody waiting for it; where that would be out of step, it is cut off."""
        task = asyncio.get_running_loop().create_task(session.quit())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
