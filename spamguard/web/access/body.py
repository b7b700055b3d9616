"""The body of a request on its way in: bounded in size and time, whoever reads it."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from spamguard.web.access.problems import refusal

PIECE_SECONDS = 20.0  # between two pieces
WHOLE_SECONDS = 300.0  # for all of it, however steadily it drips
_LEFT_BYTES = 8 << 20  # thrown away for the sake of an answer that would else be lost (the peer's kernel resets what it has not read)
_LEFT_SECONDS = 2.0


class Body:
    """most: bytes."""

    def __init__(self, scope: Scope, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._size = 0
        self._until = asyncio.get_running_loop().time() + WHOLE_SECONDS
        names = dict(scope["headers"])
        self._waits = names.get(b"expect", b"").lower() == b"100-continue"
        self._more = b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"

    def keep_short(self, most: int, seconds: float) -> None:
        """Smaller bounds than the usual ones."""
        self._most, self._until = most, asyncio.get_running_loop().time() + seconds

    async def receive(self) -> Message:
        """What ASGI calls receive. RefusalError: too much (413) or too slow (408)."""
        self._waits = False
        if not self._more:  # what comes now is that who asked has gone, however long that takes
            return await self._receive()
        wait = min(PIECE_SECONDS, self._until - asyncio.get_running_loop().time())
        try:
            message = await asyncio.wait_for(self._receive(), max(wait, 0.0))
        except TimeoutError:
            raise refusal(408, "the request did not come in time") from None
        self._size += self._took(message)
        if self._size > self._most:
            raise refusal(413, f"more than {self._most:,} bytes")
        return message

    async def finish(self) -> bool:
        """Throw away what nobody has read, if that is little; whether nothing is left."""
        if self._more and not self._waits:
            try:
                async with asyncio.timeout(_LEFT_SECONDS):
                    await self._discard()
            except (TimeoutError, ClientDisconnect):
                return False
        return not self._more

    async def _discard(self) -> None:
        left = 0
        while self._more and left <= _LEFT_BYTES:
            left += self._took(await self._receive())

    def _took(self, message: Message) -> int:
        """Its bytes."""
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return len(message.get("body", b""))
