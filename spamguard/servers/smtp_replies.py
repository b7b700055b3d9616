"""The fixed replies of the SMTP and the LMTP door (RFC 5321, section 4.2; RFC 3463).

A 421 ends the session. None may tell more of a fault than that there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spamguard.limits import LimitExceeded
from spamguard.smtp.envelope import Reply

HELP = Reply.from_text(214, "2.0.0 See RFC 5321, and RFC 2033 for LMTP")
BYE = Reply.from_text(221, "2.0.0 Bye")
OK = Reply.from_text(250, "2.0.0 Ok")
CANNOT_VERIFY = Reply.from_text(252, "2.0.0 Cannot verify, but will accept a message and try")
GO_AHEAD = Reply.from_text(354, "End data with <CR><LF>.<CR><LF>")
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
LOCAL_ERROR = Reply.from_text(451, "4.3.0 Local trouble, try again later")
NO_SPACE = Reply.from_text(452, "4.3.1 No space left for this message now, try again later")
ONE_RECIPIENT = Reply.from_text(
    452, "4.5.3 One recipient for each message here, send it again for the others"
)
TOO_MANY_RECIPIENTS = Reply.from_text(
    452, "4.5.3 Too many recipients, send it again for the others"
)
BAD_LINE = Reply.from_text(500, "5.5.2 Line has bare CR, bare LF or NUL in it")
BARE_LF = Reply.from_text(500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection")
UNKNOWN_COMMAND = Reply.from_text(500, "5.5.2 Command not recognised")
BAD_ARGUMENT = Reply.from_text(501, "5.5.4 Syntax error in the argument")
NOT_IMPLEMENTED = Reply.from_text(502, "5.5.1 Command not implemented")
NOT_NOW = Reply.from_text(503, "5.5.1 Not allowed during a mail transaction")
NEED_MAIL = Reply.from_text(503, "5.5.1 Send MAIL first")
NO_RECIPIENTS_LMTP = Reply.from_text(503, "5.5.1 No valid recipients")  # RFC 2033, section 4.2
NOT_ALLOWED = Reply.from_text(550, "5.7.0 Command not allowed for this client")
SIZE_LIMIT = Reply.from_text(552, "5.3.4 Message is too big")
HEADER_LIMIT = Reply.from_text(552, "5.3.4 Header section is too big")
NO_RECIPIENTS = Reply.from_text(554, "5.5.1 No valid recipients")
CLIENT_REFUSED = Reply.from_text(554, "5.7.1 This server accepts no mail from you")
ODD_BYTES = Reply.from_text(554, "5.6.0 Message has bare CR, bare LF or NUL in it")

BY_LIMIT: Mapping[LimitExceeded, Reply] = {
    LimitExceeded.TOTAL: Reply.from_text(421, "4.7.0 Too many connections, try again later"),
    LimitExceeded.PER_CLIENT: Reply.from_text(
        421, "4.7.0 Too many connections from your address, try again later"
    ),
    LimitExceeded.NOT_LISTED: CLIENT_REFUSED,
}
"""The reply to a client that is not served."""

_HAS_ENHANCED_CODE = re.compile(r"\d\d\d[ -]\d\.\d+\.\d+ |220 |3")


def with_enhanced_code(line: str) -> str:
    """A reply line of aiosmtpd with an enhanced code (RFC 2034, section 4; RFC 3463, section 3.6).

    >>> with_enhanced_code("503 Error: send HELO first")
    '503 5.5.0 Error: send HELO first'
    """
    if _HAS_ENHANCED_CODE.match(line):
        return line
    detail = "0.0" if line.startswith("2") else "5.0"
    return f"{line[:4]}{line[0]}.{detail} {line[4:]}"
