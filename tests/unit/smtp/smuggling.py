"""Every end of a message that some server accepts, and their common form."""

from __future__ import annotations

import re

ENDS = {
    "LF.LF": b"\n.\n",
    "LF.CRLF": b"\n.\r\n",
    "CRLF.LF": b"\r\n.\n",
    "CR.CR": b"\r.\r",
    "CR.LF": b"\r.\n",
    "LF.CR": b"\n.\r",
    "CR.CRLF": b"\r.\r\n",
    "CRLF.CR": b"\r\n.\r",
    "CRLF.CRCRLF": b"\r\n.\r\r\n",
    "CRCRLF.CRCRLF": b"\r\r\n.\r\r\n",
    "CRLF NUL.CRLF": b"\r\n\0.\r\n",
}
ANY_END = re.compile(rb"(?:\A|[\r\n])\0*\.\0*[\r\n]")
"""What the most lenient of all servers would take for an end."""
