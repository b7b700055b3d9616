"""What a worker process is made of: for each listener a next hop, scorers, the proxy between them, and a door; for each scanner
scorers and a door; a history for all.

Must never fail because of what mail or the filter are like: a worker that does not start takes no mail.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path

from spamguard import secret
from spamguard.doors.milter.session import MilterSession
from spamguard.doors.rspamd.answers import Statistics
from spamguard.doors.rspamd.session import RspamdSession
from spamguard.doors.smtp.door import open_door
from spamguard.doors.spamd.session import SpamdSession
from spamguard.files import KEY, SPOOL
from spamguard.history import HistoryWriter
from spamguard.hostname import hostname
from spamguard.metrics.counters import MASTER, STAGES, Slot
from spamguard.proxy.asking import Asking
from spamguard.proxy.contract import Proxy
from spamguard.proxy.exchange import Exchange
from spamguard.proxy.journal import Entry
from spamguard.proxy.lessons import Lessons
from spamguard.proxy.people import People
from spamguard.proxy.scoring import ScorerPool
from spamguard.proxy.teaching import TeachingProxy
from spamguard.proxy.tools import Tools
from spamguard.quarantine import Quarantine
from spamguard.reception.clients import Load, Networks
from spamguard.reception.conversation import House
from spamguard.reception.door import Door, Session
from spamguard.relay.contract import NextHop
from spamguard.relay.factory import next_hop
from spamguard.relay.trouble import Trouble
from spamguard.settings import Policy, Protocol, Settings
from spamguard.teaching.queue import DIRECTORY, Queue

_PROBING = 5.0  # seconds between two looks at a next hop that is not there
_WRITING = 1.0  # seconds that the rest of the history may take at the end
_BEAT = 1.0  # seconds between two words about our being well
_RECEIVE, _JUDGE, _HAND_ON = range(len(STAGES))
NO_ACTION = "none"  # was taken for what was not judged

_log = logging.getLogger("spamguard.mail")


@asynccontextmanager
async def assemble(
    settings: Settings, sockets: Sequence[socket.socket], settle: Callable[[], None], counters: Slot
) -> AsyncIterator[Sequence[Door]]:
    """Doors that are not open yet (`worker.Assemble`)."""
    machine = hostname()
    spool = settings.state / SPOOL
    spool.mkdir(mode=0o700, exist_ok=True)
    async with AsyncExitStack() as stack:
        tools = _tools(settings, settle, counters, stack)
        pools = _Pools(settings, stack)
        doors: list[Door] = []
        for listener, listening in zip(settings.listeners, sockets, strict=False):  # those of scanners follow
            name = listener.hostname or machine
            hop = next_hop(listener.next_hop, name, partial(_failed, counters, str(listener.next_hop.endpoint)))
            stack.push_async_callback(hop.close)
            _in_background(_seen(hop), stack)
            proxy: Proxy = Exchange(listener, hop, await pools.of(listener.policy), tools, name)
            if listener.teach is not None:
                proxy = TeachingProxy(proxy, listener, listener.teach, Queue(settings.state / DIRECTORY))
            doors.append(open_door(listener, proxy, [listening], spool, name, partial(counters.took, _RECEIVE)))
        lessons = Lessons(settings.state)
        for scanner, listening in zip(settings.scanners, sockets[len(settings.listeners) :], strict=True):
            asking = Asking(scanner, await pools.of(scanner.policy), tools, lessons, scanner.hostname or machine)
            doors.append(open_scanner(asking, [listening], spool, partial(_statistics, counters, lessons)))
        _in_background(_beating(counters, pools.all), stack)
        yield doors


class _Pools:
    """Scorers, one pool for each threshold that is asked for."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._pools: dict[int, ScorerPool] = {}

    async def of(self, policy: Policy) -> ScorerPool:
        """Started, and closed with the stack."""
        bound = policy.one_wrong_in
        if bound not in self._pools:
            self._pools[bound] = ScorerPool(self._settings.state, self._settings.scoring, bound)
            self._stack.push_async_callback(self._pools[bound].close)
            await self._pools[bound].start()
        return self._pools[bound]

    @property
    def all(self) -> Collection[ScorerPool]:
        """Those there are."""
        return self._pools.values()


def open_scanner(asking: Asking, sockets: Sequence[socket.socket], spool: Path, statistics: Callable[[], Statistics]) -> Door:
    """A door that is not open yet, for the protocol that is spoken there. statistics: as `RspamdSession` wants it."""
    scanner = asking.scanner
    house = House(scanner.limits, Load(scanner.limits))
    sessions: Mapping[Protocol, Callable[[House, Asking, Path, str], Session]] = {
        Protocol.RSPAMD: partial(RspamdSession, statistics),
        Protocol.SPAMD: SpamdSession,
        Protocol.MILTER: MilterSession,
    }
    begin = sessions[scanner.endpoint.protocol]
    return Door(lambda address, _port: begin(house, asking, spool, address), sockets, Networks(scanner.clients), scanner.limits)


def _statistics(counters: Slot, lessons: Lessons) -> Statistics:
    """Of all processes."""
    messages: Counter[str] = Counter()
    began = 0
    for slot in counters.used():
        began = slot.began if slot.number == MASTER else began
        for (label, _), number in slot.named("messages"):
            messages[label] += number
    return Statistics(max(0, int(time.time()) - began), messages, *lessons.learnt())


def _failed(counters: Slot, endpoint: str, trouble: Exception) -> None:
    kind = type(trouble).__name__.lower() if isinstance(trouble, Trouble) else "local"
    counters.next_hop_failed(endpoint, kind, str(trouble), int(time.time()))


async def _beating(counters: Slot, pools: Collection[ScorerPool]) -> None:
    """For ever: says that this process is well, and whether it can have messages judged."""
    while True:
        counters.beat(time.monotonic_ns(), scoring=all(pool.able for pool in pools))
        if any(pool.lost for pool in pools):
            signal.raise_signal(signal.SIGTERM)  # drain: other workers can, or those of what is installed now, once none of us is left
        await asyncio.sleep(_BEAT)


async def _seen(hop: NextHop) -> None:
    """Until it is known what the next hop offers; later sessions with it tell what has changed."""
    while hop.extensions is None:
        await hop.probe()
        await asyncio.sleep(_PROBING)


def _in_background(work: Coroutine[None, None, None], stack: AsyncExitStack) -> None:
    stack.callback(asyncio.get_running_loop().create_task(work).cancel)


def _tools(settings: Settings, settle: Callable[[], None], counters: Slot, stack: AsyncExitStack) -> Tools:
    kept = settings.history
    history = HistoryWriter(settings.state / "history.sqlite", kept.size, kept.days, subjects=kept.subjects, addresses=kept.addresses)
    stack.push_async_callback(asyncio.to_thread, history.close, _WRITING)

    @cache
    def key() -> tuple[bytes, str]:
        """What signs, and what names the key it comes from. Read when the first verdict is to be signed: who judged had it."""
        found = secret.load(settings.state / KEY, create=False)
        return secret.derived(found, b"verdict"), secret.fingerprint(found)

    def record(entry: Entry) -> None:
        counters.message(entry.label, entry.action or NO_ACTION, entry.size)
        if not entry.copy_of:  # it was judged once
            counters.took(_JUDGE, entry.judging_seconds)
        if entry.replies:  # else somebody else hands it on
            counters.took(_HAND_ON, entry.handing_on_seconds)
        _log.info("%s", entry, extra={"event": "handled", "facts": entry.facts})
        history.put(entry.row(key()[1] if entry.scan else ""))

    people = People(settings.aliases) if settings.personal else None
    return Tools(Quarantine(settings.state / "quarantine"), lambda: key()[0], record, settle, people)
