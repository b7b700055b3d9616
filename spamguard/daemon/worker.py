"""One worker process: `python -m spamguard.daemon.worker ASSEMBLY SLOT CHANNEL SETTINGS COUNTERS
SOCKET…`.

The master starts it with a slot of the counters and the numbers of inherited descriptors.
`assemble` builds the doors: for each listener a next hop, a pool of scorers and the proxy between
them, for each scanner a pool and its protocol, and one history for all. `Worker` runs the doors in
one event loop and tells the master that it is alive. SIGTERM makes it drain and take its time; end
of file on the channel, when the master stops or is gone, makes it drain within seconds.

Must never fail because of the contents of mail or the state of the filter: a worker that does not
start takes no mail. Must never accept once it drains, and never outlive its master by much more
than HURRY_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from spamguard import keys, process
from spamguard.config.options import Listener, OddBytes, Position, Protocol, Scanner, Settings
from spamguard.counters import MASTER_SLOT, STAGES, CounterBoard, CounterSlot
from spamguard.delivery.next_hop import DeliveryError, NextHop
from spamguard.delivery.quarantine import Quarantine
from spamguard.delivery.smtp import create_next_hop
from spamguard.errors import SpamguardError
from spamguard.learning.lessons import TrainingIntake
from spamguard.log import hostname
from spamguard.process import BEAT_BYTE, READY_BYTE, SETTLE_BYTE
from spamguard.proxy.delivery_log import DeliveryRecord, HistoryWriter
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.proxy.transaction import FilterProxy, Proxy, ProxyContext
from spamguard.servers.listener import ByteQuota, CertificateReloader, Door, ServerSession
from spamguard.servers.milter import MilterSession
from spamguard.servers.rspamd import RspamdSession
from spamguard.servers.rspamd_protocol import RspamdStatistics
from spamguard.servers.scanner import ScannerContext, ScanService
from spamguard.servers.smtp import LmtpSession, SmtpSession
from spamguard.servers.smtp_handler import DoorContext
from spamguard.servers.spamd import SpamdSession
from spamguard.servers.teach import ForwardTrainingProxy
from spamguard.smtp.envelope import Networks
from spamguard.storage import KEY_FILE, SPOOL_DIRECTORY
from spamguard.users import UserResolver

_log = logging.getLogger("spamguard.mail")
_worker_log = logging.getLogger("spamguard.daemon")

BEAT_SECONDS = 1.0
DRAIN_TIMEOUT = 7200.0  # after a reload: longer than one message may take, in and out
HURRY_TIMEOUT = 6.0  # when the master stops or is gone; it kills after `WorkerTiming.drain`
_ALARM_SECONDS = 9  # then the kernel ends a process that is still in a hurry
_PROBE_SECONDS = 5.0  # between two attempts to reach a next hop
_HISTORY_TIMEOUT = 1.0  # to write the rest of the history at the end
_RECEIVE_STAGE, _JUDGE_STAGE, _DELIVER_STAGE = range(len(STAGES))
NO_ACTION = "none"  # the action counted for a message that was not judged

Assemble = Callable[
    [Settings, Sequence[socket.socket], Callable[[], None], CounterSlot],
    AbstractAsyncContextManager[Sequence[Door]],
]
"""Builds doors that are not open yet.

The arguments are the settings, their listening sockets in the order of `Settings.doors`, a function
that asks the master for settling, and the slot in which this process counts. Leaving the context
closes everything behind the doors; the sockets stay the worker's.
"""


@asynccontextmanager
async def assemble(
    settings: Settings,
    sockets: Sequence[socket.socket],
    settle: Callable[[], None],
    counters: CounterSlot,
) -> AsyncIterator[Sequence[Door]]:
    """Build the doors of a mail filter (`Assemble`)."""
    machine = hostname()
    spool = settings.state / SPOOL_DIRECTORY
    spool.mkdir(mode=0o700, exist_ok=True)
    # by `spam_threshold` and what is believed about senders
    pools: dict[tuple[int, tuple[str, ...], bool], ScorerPool] = {}
    async with AsyncExitStack() as stack:

        async def open_pool(door: Listener | Scanner) -> ScorerPool:
            servers = settings.authserv_ids if door.believes_results else ()
            stripped = bool(servers) and door.strips_authentication_results
            key = door.policy.spam_threshold, servers, stripped
            if key not in pools:
                bound = key[0]
                pools[key] = pool = ScorerPool(
                    settings.state,
                    settings.scoring,
                    bound,
                    authserv_ids=servers,
                    results_stripped=stripped,
                )
                stack.push_async_callback(pool.close)
                await pool.start()
            return pools[key]

        context = _make_context(settings, settle, counters, stack)
        doors: list[Door] = []
        for listener, listening in zip(settings.listeners, sockets, strict=False):
            name = listener.hostname or machine
            endpoint = str(listener.next_hop.to)
            hop = create_next_hop(
                listener.next_hop, name, partial(_count_failure, counters, endpoint)
            )
            stack.push_async_callback(hop.close)
            _run_in_background(_probe_until_known(hop), stack)
            proxy: Proxy = FilterProxy(listener, hop, await open_pool(listener), context, name)
            if listener.teach is not None:
                intake = TrainingIntake(settings.state)
                proxy = ForwardTrainingProxy(proxy, listener, listener.teach, intake)
            count_receiving = partial(counters.add_seconds, _RECEIVE_STAGE)
            doors.append(open_door(listener, proxy, [listening], spool, name, count_receiving))
        lessons = TrainingIntake(settings.state)
        statistics = partial(_collect_statistics, counters, lessons)
        scanner_sockets = sockets[len(settings.listeners) :]
        for scanner, listening in zip(settings.scanners, scanner_sockets, strict=True):
            pool, name = await open_pool(scanner), scanner.hostname or machine
            service = ScanService(scanner, pool, context, lessons, name)
            doors.append(open_scanner(service, [listening], spool, statistics))
        _run_in_background(_beat_forever(counters, pools.values()), stack)
        yield doors


def open_door(
    listener: Listener,
    proxy: Proxy,
    sockets: Sequence[socket.socket],
    spool_directory: Path,
    hostname: str,
    on_data_received: Callable[[float], None],
) -> Door:
    """A door that is not open yet.

    sockets: bound and listening; they stay the caller's. hostname: ours. on_data_received: called
    with the seconds that the data of each message took. ValueError: a network is none. StartError:
    the certificate cannot be used.
    """
    is_behind_queue = listener.position is Position.AFTER_QUEUE
    default = OddBytes.NORMALISE if is_behind_queue else OddBytes.REFUSE
    context = DoorContext(
        proxy=proxy,
        lmtp=listener.listen.protocol is Protocol.LMTP,
        hostname=hostname,
        limits=listener.limits,
        byte_quota=ByteQuota(listener.limits),
        odd_bytes=listener.odd_bytes or default,
        position=listener.position,
        trusted=Networks(listener.trusted),
        tls=None if listener.tls is None else CertificateReloader(listener.tls),
        spool_directory=spool_directory,
        on_data_received=on_data_received,
    )
    session_type = LmtpSession if context.lmtp else SmtpSession

    def make_session(address: str, port: str) -> SmtpSession:
        return session_type(context, asyncio.get_running_loop(), address, port)

    return Door(make_session, sockets, Networks(listener.clients), listener.limits)


def open_scanner(
    service: ScanService,
    sockets: Sequence[socket.socket],
    spool: Path,
    statistics: Callable[[], RspamdStatistics],
) -> Door:
    """Build a door, not open yet, for a scanner. statistics: for `RspamdSession`."""
    scanner = service.scanner
    context = ScannerContext(service, ByteQuota(scanner.limits), spool)
    sessions: Mapping[Protocol, Callable[[ScannerContext, str], ServerSession]] = {
        Protocol.RSPAMD: partial(RspamdSession, statistics),
        Protocol.SPAMD: SpamdSession,
        Protocol.MILTER: MilterSession,
    }
    make_session = sessions[scanner.listen.protocol]
    return Door(
        lambda address, _port: make_session(context, address),
        sockets,
        Networks(scanner.clients),
        scanner.limits,
    )


def _collect_statistics(counters: CounterSlot, lessons: TrainingIntake) -> RspamdStatistics:
    """Add up the counters of all processes."""
    messages: Counter[str] = Counter()
    began = 0
    for slot in counters.used_slots():
        began = slot.began if slot.number == MASTER_SLOT else began
        for (label, _), number in slot.read_rows("messages"):
            messages[label] += number
    return RspamdStatistics(max(0, int(time.time()) - began), messages, *lessons.totals())


def _count_failure(counters: CounterSlot, endpoint: str, error: Exception) -> None:
    kind = error.kind if isinstance(error, DeliveryError) else "local"
    counters.count_next_hop_error(endpoint, kind, str(error), int(time.time()))


async def _beat_forever(counters: CounterSlot, pools: Collection[ScorerPool]) -> None:
    """Record that this process is alive, and whether it can have messages judged."""
    while True:
        counters.beat(time.monotonic_ns(), scoring=all(pool.has_ready_scorer for pool in pools))
        if any(pool.is_replaced for pool in pools):
            # Drain: another worker can judge, or the installed version once no worker is left.
            signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(BEAT_SECONDS)


async def _probe_until_known(hop: NextHop) -> None:
    """Find out what the next hop offers; later sessions with it notice changes."""
    while hop.extensions is None:
        await hop.probe()
        await asyncio.sleep(_PROBE_SECONDS)


def _run_in_background(work: Coroutine[None, None, None], stack: AsyncExitStack) -> None:
    stack.callback(asyncio.get_running_loop().create_task(work).cancel)


def _make_context(
    settings: Settings, settle: Callable[[], None], counters: CounterSlot, stack: AsyncExitStack
) -> ProxyContext:
    options = settings.history
    history = HistoryWriter(
        settings.state / "history.sqlite",
        options.size,
        options.age,
        subjects=options.subjects,
        addresses=options.addresses,
    )
    stack.push_async_callback(asyncio.to_thread, history.close, _HISTORY_TIMEOUT)

    @cache
    def signing_key() -> tuple[bytes, str]:
        """Return the key that signs verdicts, and the fingerprint of the installation key.

        Read when the first verdict is signed: the filter that judged has created the key.
        """
        key = keys.load_key(settings.state / KEY_FILE, create=False)
        return keys.derive_key(key, b"verdict"), keys.key_fingerprint(key)

    def record(entry: DeliveryRecord) -> None:
        counters.count_message(entry.label, entry.action or NO_ACTION, entry.size)
        if not entry.copy_of:  # copies of a message are judged once
            counters.add_seconds(_JUDGE_STAGE, entry.judging_seconds)
        if entry.replies:  # not where another program delivers
            counters.add_seconds(_DELIVER_STAGE, entry.delivery_seconds)
        _log.info("%s", entry, extra={"event": "handled", "facts": entry.facts})
        history.put(entry.row(signing_key()[1] if entry.scan else ""))

    users = UserResolver(settings.aliases) if settings.personal else None
    quarantine = Quarantine(settings.state / "quarantine")
    return ProxyContext(quarantine, lambda: signing_key()[0], record, settle, users)


class Worker:
    """The life of a worker process, from start to end."""

    def __init__(
        self,
        settings: Settings,
        sockets: Sequence[socket.socket],
        channel: socket.socket,
        assemble: Assemble,
        counters: CounterSlot,
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._channel = channel
        self._assemble = assemble
        self._counters = counters
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to drain."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)
        loop.add_reader(self._channel, self._on_channel)
        loop.add_signal_handler(signal.SIGTERM, self._draining.set)
        beats = asyncio.create_task(self._beat())
        try:
            async with self._assemble(
                self._settings, self._sockets, lambda: self._send(SETTLE_BYTE), self._counters
            ) as doors:
                await asyncio.gather(*(door.start() for door in doors))
                self._send(READY_BYTE)
                await self._draining.wait()
                await self._drain(doors)
        finally:
            beats.cancel()
            loop.remove_reader(self._channel)

    def _on_channel(self) -> None:
        """Notice end of file: the master is gone, or wants a quick end. It never sends anything."""
        try:
            self._channel.recv(1)
        except BlockingIOError:
            return
        except OSError:  # the master went without reading what we had sent
            pass
        asyncio.get_running_loop().remove_reader(self._channel)
        self._draining.set()
        self._hurry.set()

    def _send(self, data: bytes) -> None:
        with suppress(OSError):  # never wait for a master that does not read, or is gone
            self._channel.send(data)

    async def _beat(self) -> None:
        while True:
            self._send(BEAT_BYTE)
            await asyncio.sleep(BEAT_SECONDS)

    async def _drain(self, doors: Sequence[Door]) -> None:
        """Wait until all sessions have ended or the time is over.

        The addresses are free for another daemon as soon as the doors do not accept.
        """
        patient = _drain_all(doors, DRAIN_TIMEOUT)
        await asyncio.sleep(0)  # now the doors have stopped accepting
        # Something else takes the place of each descriptor: doors may still use its number.
        with socket.socket() as unused:
            for listening in self._sockets:
                os.dup2(unused.fileno(), listening.fileno(), inheritable=False)
        hurried = asyncio.create_task(self._hurry_up(doors))
        await asyncio.wait((patient, hurried), return_when=asyncio.FIRST_COMPLETED)
        patient.cancel()
        hurried.cancel()
        for error in await asyncio.gather(patient, hurried, return_exceptions=True):
            if isinstance(error, Exception):
                _worker_log.error("draining failed", exc_info=error)

    async def _hurry_up(self, doors: Sequence[Door]) -> None:
        await self._hurry.wait()
        # A session that still hangs then has given no reply, so its sender tries again.
        signal.alarm(_ALARM_SECONDS)
        await _drain_all(doors, HURRY_TIMEOUT)


def _drain_all(doors: Sequence[Door], seconds: float) -> asyncio.Future[list[None]]:
    deadline = asyncio.get_running_loop().time() + seconds
    return asyncio.gather(*(door.drain(deadline) for door in doors))


def main(arguments: Sequence[str]) -> int:
    """Take over the inherited descriptors, and run."""
    process.begin_child()
    # A connection needs up to three descriptors, and the usual limit is 1,024 (systemd.exec,
    # LimitNOFILE): raise it as far as allowed.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    assembly, slot, *numbers = arguments
    descriptors = [int(number) for number in numbers]
    for descriptor in descriptors:  # a listening socket in a child would keep the address taken
        os.set_inheritable(descriptor, False)
    settings = process.read_settings(descriptors[1])

    async def run() -> None:
        module = import_module(assembly)
        await Worker(settings, sockets, channel, module.assemble, counters).run()

    with socket.socket(fileno=descriptors[0]) as channel:
        counters = CounterBoard(descriptors[2]).slot(int(slot))
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors[3:]]
        try:
            asyncio.run(run())
        except (SpamguardError, OSError) as error:
            _worker_log.error("%s", error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
