"""One SMTP or LMTP session with a next hop: commands and messages one after the other, and account of what is owed.

Must never send anything while the two sides are out of step, and never end a message that is not whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto

from spamguard.relay.connection import Connection
from spamguard.relay.trouble import Closing, Lost, Stalled, Trouble
from spamguard.wire.values import Reply

_WRITE = 64 << 10  # bytes that go to the kernel together: fewer calls for small messages
_GOODBYE = 1.0  # seconds for the answer to QUIT


class Stage(Enum):
    """What may be done with a session."""

    CLEAN = auto()  # nothing was refused and no transaction is open: the next message can have it
    OPEN = auto()  # in step, but something was refused, or a transaction is open: it ends with QUIT
    MIDWAY = auto()  # an answer is owed or a message is half sent: it can only be cut off


class Session:
    """One session. seconds: for each answer to a command. extensions: EHLO keywords (upper case) and their parameters.

    reused: it has served a message before.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.connection = connection
        self.extensions: Mapping[str, str] = {}
        self.reused = False
        self.stage = Stage.MIDWAY
        self._seconds = seconds
        self._owed = 1  # the greeting
        self._refused = False

    @property
    def usable(self) -> bool:
        """Whether the next message can have it."""
        return self.stage is Stage.CLEAN and self.connection.quiet

    def say(self, *commands: bytes) -> None:
        """Send commands, each with its line end, in one go; a `reply` is due for each. Lost when the hop has gone or spoke unasked."""
        self.stage = Stage.MIDWAY
        if self._owed or not self.connection.quiet:
            raise Lost("gone, or spoke without being asked")
        self._owed = len(commands)
        self.connection.write(b"".join(commands))

    async def reply(self, deadline: float | None = None, positive: int = 2) -> Reply:
        """The answer to the oldest command without one: a refusal, or one whose code begins with `positive`. Lost, Stalled, Closing."""
        reply = await self.connection.reply(self.connection.deadline(self._seconds) if deadline is None else deadline)
        if reply.code == 421:
            raise Closing(reply)
        if reply.code // 100 not in (positive, 4, 5):
            raise Stalled(f"out of place: {reply}")
        self._owed -= 1
        self._refused |= not reply.positive
        if not self._owed:
            self.stage = Stage.OPEN
        return reply

    async def ask(self, command: bytes, positive: int = 2) -> Reply:
        """One command and its answer."""
        self.say(command)
        return await self.reply(positive=positive)

    async def pour(self, pieces: Iterable[bytes], replies: int) -> bool:
        """Send a message, whose last piece is the end of data; False when the hop spoke or hung up before that. Stalled.

        So many replies are due then. What the pieces raise goes through. Unless the message was sent whole and all replies
        came, the session can only be cut off.
        """
        self.stage = Stage.MIDWAY
        self._owed = replies + 1  # the end of data is owed too, by us
        for number, piece in enumerate(_gathered(pieces)):
            if not (await self.connection.room(self._seconds) if number else self.connection.quiet):
                return False
            self.connection.write(piece)
        self._owed -= 1
        return True

    def ready(self, extensions: Mapping[str, str] | None = None) -> None:
        """The session has been opened, or a transaction has ended: the next message can have it if nothing was refused meanwhile."""
        if extensions is not None:
            self.extensions, self._refused = extensions, False
        if self.stage is Stage.OPEN and not self._refused:
            self.stage = Stage.CLEAN

    def abort(self) -> None:
        """Cut it off."""
        self.connection.abort()

    async def quit(self) -> None:
        """End it politely, without waiting long; never raises."""
        try:
            with contextlib.suppress(Trouble):
                self.say(b"QUIT\r\n")
                await self.reply(self.connection.deadline(_GOODBYE))
        finally:
            self.abort()


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _WRITE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
