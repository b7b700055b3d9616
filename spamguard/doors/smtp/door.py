"""The SMTP and the LMTP door: what all its sessions go by."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from spamguard.doors.smtp import tls
from spamguard.doors.smtp.connection import READ_BYTES
from spamguard.doors.smtp.session import Terms
from spamguard.doors.smtp.transactions import MailSession
from spamguard.proxy.contract import Proxy
from spamguard.reception.clients import Load, Networks
from spamguard.reception.door import Door
from spamguard.settings import Listener, OddBytes, Position, Protocol


def open_door(
    listener: Listener,
    proxy: Proxy,
    sockets: Sequence[socket.socket],
    spool_directory: Path,
    hostname: str,
    received: Callable[[float], None],
) -> Door:
    """A door that is not open yet. sockets: bound and listening; they stay the caller's. hostname: ours. received: is told how many
    seconds the data of each message took.

    ValueError for networks that are none; StartError for a certificate that is none.
    """
    odd_bytes = listener.odd_bytes or (OddBytes.NORMALISE if listener.position is Position.AFTER_QUEUE else OddBytes.REFUSE)
    terms = Terms(
        proxy=proxy,
        lmtp=listener.endpoint.protocol is Protocol.LMTP,
        hostname=hostname,
        limits=listener.limits,
        load=Load(listener.limits),
        odd_bytes=odd_bytes,
        position=listener.position,
        trusted=Networks(listener.trusted),
        tls=None if listener.tls is None else tls.Certificates(listener.tls),
        spool_directory=spool_directory,
        received=received,
    )
    scratch = memoryview(bytearray(READ_BYTES))

    def begin(address: str, port: str) -> MailSession:
        return MailSession(terms, asyncio.get_running_loop(), scratch, address, port)

    return Door(begin, sockets, Networks(listener.clients), listener.limits)
