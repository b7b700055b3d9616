"""What can go wrong with a next hop: the full story for the log, and the short fixed reply that the client gets instead.

Every one of these is temporary: trouble of ours or of the next hop must never make a permanent refusal.
"""

from __future__ import annotations

import os
import re
import ssl

from spamguard.wire.values import Reply

CONTENT_TROUBLE = Reply.of(451, "4.3.0 temporary trouble with this message, try again later")
NO_SMTPUTF8 = Reply.of(553, "5.6.7 next hop does not take internationalised mail")
UNFIT = Reply.of(501, "5.5.4 cannot be told to the next hop")

_OWN_TEMPORARY = re.compile(rb"4\.\d{1,3}\.\d{1,3} ")


class Trouble(Exception):  # noqa: N818  # no error of ours: the network is like that
    """The next hop could not be asked. reply: for the client; the exception's text is for the log."""

    reply = Reply.of(451, "4.4.2 connection to next hop lost, try again later")


class Unreachable(Trouble):
    """No session could be opened."""

    reply = Reply.of(451, "4.4.1 next hop does not answer, try again later")


class Unsafe(Trouble):
    """No TLS where it is required, or somebody meddles with it."""

    reply = Reply.of(451, "4.7.4 no safe connection to next hop, try again later")


class NoHandshake(Unsafe):
    """TLS could not be started, although the next hop offers it."""


class Stalled(Trouble):
    """The next hop kept us waiting beyond a deadline, or does not speak the protocol."""


class Lost(Trouble):
    """The session has ended or is out of step: before the data it may be opened again, once."""


class Closing(Lost):
    """The next hop has ended the session with a 421. Its text is passed on, but the session with the client goes on."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = _without_closing(reply)


def in_words(error: Exception | None) -> str:
    """What has happened to a connection, for people."""
    if error is None:
        return "closed"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        # The event loop's own text names its call; names that are not found have numbers of their own, below zero.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _without_closing(reply: Reply) -> Reply:
    """A 421 as a 451: it is the next hop that hangs up, not we."""
    return Reply(451, tuple([line if _OWN_TEMPORARY.match(line) else b"4.4.2 " + line for line in reply.lines]))
