"""The doors of a worker, built from the settings.

For each listener a next hop and the proxy behind the door, for each scanner its protocol, and one
history for all. Nothing here runs before `Door.start`, but for the probes of next hops.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial

from spamguard import keys
from spamguard.config.options import Listener, Protocol, Scanner, Settings
from spamguard.counters import RECEIVE_STAGE, Counters
from spamguard.delivery.next_hop import DeliveryError, NextHop
from spamguard.delivery.quarantine import Quarantine
from spamguard.delivery.smtp import create_next_hop
from spamguard.learning.lessons import TrainingIntake
from spamguard.log import hostname
from spamguard.proxy.history import HistoryWriter
from spamguard.proxy.scorer import ScanOptions
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.proxy.transaction import (
    FilterProxy,
    PolicyJudge,
    ProxyContext,
    record_delivery,
)
from spamguard.servers.listener import Door, ServerSession
from spamguard.servers.milter import MilterSession
from spamguard.servers.rspamd import RspamdSession
from spamguard.servers.scanner import ScanService
from spamguard.servers.smtp import DoorContext, LmtpSession, SmtpSession
from spamguard.servers.spamd import SpamdSession
from spamguard.servers.teach import ForwardTrainingProxy, Proxy
from spamguard.storage import KEY_FILE, SPOOL_DIRECTORY
from spamguard.users import UserResolver

_log = logging.getLogger("spamguard.relay")


def open_doors(
    settings: Settings,
    sockets: Sequence[socket.socket],
    pool: ScorerPool,
    settle: Callable[[], None],
    counters: Counters,
    stack: AsyncExitStack,
) -> list[Door]:
    """Build all doors, not open yet.

    Parameters
    ----------
    sockets
        Of each of `Settings.doors`.
    settle, counters
        As of `worker.Assemble`.
    stack
        Closes what is behind the doors.
    """
    machine = hostname()
    spool = settings.state / SPOOL_DIRECTORY
    spool.mkdir(mode=0o700, exist_ok=True)
    context = _make_context(settings, settle, counters, stack)
    # Again, as messages that end with it belong to the history.
    stack.push_async_callback(pool.close)
    doors: list[Door] = []
    lessons = TrainingIntake(settings.state)
    for listener, listening in zip(settings.listeners, sockets, strict=False):
        name = listener.hostname or machine
        endpoint = str(listener.next_hop.to)
        hop = create_next_hop(listener.next_hop, name, partial(_count_failure, counters, endpoint))
        stack.push_async_callback(hop.close)
        stack.callback(
            asyncio.get_running_loop().create_task(_probe_until_known(hop, endpoint)).cancel
        )
        judge = _judge_of(pool, settings, context, listener)
        usual = FilterProxy(listener, hop, judge, name)
        proxy: Proxy = usual
        if listener.teach is not None:
            proxy = ForwardTrainingProxy(usual, listener, listener.teach, lessons)
        count = partial(counters.add_seconds, RECEIVE_STAGE)
        door = DoorContext(listener, proxy, name, spool, count)
        doors.append(open_door(door, listening))
    first = len(settings.listeners)
    for scanner, listening in zip(settings.scanner_doors, sockets[first:], strict=True):
        judge = _judge_of(pool, settings, context, scanner)
        service = ScanService(scanner, judge, lessons, machine, spool)
        doors.append(open_scanner(service, listening))
    return doors


def _judge_of(
    pool: ScorerPool, settings: Settings, context: ProxyContext, door: Listener | Scanner
) -> PolicyJudge:
    servers = settings.authserv_ids if door.believes_results else ()
    stripped = bool(servers) and door.strips_authentication_results
    options = ScanOptions(door.spam_threshold, servers, stripped)
    return PolicyJudge(partial(pool.judge, options=options), context, door)


def open_door(context: DoorContext, listening: socket.socket) -> Door:
    """A door for mail, not open yet; the socket stays the caller's."""
    session_type = LmtpSession if context.lmtp else SmtpSession
    return Door(session_type(context).for_client, listening, context.listener)


def open_scanner(service: ScanService, listening: socket.socket) -> Door:
    """A door for programs that ask, not open yet; the socket stays the caller's."""
    sessions: Mapping[Protocol, Callable[[ScanService, str], ServerSession]] = {
        Protocol.RSPAMD: RspamdSession,
        Protocol.SPAMD: SpamdSession,
        Protocol.MILTER: MilterSession,
    }
    scanner = service.scanner
    make_session = sessions[scanner.listen.protocol]
    return Door(lambda address, _port: make_session(service, address), listening, scanner)


def _count_failure(counters: Counters, endpoint: str, error: Exception) -> None:
    kind = error.kind if isinstance(error, DeliveryError) else "local"
    counters.count_next_hop_error(endpoint, kind, str(error), int(time.time()))


async def _probe_until_known(hop: NextHop, endpoint: str) -> None:
    """Find out what the next hop offers; later sessions with it notice changes."""
    while hop.extensions is None:
        if fault := await hop.probe():
            _log.warning("next hop %s: %s", endpoint, fault)
        await asyncio.sleep(60.0)  # between two attempts to reach a next hop


def _make_context(
    settings: Settings, settle: Callable[[], None], counters: Counters, stack: AsyncExitStack
) -> ProxyContext:
    options = settings.history
    history = HistoryWriter(
        settings.state / "history.sqlite", options.size, options.age, private=options.private
    )
    # In a second the rest of the history is written, or dropped.
    stack.push_async_callback(asyncio.to_thread, history.close, 1.0)
    # Read when the first verdict is signed: the filter that judged has created the key.
    key = cache(partial(keys.load_key, settings.state / KEY_FILE, create=False))
    fingerprint = cache(lambda: keys.key_fingerprint(key()))
    return ProxyContext(
        quarantine=Quarantine(settings.state / "quarantine"),
        key=cache(lambda: keys.derive_key(key(), b"verdict")),
        record=partial(record_delivery, counters, history, fingerprint),
        settle=settle,
        user_resolver=UserResolver(settings.aliases) if settings.personal else None,
        reject=settings.reject,
    )
