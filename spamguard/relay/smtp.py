"""Handing on by SMTP (RFC 5321): one reply for all recipients."""

from __future__ import annotations

from spamguard.relay.client import StreamHop


class SmtpHop(StreamHop):
    """An SMTP server."""

    verbs = ("EHLO", "HELO")
    answers_each = False
