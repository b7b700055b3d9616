"""The milter door: what all its sessions go by."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from spamguard.doors.milter.session import Session, Terms
from spamguard.proxy.asking import Asking
from spamguard.reception.clients import Load, Networks
from spamguard.reception.door import Door
from spamguard.wire.milter import Actions


def open_milter(asking: Asking, sockets: Sequence[socket.socket], spool_directory: Path) -> Door:
    """A door that is not open yet. sockets: bound and listening; they stay the caller's."""
    scanner = asking.scanner
    terms = Terms(
        asking=asking,
        scanner=scanner,
        load=Load(scanner.limits),
        clients=Networks(scanner.clients),
        spool_directory=spool_directory,
        wanted=Actions(0) if scanner.quarantine_from is None else Actions.QUARANTINE,
    )
    return Door(lambda address, _port: Session(terms, address), sockets)
