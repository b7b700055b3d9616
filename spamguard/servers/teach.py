"""The teaching door: a Unix socket on which programs of this machine hand lessons over, and are
answered once these are on the disk.

The kernel tells who speaks: a lesson is its user's, except that some accounts, such as the one all
mail belongs to, may name another. Must never learn anything itself, never let one client make
others wait, and never hold a message in memory that does not fit there.
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

from spamguard import aio
from spamguard.aio import run_in_thread
from spamguard.learning.lessons import TrainingIntake, TrainingOutcome, unknown_class
from spamguard.spool import Spool
from spamguard.users import (
    MAX_LESSON_HEADER,
    PIPE_ORIGIN,
    LessonHeader,
    is_user_name,
    parse_lesson_header,
)

_log = logging.getLogger("spamguard.teaching")


MAX_CONNECTIONS = 100
MAX_CONNECTIONS_PER_ACCOUNT = 16  # of one account that speaks for itself only
LESSON_TIMEOUT = 30.0  # for all of one lesson
MAX_BYTES_IN_FLIGHT = 512 << 20
MAX_BYTES_PER_ACCOUNT = (
    128 << 20
    # of one account that speaks for itself only: what it has announced and does not send keeps others
    # from theirs
)
_CHUNK_BYTES = 256 << 10
_BACKLOG = 512


async def _never_unknown(_: str) -> bool:
    return False


class TrainingAccounts:
    """Whose lesson it is that an account brings. for_others: names of the accounts that may name
    somebody else; ours always may.
    """

    def __init__(self, for_others: Iterable[str]) -> None:
        self._trusted = {0, os.getuid()}
        self._warned_accounts: set[int] = set()
        for name in for_others:
            with suppress(KeyError):  # not on this machine
                self._trusted.add(pwd.getpwnam(name).pw_uid)

    def is_trusted(self, account: int) -> bool:
        """Whether it may name others."""
        return account in self._trusted

    def resolve_user(self, account: int, named: str) -> str:
        """named: by whoever speaks. It counts only from those who may name others."""
        if named and self.is_trusted(account):
            return named
        try:
            name = pwd.getpwuid(account).pw_name
        except KeyError:
            name = ""
        own = name if is_user_name(name) else f"#{account}"
        if named not in ("", own) and account not in self._warned_accounts:
            self._warned_accounts.add(account)
            told = "%s hands over lessons of others, such as %s: they count as its own, unless for_others names it"
            _log.warning(told, own, ascii(named))
        return own


class TeachingDoor:
    """One socket. arrived: called after each lesson, in any thread. lacks: whether there surely is
    no such class.
    """

    def __init__(
        self,
        intake: TrainingIntake,
        speakers: TrainingAccounts,
        spool: Path,
        arrived: Callable[[], object],
        lacks: Callable[[str], Awaitable[bool]] = _never_unknown,
    ) -> None:
        self._intake = intake
        self._accounts = speakers
        self._spool = spool
        self._on_lesson = arrived
        self._is_unknown_class = lacks
        self._clients: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()  # announced and not kept yet, by account

    async def start(self, path: Path, mode: int) -> asyncio.Server:
        """Listen at a path, in the place of what was there. OSError."""
        listening = aio.listen_at(path, mode)
        return await asyncio.start_unix_server(
            self._serve, sock=listening, backlog=_BACKLOG, limit=_CHUNK_BYTES
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from beginning to end."""
        account = aio.peer_uid(writer.get_extra_info("socket"))
        self._clients[account] += 1
        try:
            async with asyncio.timeout(LESSON_TIMEOUT):
                answer = await self._answer(reader, account)
                writer.write(answer.encode("ascii", "replace") + b"\n")
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as error:
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
        if self._has_too_many_connections(account):
            return "LATER too many connections"
        line = await reader.readuntil(b"\n")
        try:
            header = parse_lesson_header(line[:MAX_LESSON_HEADER])
        except ValueError as error:
            return f"NO {error}"
        if header.label and await self._is_unknown_class(header.label):
            return f"HOLD {unknown_class(header.label)}"
        self._bytes[account] += header.length
        try:
            return (
                "LATER too much at once"
                if self._has_too_many_bytes(account)
                else await self._receive_lesson(reader, header, account)
            )
        finally:
            self._bytes[account] -= header.length

    def _has_too_many_connections(self, account: int) -> bool:
        of_one = (
            MAX_CONNECTIONS if self._accounts.is_trusted(account) else MAX_CONNECTIONS_PER_ACCOUNT
        )
        return self._clients.total() > MAX_CONNECTIONS or self._clients[account] > of_one

    def _has_too_many_bytes(self, account: int) -> bool:
        of_one = (
            MAX_BYTES_IN_FLIGHT if self._accounts.is_trusted(account) else MAX_BYTES_PER_ACCOUNT
        )
        return self._bytes.total() > MAX_BYTES_IN_FLIGHT or self._bytes[account] > of_one

    async def _receive_lesson(
        self, reader: asyncio.StreamReader, header: LessonHeader, account: int
    ) -> str:
        with closing(Spool(self._spool)) as message:
            try:
                await _read_message(reader, header.length, message)
                outcome = await run_in_thread(partial(self._submit, header, account, message))
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                raise
            except OSError as error:
                _log.error("a lesson cannot be kept: %s", error)
                return "LATER it cannot be kept now"
        if outcome is not TrainingOutcome.ACCEPTED:
            return "NO it can never be learnt"
        self._on_lesson()
        return "OK"

    def _submit(self, header: LessonHeader, account: int, message: Spool) -> TrainingOutcome:
        user = self._accounts.resolve_user(account, header.user)
        return self._intake.submit(message, header.label, user, PIPE_ORIGIN)


async def _read_message(reader: asyncio.StreamReader, length: int, message: Spool) -> None:
    while message.size < length:
        piece = await reader.read(min(_CHUNK_BYTES, length - message.size))
        if not piece:
            raise ConnectionResetError("the client went before it had said all")
        message.write(piece)
