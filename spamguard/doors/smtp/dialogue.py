"""What may be said when, and what is answered: the states of a session as a table, the fixed replies, the lines.

Pure: bytes and values in, values out. Nothing here waits, sends or counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto

from spamguard.wire.values import Reply

LINE_BYTES = 2048  # of a command, its line end included: parameters of DSN and SMTPUTF8 fit four times
LONG_LINE_BYTES = 12288  # of those that carry attributes of somebody else
_LONG_LINES = (b"XFORWARD", b"XCLIENT")


class State(Enum):
    """How far a session has come."""

    GREETED = auto()  # no HELO yet
    READY = auto()  # between messages
    SENDER = auto()  # MAIL was accepted
    RECIPIENTS = auto()  # and at least one RCPT


_ANY = tuple(State)
_HELLO = {(state, verb): State.READY for state in _ANY for verb in ("HELO", "EHLO", "LHLO")}
_IDLE = {(state, verb): state for state in _ANY for verb in ("NOOP", "HELP", "VRFY", "QUIT")}

NEXT: Mapping[tuple[State, str], State] = {
    **_HELLO,
    **_IDLE,
    (State.GREETED, "RSET"): State.GREETED,
    (State.READY, "RSET"): State.READY,
    (State.SENDER, "RSET"): State.READY,
    (State.RECIPIENTS, "RSET"): State.READY,
    (State.GREETED, "STARTTLS"): State.GREETED,
    (State.READY, "STARTTLS"): State.GREETED,
    (State.READY, "XFORWARD"): State.READY,
    (State.GREETED, "XCLIENT"): State.GREETED,
    (State.READY, "XCLIENT"): State.GREETED,
    (State.READY, "MAIL"): State.SENDER,
    (State.SENDER, "RCPT"): State.RECIPIENTS,
    (State.RECIPIENTS, "RCPT"): State.RECIPIENTS,
    (State.RECIPIENTS, "DATA"): State.READY,
}
"""State and command to the state after it has succeeded. A pair that is missing is out of order."""

VERBS = frozenset(verb for _, verb in NEXT)
IDLE_VERBS = frozenset(("NOOP", "HELP", "VRFY", "RSET", "HELO", "EHLO", "LHLO", "XFORWARD", "XCLIENT"))
OF_BROWSERS = frozenset(("GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT"))
_SMTP_ONLY = frozenset(("HELO", "EHLO"))  # RFC 2033, section 4.1: a LMTP server must refuse them
_LMTP_ONLY = frozenset(("LHLO",))

HELP = Reply.of(214, f"2.0.0 {' '.join(sorted(VERBS - _LMTP_ONLY))}")
HELP_LMTP = Reply.of(214, f"2.0.0 {' '.join(sorted(VERBS - _SMTP_ONLY))}")
OK = Reply.of(250, "2.0.0 Ok")
BYE = Reply.of(221, "2.0.0 Bye")
VRFY = Reply.of(252, "2.0.0 Cannot verify, but will take a message and try")
GO_AHEAD = Reply.of(354, "End data with <CR><LF>.<CR><LF>")
START_TLS = Reply.of(220, "2.0.0 Ready to start TLS")
BAD_LINE = Reply.of(500, "5.5.2 Line is too long or has bare CR, bare LF or NUL in it")
BARE_LF = Reply.of(500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection")
UNKNOWN = Reply.of(500, "5.5.2 Command not recognised")
NOT_IMPLEMENTED = Reply.of(502, "5.5.1 Command not implemented")
BAD_ARGUMENT = Reply.of(501, "5.5.4 Syntax error in the argument")
NOT_ALLOWED = Reply.of(550, "5.7.0 Not for you")
NO_RECIPIENTS = Reply.of(554, "5.5.1 No valid recipients")
NO_RECIPIENTS_LMTP = Reply.of(503, "5.5.1 No valid recipients")  # RFC 2033, section 4.2
NOT_A_CLIENT = Reply.of(554, "5.7.1 This server does not take mail from you")
CRASHED = Reply.of(451, "4.3.0 Local trouble, try again later")
CRASHED_IN_DATA = Reply.of(421, "4.3.0 Local trouble, closing connection, try again later")
TIMED_OUT = Reply.of(421, "4.4.2 Timeout, closing connection")
SHUTTING_DOWN = Reply.of(421, "4.3.2 Shutting down, try again later")
EVICTED = Reply.of(421, "4.3.2 Idle while others wait to be served, closing connection")
IMPATIENT = Reply.of(421, "4.7.0 Too many commands without a message, closing connection")
NO_WEB_SERVER = Reply.of(421, "4.7.0 This is no web server, closing connection")
AFTER_STARTTLS = Reply.of(421, "4.7.0 Nothing may follow STARTTLS before the handshake, closing connection")
SIZE_LIMIT = Reply.of(552, "5.3.4 Message is too big")
HEADER_LIMIT = Reply.of(552, "5.3.4 Header section is too big")
ODD_BYTES = Reply.of(554, "5.6.0 Message has bare CR, bare LF or NUL in it")
NO_SPACE = Reply.of(452, "4.3.1 No space left for this message now, try again later")
ONE_RECIPIENT = Reply.of(452, "4.5.3 One recipient for each message here, send it again for the others")
MANY_RECIPIENTS = Reply.of(452, "4.5.3 Too many recipients, send it again for the others")

_OUT_OF_ORDER = {
    State.GREETED: Reply.of(503, "5.5.1 Say hello first"),
    State.READY: Reply.of(503, "5.5.1 MAIL comes first"),
    State.SENDER: Reply.of(503, "5.5.1 Not while a message is under way"),
    State.RECIPIENTS: Reply.of(503, "5.5.1 Not while a message is under way"),
}

_NAME = re.compile(r"[!-~]{1,255}")


class BadLineError(ValueError):
    """A command line that is refused as a whole."""


class BareLfError(ValueError):
    """A command that ends in LF alone.

    The session has to end there: nobody can tell whether what comes next is the rest of this line
    or a command. Obeyed, it could be a command that another server took for a part of this one
    (SMTP smuggling); answered, the client would count one reply too many.
    """


def split_line(line: bytes) -> tuple[str, str]:
    """The command in upper case and its argument, of a line without its CRLF, as a letter for each octet.

    BadLineError for one that is too long or has odd bytes.
    """
    word, _, argument = line.partition(b" ")
    word = word.upper()
    if len(line) + 2 > (LONG_LINE_BYTES if word in _LONG_LINES else LINE_BYTES) or b"\r" in line or b"\n" in line or b"\0" in line:
        raise BadLineError
    return word.decode("latin-1"), argument.strip(b" \t").decode("latin-1")


def refusal(state: State, verb: str, *, lmtp: bool) -> Reply | None:
    """Why this command cannot be said here and now; None when it can."""
    if verb not in VERBS or verb in (_SMTP_ONLY if lmtp else _LMTP_ONLY):
        return NOT_IMPLEMENTED if verb in ("AUTH", "BDAT", "EXPN", "TURN", "ETRN") else UNKNOWN
    if (state, verb) in NEXT:
        return None
    if (state, verb) == (State.SENDER, "DATA"):
        return NO_RECIPIENTS_LMTP if lmtp else NO_RECIPIENTS
    return _OUT_OF_ORDER[state]


def hello_name(argument: str) -> str | None:
    """The name after HELO; None when there is none or it cannot be one. Strange names are taken, as they are evidence."""
    return argument if _NAME.fullmatch(argument) else None


def hello_reply(hostname: str, features: Iterable[str]) -> Reply:
    """The answer to EHLO or LHLO."""
    return Reply(250, tuple(line.encode("ascii") for line in (hostname, *features)))
