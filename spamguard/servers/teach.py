"""The teaching door: a Unix socket on which programs of this machine hand over lessons.

The answer is sent once a lesson is on the disk. A lesson belongs to the user whose process brings
it, as the kernel says; only trusted accounts, such as one that all mail belongs to, may name
another user. `spamguard.users` has the form of a lesson.

Must never learn anything itself, let one client make others wait, or hold a message in memory that
does not fit there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from spamguard import process
from spamguard.delivery.base import run_in_thread
from spamguard.learning.lessons import TrainingIntake, TrainingOutcome, unknown_class
from spamguard.storage import Spool
from spamguard.users import (
    MAX_LESSON_HEADER,
    PIPE_ORIGIN,
    LessonHeader,
    is_user_name,
    parse_lesson_header,
)

_log = logging.getLogger("spamguard.teaching")

MAX_CONNECTIONS = 100
MAX_BYTES_IN_FLIGHT = 512 << 20
# Of an account that is not trusted. Announced bytes count: what it does not send keeps others out.
MAX_CONNECTIONS_PER_ACCOUNT = 16
MAX_BYTES_PER_ACCOUNT = 128 << 20
LESSON_TIMEOUT = 30.0  # for all of one lesson
_CHUNK_BYTES = 256 << 10
_BACKLOG = 512


class TrainingAccounts:
    """Accounts of this machine, and the users whose lessons they bring.

    for_others: names of the accounts that may name another user; root and our own always may.
    """

    def __init__(self, for_others: Iterable[str]) -> None:
        self._trusted = {0, os.getuid()}
        self._warned_accounts: set[int] = set()
        for name in for_others:
            with suppress(KeyError):  # not on this machine
                self._trusted.add(pwd.getpwnam(name).pw_uid)

    def is_trusted(self, uid: int) -> bool:
        """Whether this account may name another user."""
        return uid in self._trusted

    def resolve_user(self, uid: int, named_user: str) -> str:
        """The user whose lesson it is. named_user: "" if the client names none."""
        if named_user and self.is_trusted(uid):
            return named_user
        try:
            account = pwd.getpwuid(uid).pw_name
        except KeyError:
            account = ""
        user = account if is_user_name(account) else f"#{uid}"
        if named_user not in ("", user) and uid not in self._warned_accounts:
            self._warned_accounts.add(uid)
            _log.warning(
                "%s hands over lessons of others, such as %s: "
                "they count as its own, unless for_others names it",
                user,
                ascii(named_user),
            )
        return user


async def _is_never_unknown(_label: str) -> bool:
    return False


class TeachingDoor:
    """One socket.

    on_lesson: called after each lesson, in any thread. is_unknown_class: whether there surely is no
    such class.
    """

    def __init__(
        self,
        intake: TrainingIntake,
        accounts: TrainingAccounts,
        spool: Path,
        on_lesson: Callable[[], object],
        is_unknown_class: Callable[[str], Awaitable[bool]] = _is_never_unknown,
    ) -> None:
        self._intake = intake
        self._accounts = accounts
        self._spool = spool
        self._on_lesson = on_lesson
        self._is_unknown_class = is_unknown_class
        self._connections: Counter[int] = Counter()  # by account
        self._bytes: Counter[int] = Counter()  # announced and not on the disk yet, by account

    async def start(self, path: Path, mode: int) -> asyncio.Server:
        """Listen at a path, in the place of an older socket. OSError."""
        listening = process.listen_at(path, mode)
        return await asyncio.start_unix_server(
            self._serve, sock=listening, backlog=_BACKLOG, limit=_CHUNK_BYTES
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = process.peer_uid(writer.get_extra_info("socket"))
        self._connections[uid] += 1
        try:
            async with asyncio.timeout(LESSON_TIMEOUT):
                answer = await self._answer(reader, uid)
                writer.write(answer.encode("ascii", "replace") + b"\n")
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as error:
            _log.info("uid %d: no lesson: %s", uid, error or type(error).__name__)
        except Exception:  # noqa: BLE001  a fault of ours must not end the door
            _log.exception("uid %d: a fault in taking this lesson", uid)
        finally:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, uid: int) -> str:
        is_trusted = self._accounts.is_trusted(uid)
        max_connections = MAX_CONNECTIONS if is_trusted else MAX_CONNECTIONS_PER_ACCOUNT
        max_bytes = MAX_BYTES_IN_FLIGHT if is_trusted else MAX_BYTES_PER_ACCOUNT
        if self._connections.total() > MAX_CONNECTIONS or self._connections[uid] > max_connections:
            return "LATER too many connections"
        line = await reader.readuntil(b"\n")
        try:
            header = parse_lesson_header(line[:MAX_LESSON_HEADER])
        except ValueError as error:
            return f"NO {error}"
        if header.label and await self._is_unknown_class(header.label):
            return f"HOLD {unknown_class(header.label)}"
        self._bytes[uid] += header.length
        try:
            if self._bytes.total() > MAX_BYTES_IN_FLIGHT or self._bytes[uid] > max_bytes:
                return "LATER too much at once"
            return await self._receive_lesson(reader, header, uid)
        finally:
            self._bytes[uid] -= header.length

    async def _receive_lesson(
        self, reader: asyncio.StreamReader, header: LessonHeader, uid: int
    ) -> str:
        with closing(Spool(self._spool)) as message:
            try:
                while message.size < header.length:
                    piece = await reader.read(min(_CHUNK_BYTES, header.length - message.size))
                    if not piece:
                        raise ConnectionResetError("the client went before the end of its lesson")
                    message.write(piece)
                outcome = await run_in_thread(lambda: self._submit(header, uid, message))
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                _log.error("a lesson cannot be kept: %s", error)
                return "LATER it cannot be kept now"
        if outcome is not TrainingOutcome.ACCEPTED:
            return "NO it can never be learnt"
        self._on_lesson()
        return "OK"

    def _submit(self, header: LessonHeader, uid: int, message: Spool) -> TrainingOutcome:
        """Blocks: the account may be looked up in the network."""
        user = self._accounts.resolve_user(uid, header.user)
        return self._intake.submit(message, header.label, user, PIPE_ORIGIN)
