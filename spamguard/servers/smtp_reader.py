"""What aiosmtpd reads of an SMTP client: strict lines, a deadline for every wait, turns.

`ClientReader` takes the place of the `asyncio.StreamReader` that aiosmtpd makes. A line that is no
command raises `CommandRefusedError`, and what ends the session `SessionEndError`; each carries the
reply.

Must never take anything but CRLF for the end of a command, wait without a deadline, keep much more
than `BUFFER_BYTES`, or let the commands of one client keep others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from spamguard.delivery.connection import DeadlineTimer
from spamguard.servers.listener import ClientTimeout
from spamguard.servers.smtp_handler import Replies
from spamguard.smtp.envelope import Reply

BUFFER_BYTES = 64 << 10
"""Of input that is kept for one client, beyond what one read adds."""

# Before other sessions get their turn: a round of 50 that flood took 4 ms; with 20 it took 32.
_COMMANDS_PER_TURN = 5


class CommandRefusedError(Exception):
    """Carries the reply to a line that is no command."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


class SessionEndError(Exception):
    """Carries the last reply of a session."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


class ClientReader(DeadlineTimer, asyncio.StreamReader):
    """The bytes of one client. before_wait: returns the deadline of a wait, by the loop's clock.
    before_command: called before each command. check_command: returns a line, if it is one.

    Beside asyncio's public methods it uses `_wait_for_data`, which they all call before they wait,
    and `_buffer`, to put bytes back. `asyncio.timeout` costs ten times as much as `DeadlineTimer`.
    """

    _buffer: bytearray

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_wait: Callable[[], Awaitable[float]],
        before_command: Callable[[], None],
        check_command: Callable[[bytes], bytes],
    ) -> None:
        super().__init__(limit=BUFFER_BYTES, loop=loop)
        self._before_wait = before_wait
        self._before_command = before_command
        self._check_command = check_command
        self._commands_in_turn = 0

    @property
    def is_empty(self) -> bool:
        """Whether no byte has come that was not read."""
        return not self._buffer

    def put_back(self, rest: bytes) -> None:
        """Put bytes back in front."""
        self._buffer[:0] = rest

    def clear(self) -> None:
        """Drop all bytes that were not read."""
        self._buffer.clear()

    def hurry(self, deadline: float) -> None:
        """End the wait under way at this time of the loop's clock."""
        if self._deadline is not None:
            self.set_deadline(deadline)

    def deadline_passed(self) -> None:
        """Wake the session."""
        self.set_exception(ClientTimeout())

    async def readuntil(self, separator: Any = b"\n") -> bytes:  # noqa: ARG002
        """The next command. Only CRLF ends a line (RFC 5321, section 2.3.8); aiosmtpd asks for LF.

        Raises
        ------
        CommandRefusedError, SessionEndError, ClientTimeout
            aiosmtpd passes them to `handle_exception`.
        ConnectionResetError
            The client has gone; aiosmtpd ends the session.
        """
        self._commands_in_turn += 1
        if self._commands_in_turn >= _COMMANDS_PER_TURN:
            self._commands_in_turn = 0
            await asyncio.sleep(0)
        self._before_command()
        try:
            line = await super().readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError from None
        return self._check_command(line)

    async def _wait_for_data(self, func_name: str) -> None:
        self._commands_in_turn = 0
        deadline = await self._before_wait()
        if self._buffer.endswith(b"\n"):
            # The next bytes may be the rest of this line, or a command. Obeyed, they could be a
            # command that another server took for a part of this line (SMTP smuggling); answered,
            # the client would count one reply too many.
            raise SessionEndError(Replies.BARE_LF)
        self.set_deadline(deadline)
        try:
            await super()._wait_for_data(func_name)  # type: ignore[misc]  # not in typeshed
        except ClientTimeout:
            self._exception = None  # the last reply is still to be sent
            raise
        finally:
            self.clear_deadline()
