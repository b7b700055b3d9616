"""The SMTP session without its connection: states, fixed replies, command lines, budgets. Pure.

`TRANSITIONS` says which command is allowed in which state. `LineBuffer` cuts bytes into lines: only
CRLF ends a line (RFC 5321, section 2.3.8). `CommandBudget` limits commands without a message.
`apply_attributes` takes what a trusted peer says of its client by XFORWARD or XCLIENT; the session
decides whom to trust.

Must never look twice at the same byte for a line end, however slowly a line comes in, and never
keep more of an overlong line than of a long one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from spamguard.config.options import DoorLimits
from spamguard.smtp.commands import CLIENT_FIELDS
from spamguard.smtp.envelope import Client, Reply

MAX_LINE_BYTES = 2048  # line end included; parameters of DSN and SMTPUTF8 fit in four times
MAX_LONG_LINE_BYTES = 12288  # of commands with attributes of a client
_LONG_LINE_VERBS = (b"XFORWARD", b"XCLIENT")


class SmtpState(Enum):
    """How far a session has come."""

    GREETED = auto()  # no HELO yet
    READY = auto()  # between messages
    SENDER = auto()  # MAIL was accepted
    RECIPIENTS = auto()  # at least one RCPT was accepted


_ALL_STATES = tuple(SmtpState)
_HELLO_TRANSITIONS = {
    (state, verb): SmtpState.READY for state in _ALL_STATES for verb in ("HELO", "EHLO", "LHLO")
}
_IDLE_TRANSITIONS = {
    (state, verb): state for state in _ALL_STATES for verb in ("NOOP", "HELP", "VRFY", "QUIT")
}

TRANSITIONS: Mapping[tuple[SmtpState, str], SmtpState] = {
    **_HELLO_TRANSITIONS,
    **_IDLE_TRANSITIONS,
    (SmtpState.GREETED, "RSET"): SmtpState.GREETED,
    (SmtpState.READY, "RSET"): SmtpState.READY,
    (SmtpState.SENDER, "RSET"): SmtpState.READY,
    (SmtpState.RECIPIENTS, "RSET"): SmtpState.READY,
    (SmtpState.GREETED, "STARTTLS"): SmtpState.GREETED,
    (SmtpState.READY, "STARTTLS"): SmtpState.GREETED,
    (SmtpState.READY, "XFORWARD"): SmtpState.READY,
    (SmtpState.GREETED, "XCLIENT"): SmtpState.GREETED,
    (SmtpState.READY, "XCLIENT"): SmtpState.GREETED,
    (SmtpState.READY, "MAIL"): SmtpState.SENDER,
    (SmtpState.SENDER, "RCPT"): SmtpState.RECIPIENTS,
    (SmtpState.RECIPIENTS, "RCPT"): SmtpState.RECIPIENTS,
    (SmtpState.RECIPIENTS, "DATA"): SmtpState.READY,
}
"""State and command to the next state. A pair that is missing is out of order."""

VERBS = frozenset(verb for _, verb in TRANSITIONS)
IDLE_VERBS = frozenset(
    ("NOOP", "HELP", "VRFY", "RSET", "HELO", "EHLO", "LHLO", "XFORWARD", "XCLIENT")
)
BROWSER_VERBS = frozenset(("GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT"))
_SMTP_ONLY = frozenset(("HELO", "EHLO"))  # RFC 2033, section 4.1: a LMTP server must refuse them
_LMTP_ONLY = frozenset(("LHLO",))

HELP = Reply.from_text(214, f"2.0.0 {' '.join(sorted(VERBS - _LMTP_ONLY))}")
HELP_LMTP = Reply.from_text(214, f"2.0.0 {' '.join(sorted(VERBS - _SMTP_ONLY))}")
OK = Reply.from_text(250, "2.0.0 Ok")
BYE = Reply.from_text(221, "2.0.0 Bye")
CANNOT_VERIFY = Reply.from_text(252, "2.0.0 Cannot verify, but will accept a message and try")
GO_AHEAD = Reply.from_text(354, "End data with <CR><LF>.<CR><LF>")
START_TLS = Reply.from_text(220, "2.0.0 Ready to start TLS")
BAD_LINE = Reply.from_text(500, "5.5.2 Line is too long or has bare CR, bare LF or NUL in it")
BARE_LF = Reply.from_text(500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection")
UNKNOWN_COMMAND = Reply.from_text(500, "5.5.2 Command not recognised")
NOT_IMPLEMENTED = Reply.from_text(502, "5.5.1 Command not implemented")
BAD_ARGUMENT = Reply.from_text(501, "5.5.4 Syntax error in the argument")
NOT_ALLOWED = Reply.from_text(550, "5.7.0 Command not allowed for this client")
NO_RECIPIENTS = Reply.from_text(554, "5.5.1 No valid recipients")
NO_RECIPIENTS_LMTP = Reply.from_text(503, "5.5.1 No valid recipients")  # RFC 2033, section 4.2
CLIENT_REFUSED = Reply.from_text(554, "5.7.1 This server accepts no mail from you")
LOCAL_ERROR = Reply.from_text(451, "4.3.0 Local trouble, try again later")
LOCAL_ERROR_IN_DATA = Reply.from_text(
    421, "4.3.0 Local trouble, closing connection, try again later"
)
TIMED_OUT = Reply.from_text(421, "4.4.2 Timeout, closing connection")
SHUTTING_DOWN = Reply.from_text(421, "4.3.2 Shutting down, try again later")
EVICTED = Reply.from_text(421, "4.3.2 Idle while others wait to be served, closing connection")
TOO_MANY_COMMANDS = Reply.from_text(
    421, "4.7.0 Too many commands without a message, closing connection"
)
NO_WEB_SERVER = Reply.from_text(421, "4.7.0 This is no web server, closing connection")
AFTER_STARTTLS = Reply.from_text(
    421, "4.7.0 Nothing may follow STARTTLS before the handshake, closing connection"
)
SIZE_LIMIT = Reply.from_text(552, "5.3.4 Message is too big")
HEADER_LIMIT = Reply.from_text(552, "5.3.4 Header section is too big")
ODD_BYTES = Reply.from_text(554, "5.6.0 Message has bare CR, bare LF or NUL in it")
NO_SPACE = Reply.from_text(452, "4.3.1 No space left for this message now, try again later")
ONE_RECIPIENT = Reply.from_text(
    452, "4.5.3 One recipient for each message here, send it again for the others"
)
TOO_MANY_RECIPIENTS = Reply.from_text(
    452, "4.5.3 Too many recipients, send it again for the others"
)

_OUT_OF_ORDER = {
    SmtpState.GREETED: Reply.from_text(503, "5.5.1 Send HELO or EHLO first"),
    SmtpState.READY: Reply.from_text(503, "5.5.1 Send MAIL first"),
    SmtpState.SENDER: Reply.from_text(503, "5.5.1 Not allowed during a mail transaction"),
    SmtpState.RECIPIENTS: Reply.from_text(503, "5.5.1 Not allowed during a mail transaction"),
}

_HELLO_NAME = re.compile(r"[!-~]{1,255}")


class BadLineError(ValueError):
    """A line that is too long or has odd bytes."""


class BareLfError(ValueError):
    """A command that ends in LF alone.

    The session has to end: the next bytes may be the rest of this line, or a command. Obeyed, they
    could be a command that another server took for a part of this line (SMTP smuggling); answered,
    the client would count one reply too many.
    """


def split_line(line: bytes) -> tuple[str, str]:
    """The command in upper case and its argument, in Latin-1, of a line without its CRLF.

    Raises
    ------
    BadLineError
        The line is too long or has odd bytes.
    """
    word, _, argument = line.partition(b" ")
    word = word.upper()
    if (
        len(line) + 2 > (MAX_LONG_LINE_BYTES if word in _LONG_LINE_VERBS else MAX_LINE_BYTES)
        or b"\r" in line
        or b"\n" in line
        or b"\0" in line
    ):
        raise BadLineError
    return word.decode("latin-1"), argument.strip(b" \t").decode("latin-1")


def command_refusal(state: SmtpState, verb: str, *, lmtp: bool) -> Reply | None:
    """The refusal of a command in this state; None: it is allowed."""
    if verb not in VERBS or verb in (_SMTP_ONLY if lmtp else _LMTP_ONLY):
        return (
            NOT_IMPLEMENTED if verb in ("AUTH", "BDAT", "EXPN", "TURN", "ETRN") else UNKNOWN_COMMAND
        )
    if (state, verb) in TRANSITIONS:
        return None
    if (state, verb) == (SmtpState.SENDER, "DATA"):
        return NO_RECIPIENTS_LMTP if lmtp else NO_RECIPIENTS
    return _OUT_OF_ORDER[state]


def parse_hello_name(argument: str) -> str | None:
    """The name after HELO; None: it is no name. Strange names are accepted, as evidence."""
    return argument if _HELLO_NAME.fullmatch(argument) else None


def hello_reply(hostname: str, features: Iterable[str]) -> Reply:
    """The reply to EHLO or LHLO."""
    return Reply(250, tuple(line.encode("ascii") for line in (hostname, *features)))


class CommandBudget:
    """Counts idle and wrong commands, of which a client may send some before its next message."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self.reset()

    def reset(self) -> None:
        """Start again, after a message."""
        self._idle_left = self._limits.idle_commands
        self._wrong_left = self._limits.wrong_commands

    def count_idle(self) -> None:
        """Count a command that does nothing for a message."""
        self._idle_left -= 1

    def count_wrong(self) -> None:
        """Count a command that was refused or not understood."""
        self._wrong_left -= 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the client has sent too many."""
        return self._idle_left < 0 or self._wrong_left < 0


_UNUSED_NAMES = frozenset(("DESTADDR", "DESTPORT"))  # of XCLIENT: accepted, of no use here
XFORWARD_NAMES = tuple(name for name in CLIENT_FIELDS if name != "LOGIN")
XCLIENT_NAMES = (
    *[name for name in CLIENT_FIELDS if name not in ("IDENT", "SOURCE")],
    *sorted(_UNUSED_NAMES),
)
XFORWARD_FEATURE = " ".join(("XFORWARD", *XFORWARD_NAMES))
XCLIENT_FEATURE = " ".join(("XCLIENT", *XCLIENT_NAMES))


def apply_attributes(
    client: Client, attributes: Mapping[str, str], names: Collection[str]
) -> Client | None:
    """The client after one XFORWARD or XCLIENT; None: the command has no such attribute.

    What the peer does not say stays unknown: its own values are not those of its client.

    Parameters
    ----------
    client : after the commands before it, or the peer itself.
    names : attributes of this command.
    """
    if attributes.keys() - set(names):
        return None
    before = client if client.forwarded else Client(peer=client.peer, forwarded=True)
    values: dict[str, Any] = {
        CLIENT_FIELDS[name]: value
        for name, value in attributes.items()
        if name not in _UNUSED_NAMES
    }
    return replace(before, **values)


_CRLF = b"\r\n"


class LineBuffer:
    """Bytes that came, cut into lines. The connection appends to `data`; the session puts back
    what follows the data of a message.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._searched = 0
        self._skipping = False

    def next_line(self) -> bytes | None:
        """The next line without its end, None while it is incomplete.

        Raises
        ------
        BadLineError
            An overlong line has ended.
        """
        end = self.data.find(_CRLF, self._searched)
        if end < 0:
            self._skip_overlong()
            return None
        line = bytes(self.data[:end])
        del self.data[: end + 2]
        self._searched = 0
        if self._skipping:
            self._skipping = False
            raise BadLineError
        return line

    @property
    def ends_in_bare_lf(self) -> bool:
        """Whether the last byte is LF without CR, if there is no whole line.

        Its client waits for an answer that would never come.
        """
        return self.data.endswith(b"\n")

    def take_all(self) -> bytes:
        """All bytes; the buffer is empty afterwards."""
        data = bytes(self.data)
        self.clear()
        return data

    def put_back(self, rest: bytes) -> None:
        """Put bytes back in front."""
        self.data[:0] = rest

    def clear(self) -> None:
        """Drop all bytes."""
        self.data.clear()
        self._searched = 0
        self._skipping = False

    def _skip_overlong(self) -> None:
        if len(self.data) > MAX_LONG_LINE_BYTES:
            self._skipping = True
        if self._skipping:
            del self.data[:-1]  # it may be the CR of the end
        self._searched = max(len(self.data) - 1, 0)
