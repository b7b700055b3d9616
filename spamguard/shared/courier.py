"""The courier's turns: a node's copy of the shared log and the database are made equal.

A turn reads the end of the log, finds out whether log and copy have the same history, pulls what is
new, pushes what waits here and pulls that back. Pushing alone proves nothing: an event leaves
`pending` only when it is read from the log. So an answer that is lost, or an error after something
was sent, means "unknown", and the next turn pushes the same again.

The log may have another history than this copy: it was restored from a backup, a standby that
lacked the last rows has taken over, or an empty database has taken the place of a lost one. Then
the copy is cut at the last common position, and what stood behind it is pushed again. That is how
the nodes refill a database.

Turns follow one another when a lesson was cast here, or after a tenth of a second. After trouble
the courier waits, longer each time, and begins with a new connection.

Must never drop an event that waits, never believe a row that the copy has not checked, never wait
for the database without a deadline, and never let one event that nobody can read stop all others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from spamguard.engine.snapshot import SNAPSHOT_KEY
from spamguard.engine.store import disown_tables, is_settler_wanted, parse_if_whole
from spamguard.errors import LedgerError, SharedError, SpamguardError, UnavailableError
from spamguard.ledger.events import Server, SharedEvent
from spamguard.ledger.shared import ForkError, joined_log
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import WarnOnce
from spamguard.shared.connection import RefusedValueError
from spamguard.shared.postgres import LogHead, SharedDatabase
from spamguard.storage import batches

_log = logging.getLogger("spamguard.shared")

TURN_SECONDS = 0.1  # without a nudge
_PAGE_EVENTS = 256
_PUSH_EVENTS, _PUSH_BYTES = 64, 1 << 20
_MARKS_AT_ONCE = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MEND_SECONDS = 60.0  # what somebody has to mend is tried again as often
_MAX_TOLD = 20  # events that cannot be read; the others are only counted


@dataclass
class Courier:
    """The turns of one node. It belongs to one event loop, and to the thread of its ledger.

    connect: connects to the database, given the server that is known. request_settling: starts
    the process that settles, which is wanted then.

    database: the connection, while there is one. contact: when a turn last succeeded; away_since:
    since when none does, 0: they do; both in seconds since 1970. problem: why. skipped: how many
    events of the log could not be read. last: the end of the log. alarms: what an operator must
    look at, by kind.
    """

    _ledger: SqliteLedger
    _connect: Callable[[Server | None], Awaitable[SharedDatabase]]
    _request_settling: Callable[[], None]
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)
    _awaited: list[asyncio.Future[None]] = field(default_factory=list)
    _connected: float = 0.0
    _refused: set[tuple[bytes, int, str, bytes]] = field(default_factory=set)
    _compacted: int = 0  # up to this position the log may have gaps
    _warnings: WarnOnce = field(default_factory=lambda: WarnOnce(_log, logging.ERROR))
    database: SharedDatabase | None = None
    contact: float = 0.0
    away_since: float = 0.0
    problem: str = ""
    skipped: int = 0
    last: int = 0
    alarms: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shared_log = joined_log(self._ledger)

    async def next_turn(self) -> None:
        """Begin a turn at once, as a lesson was cast here, and wait for its end."""
        ended = asyncio.get_running_loop().create_future()
        self._awaited.append(ended)
        self._nudged.set()
        await ended

    async def run(self) -> None:
        """Take turns for ever."""
        pause = 0.0
        while True:
            self._nudged.clear()
            awaited, self._awaited = self._awaited, []
            try:
                await self.take_turn()
                pause = 0.0
                self.contact, self.problem = time.time(), ""
                if self.away_since:
                    self.away_since = 0.0
                    _log.info("the shared log is there again")
                self._warnings.clear()
                self.alarms.pop("log", None)
            except (SpamguardError, OSError) as error:
                self.close()
                self.problem = str(error)
                is_away = isinstance(error, UnavailableError)
                # What the system says of one absence differs from try to try.
                text = "%s; lessons are learnt here and wait for the others"
                self._warnings.warn("away" if is_away else str(error), text, error)
                self.away_since = self.away_since or time.time()
                with suppress(LedgerError):  # the processes that cast report a full disk
                    self._shared_log.set_away(int(self.away_since))
                    if is_settler_wanted(self._ledger):
                        self._request_settling()
                if is_away or not isinstance(error, SharedError):  # what passes is no alarm
                    self.alarms.pop("log", None)
                    pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)
                else:
                    self.alarms["log"] = str(error)
                    pause = _MEND_SECONDS
                awaited += self._awaited
            for ended in awaited:
                if not ended.done():
                    ended.set_result(None)
            await asyncio.sleep(pause)
            if not pause:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._nudged.wait(), TURN_SECONDS)

    def close(self) -> None:
        if self.database is not None:
            self.database.close()
            self.database = None

    # ---- a turn

    async def take_turn(self) -> SharedDatabase:
        """Make copy and log equal, and return the connection.

        Rows that go on where the copy ends prove that both have one history. Where there are none,
        the end of the log is looked at. SharedError, LedgerError: it is not known how far it came.
        """
        if self.alarms.get("server") and time.monotonic() - self._connected > _MEND_SECONDS:
            self.close()  # to see whether it was mended
        if self.database is None:
            self.database = await self._connect(self._shared_log.server())
            self._connected = time.monotonic()
            self._shared_log.note_server(self.database.server)
            if not self.database.refused:
                self.alarms.pop("server", None)
            elif self.alarms.get("server") != self.database.refused:
                self.alarms["server"] = self.database.refused
                _log.error("%s", self.database.refused)
            await self._read_head(self.database)
        database, pushed = self.database, list[SharedEvent]()
        events = self._next_events()
        while True:
            if events:
                if events == pushed:
                    raise SharedError("the shared log does not show what it has taken: restore it")
                await self._push(database, events)
            await self._pull(database)
            pushed, events = events, self._next_events()
            if not events:
                break
        self._shared_log.set_away(None)
        if is_settler_wanted(self._ledger):
            self._request_settling()
        else:
            self._shared_log.end_joining()
        return database

    async def _pull(self, database: SharedDatabase) -> None:
        expected = 0
        while True:
            if await self._pull_page(database):
                continue
            position = self._shared_log.head().position
            if position < expected:
                raise SharedError(f"the shared log lacks event {position + 1:,}: restore it")
            if await self._read_head(database):
                return
            is_cut = self._shared_log.head().position < position
            expected = 0 if is_cut else self.last

    async def _read_head(self, database: SharedDatabase) -> bool:
        """Look at the end of the log; returns whether our copy ends there too.

        Where both have different histories, the copy is cut.
        """
        head = await database.head()
        self.last, self._compacted = head.last, head.compacted
        position, common = self._shared_log.head().position, await self._find_common(database, head)
        if common < position:
            text = "the shared log is another one from event %d on: what this node has up to %d "
            _log.warning(text + "is sent again", common + 1, position)
            line = self._ledger.get_meta(SNAPSHOT_KEY)
            if parse_if_whole(line).seq > common:
                disown_tables(self._ledger, line)
            self._shared_log.cut(common)
            return False
        # What stood at the end may have been superseded and dropped.
        return position >= head.last or position < head.compacted

    async def _pull_page(self, database: SharedDatabase) -> bool:
        """Apply the next rows of the log; returns whether there were any."""
        after = self._shared_log.head().position
        rows = await database.read_page(after, _PAGE_EVENTS)
        if not rows:
            return False
        try:
            problems = self._shared_log.apply(rows, self._compacted)
        except ForkError as error:
            compacted = self._compacted
            await self._read_head(database)
            if self._shared_log.head().position < after or self._compacted > compacted:
                return True  # it was cut, or has gaps now
            text = f"the shared log is damaged behind event {after:,}: restore it"
            raise SharedError(f"{text} [{error}]") from error
        for position, problem in problems:
            self.skipped += 1
            if self.skipped <= _MAX_TOLD:
                _log.error("event %d of the shared log is skipped: %s", position, problem)
        if self.skipped:
            self.alarms["skipped"] = f"events that could not be read: {self.skipped:,}, see the log"
        self.contact = time.time()
        if len(rows) == _PAGE_EVENTS:  # there may be very many
            await self._read_head(database)
        return True

    def _next_events(self) -> list[SharedEvent]:
        refused = len(self._refused)
        count, size = _PUSH_EVENTS + refused, _PUSH_BYTES * (1 + refused)
        events = self._shared_log.read_pending(count, size)
        return [event for event in events if event[:4] not in self._refused]

    async def _push(self, database: SharedDatabase, events: Sequence[SharedEvent]) -> None:
        """Append events. One that is refused is found, named and left out from then on."""
        try:
            await database.append(events)
        except RefusedValueError as error:
            if len(events) > 1:
                for event in events:
                    await self._push(database, [event])
                return
            self._refused.add(events[0][:4])
            _log.error("the database refuses a lesson of this node: %s", error)
            count = len(self._refused)
            self.alarms["refused"] = f"lessons that the database refuses: {count:,}, see the log"

    async def _find_common(self, database: SharedDatabase, head: LogHead) -> int:
        """The last position up to which log and copy have the same history.

        Rows that were superseded are dropped from the log up to `head.compacted`: there a position
        that is not in the log contradicts nothing.
        """
        ours = self._shared_log.head()
        if ours.position == head.last:
            if ours.chain == head.chain:
                return ours.position
        elif ours.position < head.last:
            chains = await database.chains([ours.position])
            if ours.position == 0 or chains.get(ours.position) == ours.chain:
                return ours.position
        is_open = ours.position <= head.last  # so far, nothing contradicts
        marks = [mark for mark in self._shared_log.marks() if mark.position <= head.last]
        for batch in batches(marks, _MARKS_AT_ONCE):
            chains = await database.chains([mark.position for mark in batch])
            chains[head.last] = head.chain
            for mark in batch:
                chain = chains.get(mark.position)
                if chain == mark.chain:
                    return ours.position if is_open else mark.position
                if chain is not None or mark.position > head.compacted:
                    is_open = False
        return ours.position if is_open else 0
