"""The rspamd door: what all its sessions go by."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from spamguard.doors.rspamd.answers import Statistics
from spamguard.doors.rspamd.session import RspamdSession
from spamguard.proxy.asking import Asking
from spamguard.reception.clients import Load, Networks
from spamguard.reception.conversation import House
from spamguard.reception.door import Door


def open_rspamd(asking: Asking, sockets: Sequence[socket.socket], spool_directory: Path, statistics: Callable[[], Statistics]) -> Door:
    """A door that is not open yet. sockets: bound and listening; they stay the caller's. statistics: asked in a thread."""
    scanner = asking.scanner
    house = House(scanner.limits, Networks(scanner.clients), Load(scanner.limits))
    return Door(lambda address, _: RspamdSession(house, asking, spool_directory, statistics, address), sockets)
