"""The teaching door: a Unix socket on which programs of this machine hand lessons over, and are answered once these are on the disk.

The kernel tells who speaks: a lesson is its user's, except that some accounts, such as the one all mail belongs to, may name another.
Must never learn anything itself, never let one client make others wait, and never hold a message in memory that does not fit there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from spamguard import unixsocket
from spamguard.relay.threads import finished
from spamguard.spool import Spool
from spamguard.teaching.lesson import LONGEST_LINE, PIPED, Header, is_user, parse
from spamguard.teaching.queue import Queue

CONNECTIONS = 100
CONNECTIONS_OF_ONE = 16  # of one account that speaks for itself only
SECONDS = 30.0  # for all of one lesson
BYTES_IN_FLIGHT = 512 << 20
BYTES_OF_ONE = 128 << 20  # of one account that speaks for itself only: what it has announced and does not send keeps others from theirs
_PIECE = 256 << 10
_BACKLOG = 512

_log = logging.getLogger("spamguard.teaching")


async def _any_class(_: str) -> bool:
    return False


class Speakers:
    """Whose lesson it is that an account brings. for_others: names of the accounts that may name somebody else; ours always may."""

    def __init__(self, for_others: Iterable[str]) -> None:
        self._trusted = {0, os.getuid()}
        self._told: set[int] = set()
        for name in for_others:
            with suppress(KeyError):  # not on this machine
                self._trusted.add(pwd.getpwnam(name).pw_uid)

    def trusted(self, account: int) -> bool:
        """Whether it may name others."""
        return account in self._trusted

    def user(self, account: int, named: str) -> str:
        """named: by whoever speaks. It counts only from those who may name others."""
        if named and self.trusted(account):
            return named
        try:
            name = pwd.getpwuid(account).pw_name
        except KeyError:
            name = ""
        own = name if is_user(name) else f"#{account}"
        if named not in ("", own) and account not in self._told:
            self._told.add(account)
            told = "%s hands over lessons of others, such as %s: they count as its own, unless for_others names it"
            _log.warning(told, own, ascii(named))
        return own


class TeachingDoor:
    """One socket. arrived: called after each lesson, in any thread. lacks: whether there surely is no such class."""

    def __init__(
        self,
        queue: Queue,
        speakers: Speakers,
        spool: Path,
        arrived: Callable[[], object],
        lacks: Callable[[str], Awaitable[bool]] = _any_class,
    ) -> None:
        self._queue = queue
        self._speakers = speakers
        self._spool = spool
        self._arrived = arrived
        self._lacks = lacks
        self._clients: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()  # announced and not kept yet, by account

    async def start(self, path: Path, mode: int) -> asyncio.Server:
        """Listen at a path, in the place of what was there. OSError."""
        listening = unixsocket.listening(path, mode)
        return await asyncio.start_unix_server(self._serve, sock=listening, backlog=_BACKLOG, limit=_PIECE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from beginning to end."""
        account = unixsocket.account(writer.get_extra_info("socket"))
        self._clients[account] += 1
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._answer(reader, account)
                writer.write(answer.encode("ascii", "replace") + b"\n")
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.info("uid %d: no lesson: %s", account, error or type(error).__name__)
        except Exception:  # a fault of ours must not end the door  # noqa: BLE001
            _log.exception("uid %d: a fault in taking this lesson", account)
        finally:
            self._clients[account] -= 1
            if not self._clients[account]:
                del self._clients[account]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, account: int) -> str:
        if self._crowded(account):
            return "LATER too many connections"
        line = await reader.readuntil(b"\n")
        try:
            header = parse(line[:LONGEST_LINE])
        except ValueError as error:
            return f"NO {error}"
        if header.label and await self._lacks(header.label):
            return f"HOLD there is no class {header.label!r} here; `spamguard learn --as {header.label}` makes one"
        self._bytes[account] += header.length
        try:
            return "LATER too much at once" if self._full(account) else await self._take(reader, header, account)
        finally:
            self._bytes[account] -= header.length

    def _crowded(self, account: int) -> bool:
        of_one = CONNECTIONS if self._speakers.trusted(account) else CONNECTIONS_OF_ONE
        return self._clients.total() > CONNECTIONS or self._clients[account] > of_one

    def _full(self, account: int) -> bool:
        of_one = BYTES_IN_FLIGHT if self._speakers.trusted(account) else BYTES_OF_ONE
        return self._bytes.total() > BYTES_IN_FLIGHT or self._bytes[account] > of_one

    async def _take(self, reader: asyncio.StreamReader, header: Header, account: int) -> str:
        with closing(Spool(self._spool)) as message:
            try:
                await _received(reader, header.length, message)
                await finished(partial(self._keep, header, account, message))
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                raise
            except OSError as error:
                _log.error("a lesson cannot be kept: %s", error)
                return "LATER it cannot be kept now"
        self._arrived()
        return "OK"

    def _keep(self, header: Header, account: int, message: Spool) -> None:
        user = self._speakers.user(account, header.user)
        self._queue.put(header._replace(user=user), PIPED, message.chunks())


async def _received(reader: asyncio.StreamReader, length: int, message: Spool) -> None:
    while message.size < length:
        piece = await reader.read(min(_PIECE, length - message.size))
        if not piece:
            raise ConnectionResetError("the client went before it had said all")
        message.write(piece)
