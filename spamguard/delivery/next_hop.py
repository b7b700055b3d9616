"""The factory of next hops: SMTP, LMTP or Maildir, as the configuration says."""

from __future__ import annotations

from spamguard.config.options import Hop, Protocol
from spamguard.delivery.base import ErrorCallback, NextHop, ignore_error
from spamguard.delivery.maildir import MaildirNextHop
from spamguard.delivery.smtp import SmtpNextHop


def create_next_hop(hop: Hop, hostname: str, on_error: ErrorCallback = ignore_error) -> NextHop:
    """The next hop; it connects when it is first used.

    hostname: ours, for EHLO and the names of files.
    """
    if hop.to.path is not None and hop.to.protocol is Protocol.MAILDIR:
        return MaildirNextHop(hop.to.path, hostname, on_error=on_error)
    return SmtpNextHop(hop, hostname, on_error)
