"""The way out that a configured next hop asks for."""

from __future__ import annotations

from spamguard.relay.client import StreamHop
from spamguard.relay.contract import NextHop, Notice, unnoticed
from spamguard.relay.maildir import MaildirHop
from spamguard.settings import Hop, Protocol


def next_hop(hop: Hop, hostname: str, notice: Notice = unnoticed) -> NextHop:
    """The next hop; nothing is connected before it is used. hostname: ours, for EHLO and the names of files."""
    if hop.endpoint.path is not None and hop.endpoint.protocol is Protocol.MAILDIR:
        return MaildirHop(hop.endpoint.path, hostname, notice=notice)
    return StreamHop(hop, hostname, notice)
