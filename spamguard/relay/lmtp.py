"""Handing on by LMTP (RFC 2033), over TCP or a socket of this machine: one reply for each recipient."""

from __future__ import annotations

from spamguard.relay.client import StreamHop


class LmtpHop(StreamHop):
    """An LMTP server."""

    verbs = ("LHLO",)
    answers_each = True
