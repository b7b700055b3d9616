"""The spamd door: what all its sessions go by."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from spamguard.doors.spamd.session import SpamdSession
from spamguard.proxy.asking import Asking
from spamguard.reception.clients import Load, Networks
from spamguard.reception.conversation import House
from spamguard.reception.door import Door


def open_spamd(asking: Asking, sockets: Sequence[socket.socket], spool_directory: Path) -> Door:
    """A door that is not open yet. sockets: bound and listening; they stay the caller's."""
    scanner = asking.scanner
    house = House(scanner.limits, Networks(scanner.clients), Load(scanner.limits))
    return Door(lambda address, _: SpamdSession(house, asking, spool_directory, address), sockets)
