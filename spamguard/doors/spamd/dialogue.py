"""What is said in spamd's protocol, versions 1.0 to 1.5 (spamd/PROTOCOL in SpamAssassin): requests parsed, answers written. Pure.

A request is a line with method and version, header fields but in version 1.0, an empty line, and a message. Lines end in CRLF; a
bare LF is taken too.
"""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import NamedTuple

LONGEST_LINE = 8192  # bytes of a line of a request, its end included
MOST_FIELDS = 255
_FIRST = re.compile(rb"([A-Z_]{1,20}) SPAMC/([0-9])\.([0-9]{1,2})")
_FIELD = re.compile(rb"([A-Za-z-]{1,40})[ \t]*:[ \t]*(.*)", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,12}")
_ANSWERED_AT_ONCE = (1, 5)  # before that, PING and SKIP have no header fields


class Method(StrEnum):
    """What is asked for."""

    PING = "PING"
    SKIP = "SKIP"
    CHECK = "CHECK"  # the verdict
    SYMBOLS = "SYMBOLS"  # and the names of what was found
    REPORT = "REPORT"  # and a report
    REPORT_IFSPAM = "REPORT_IFSPAM"  # that only for spam
    PROCESS = "PROCESS"  # and the message with our header fields
    HEADERS = "HEADERS"  # and its header section with them
    TELL = "TELL"  # to be taught


class Code(Enum):
    """Codes of answers (sysexits.h), with a fixed text each."""

    OK = 0, "EX_OK"
    DATA = 65, "Message cannot be taken"
    UNAVAILABLE = 69, "Service unavailable"
    TEMPORARY = 75, "Try again later"
    PROTOCOL = 76, "Request not understood"
    FORBIDDEN = 77, "Not allowed"
    TIMEOUT = 79, "Too slow"  # spamd's own number


class RefusedError(Exception):
    """A request that gets no other answer. about: what is wrong, fixed words."""

    def __init__(self, code: Code, about: str = "") -> None:
        super().__init__(about)
        self.code = code
        self.about = about


class Request(NamedTuple):
    """What was said before the message. length: of the message as it comes, None: until the client sends no more.

    label: for TELL, "" none. set, remove: which databases the lesson is for, or to be taken out of.
    """

    method: Method
    version: tuple[int, int]
    length: int | None = None
    user: str = ""
    compressed: bool = False
    label: str = ""
    set: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()

    @property
    def has_fields(self) -> bool:
        """Whether header fields follow the first line."""
        return self.version >= _ANSWERED_AT_ONCE if self.method in (Method.PING, Method.SKIP) else self.version > (1, 0)


def parse_first(line: bytes) -> Request:
    """The first line, without its end. RefusedError."""
    found = _FIRST.fullmatch(line)
    if found is None or found[1].decode() not in Method.__members__:
        raise RefusedError(Code.PROTOCOL, "unknown method or version")
    return Request(Method(found[1].decode()), (int(found[2]), int(found[3])))


def with_field(request: Request, line: bytes) -> Request:
    """The request with one more header field, a line without its end; unknown ones change nothing. RefusedError."""
    found = _FIELD.fullmatch(line)
    if found is None:
        raise RefusedError(Code.PROTOCOL, "not a header field")
    name, value = found[1].lower(), found[2].strip()
    if name == b"content-length":
        if not _LENGTH.fullmatch(value):
            raise RefusedError(Code.PROTOCOL, "not a length")
        return request._replace(length=int(value))
    if name == b"compress":
        if value.lower() != b"zlib":
            raise RefusedError(Code.PROTOCOL, "unknown compression")
        return request._replace(compressed=True)
    if name == b"user":
        return request._replace(user=value.decode("utf-8", "replace"))
    if name == b"message-class":
        return request._replace(label=value.decode("latin-1").lower())
    if name == b"set":
        return request._replace(set=_databases(value))
    return request._replace(remove=_databases(value)) if name == b"remove" else request


def _databases(value: bytes) -> frozenset[str]:
    return frozenset(word.strip() for word in value.decode("latin-1").lower().split(","))


def check(request: Request) -> None:
    """RefusedError for what contradicts itself, once all fields are there."""
    if request.compressed and request.length is None:
        raise RefusedError(Code.PROTOCOL, "compressed without a length")
    if request.method is not Method.TELL:
        return
    if "local" in request.set & request.remove:
        raise RefusedError(Code.PROTOCOL, "both set and remove")
    if "local" not in request.set | request.remove:
        raise RefusedError(Code.UNAVAILABLE, "only local lessons are taken")
    if "local" in request.set and request.label not in ("spam", "ham"):
        raise RefusedError(Code.PROTOCOL, "unknown class")


def refusal(error: RefusedError) -> bytes:
    """The answer to what is not done."""
    number, text = error.code.value
    return f"SPAMD/1.1 {number} {text}{': ' if error.about else ''}{error.about}\r\n\r\n".encode("ascii")


PONG = b"SPAMD/1.5 0 PONG\r\n"


def answer(request: Request, spam: str, length: int | None) -> bytes:
    """What stands before the content of an answer. spam: the value of the field `Spam`; length: of the content, None: there is none.

    Old clients look for one of the two fields only, and at its place: before version 1.3 that is the length where a message is sent
    back, the verdict otherwise; before 1.2 there are no fields with a message.
    """
    sends_back = request.method in (Method.PROCESS, Method.HEADERS)
    fields = []
    if length is not None and (request.version >= (1, 3) or (sends_back and request.version >= (1, 2))):
        fields.append(f"Content-length: {length}\r\n")
    if request.version >= (1, 3) or not sends_back:
        fields.append(f"Spam: {spam}\r\n")
    if sends_back and not fields:
        return b"SPAMD/1.0 0 EX_OK\r\n"
    return "".join(("SPAMD/1.1 0 EX_OK\r\n", *fields, "\r\n")).encode("ascii")


def verdict(request: Request, score: float, required: float, *, is_unwanted: bool) -> str:
    """The value of the field `Spam`."""
    words = ("Yes", "No") if request.method is Method.REPORT_IFSPAM else ("True", "False")
    return f"{words[not is_unwanted]} ; {score:.1f} / {required:.1f}"


def told(field: str) -> bytes:
    """The answer to TELL. field: DidSet or DidRemove; "": it changed nothing."""
    return b"SPAMD/1.1 0 EX_OK\r\n" + (f"{field}: local\r\n" if field else "").encode("ascii") + b"\r\n"
