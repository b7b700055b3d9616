"""The spamd door: one request of one client in spamd's protocol, versions 1.1 to 1.5.

The protocol is described in `spamd/PROTOCOL` of SpamAssassin. A request is a line with method and
version, header fields, an empty line, and a message. Lines end in CRLF; a
bare LF is accepted too. The connection ends with the answer. The protocol has no words for the
envelope: Exim, Haraka and spamass-milter put header fields on top of the message instead.

It is written by hand because libraries for this protocol speak the client's side only.

Must never answer anything but a refusal to a request that did not come in whole, inflate more than
a message may have, or believe envelope fields further down: those came with the message.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from typing import Any, NamedTuple

from spamguard.config.options import FORGED_FIELDS, Action
from spamguard.engine.policy import REQUIRED_SCORE
from spamguard.learning.lessons import TrainingOutcome
from spamguard.mail.message import tag_message
from spamguard.servers.listener import CHUNK_BYTES, Refusal
from spamguard.servers.scanner import (
    Conversation,
    ScanRequest,
    ScanResult,
    parse_recipients,
)
from spamguard.smtp.envelope import RefusedError, bare_address
from spamguard.storage import Spool

MAX_LINE_BYTES = 8192  # of a request, line end included
MAX_FIELDS = 255
MAX_HEAD_BYTES = 64 << 10  # of a message, in which its envelope fields are looked for
_MBOX_LINE = re.compile(rb"From [^\n]*+\n")  # Exim sends a mailbox of one message
_ENVELOPE_FIELD = re.compile(
    rb"X-Envelope-(From|To):((?:[^\n]*+\n(?=[ \t])|)*+[^\n]*+)\n", re.IGNORECASE
)
_REQUEST_FIELD = re.compile(rb"([A-Za-z-]{1,40})[ \t]*:[ \t]*(.*)", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,12}")
_TELL_FIELDS = (b"set", b"remove")


# ---- requests


class SpamdMethod(StrEnum):
    """What the client asks for."""

    PING = "PING"
    CHECK = "CHECK"  # the verdict
    SYMBOLS = "SYMBOLS"  # and the name of the test
    REPORT = "REPORT"  # and a report
    REPORT_IFSPAM = "REPORT_IFSPAM"  # a report for spam only
    PROCESS = "PROCESS"  # and the message with our header fields
    HEADERS = "HEADERS"  # and its header section with them
    TELL = "TELL"  # to train


_REQUEST_LINE = re.compile(rf"({'|'.join(SpamdMethod)}) SPAMC/1\.([1-9])".encode())


class SpamdCode(StrEnum):
    """Codes of answers (sysexits.h), each with a fixed text."""

    DATA = "65 Message cannot be taken"
    TEMPORARY = "75 Try again later"
    PROTOCOL = "76 Request not understood"
    FORBIDDEN = "77 Not allowed"
    TIMEOUT = "79 Too slow"  # spamd's own number


class SpamdRequest(NamedTuple):
    """A request without its message."""

    method: SpamdMethod
    version: int  # 1 to 5, behind "1."
    length: int | None  # of the message as it comes; None: until the client sends no more
    user: str
    compressed: bool
    label: str  # the class for TELL; "" takes the lesson back


def parse_request(method: SpamdMethod, version: int, lines: Sequence[bytes]) -> SpamdRequest:
    """The request with its header fields, without line ends; unknown ones change nothing.

    Raises RefusedError if a field is none, has a bad value or contradicts another one.
    """
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = _REQUEST_FIELD.fullmatch(line)
        if match is None:
            raise RefusedError(SpamdCode.PROTOCOL)
        fields[match[1].lower()] = match[2].strip()
    length, compression = fields.get(b"content-length"), fields.get(b"compress")
    is_bad_length = length is not None and not _LENGTH.fullmatch(length)
    is_bad_compression = compression is not None and (
        compression.lower() != b"zlib" or length is None
    )
    label = fields.get(b"message-class", b"").lower().decode("latin-1")
    is_taught, is_removed = (b"local" in fields.get(name, b"").lower() for name in _TELL_FIELDS)
    is_bad_lesson = is_taught == is_removed or (is_taught and label not in ("spam", "ham"))
    is_told = method is SpamdMethod.TELL
    if is_bad_length or is_bad_compression or (is_told and is_bad_lesson):
        raise RefusedError(SpamdCode.PROTOCOL)
    return SpamdRequest(
        method,
        version,
        length=None if length is None else int(length),
        user=fields.get(b"user", b"").decode("utf-8", "replace"),
        compressed=compression is not None,
        label=label if is_taught else "",
    )


def parse_envelope(head: bytes) -> tuple[str, tuple[str, ...]]:
    """Sender and recipients in the fields on top of a message; "" and () without such fields."""
    mbox_line = _MBOX_LINE.match(head)
    position = mbox_line.end() if mbox_line else 0
    values: dict[bytes, list[bytes]] = {b"from": [], b"to": []}
    while match := _ENVELOPE_FIELD.match(head, position):
        values[match[1].lower()].append(match[2])
        position = match.end()
    sender = b"".join(values[b"from"][:1]).decode("utf-8", "replace")
    return bare_address(sender), tuple(parse_recipients(values[b"to"]))


# ---- answers

PONG = b"SPAMD/1.5 0 PONG\r\n"


def encode_answer_head(request: SpamdRequest, spam: str, length: int | None) -> bytes:
    """The lines before the content of an answer, which has this length (None: there is none).

    Exim speaks version 1.2, and looks for the verdict alone.
    """
    is_message = request.method in (SpamdMethod.PROCESS, SpamdMethod.HEADERS)
    has_length = length is not None and (is_message or request.version >= 3)
    field = f"Content-length: {length}\r\n" if has_length else ""
    return f"SPAMD/1.1 0 EX_OK\r\n{field}Spam: {spam}\r\n\r\n".encode("ascii")


def format_report(result: ScanResult) -> str:
    """The verdict in words, in some lines that end in CRLF. A message cannot forge a line of it."""
    lines = [f"spamguard: not judged ({result.reason}), id {result.id}"]
    if not result.reason:
        score = f"{result.score:.1f} points of {REQUIRED_SCORE:.1f} required"
        lines = [f"spamguard: {result.label}, {score}, id {result.id}", "words:"]
        lines += [f"    {word}" for word in result.words]
    return "".join(f"{line}\r\n" for line in lines)


# ---- the session

_CODE_BY_OUTCOME = {
    TrainingOutcome.FORBIDDEN: SpamdCode.FORBIDDEN,
    TrainingOutcome.IMPOSSIBLE: SpamdCode.DATA,
    TrainingOutcome.TRY_LATER: SpamdCode.TEMPORARY,
}


class SpamdSession(Conversation):
    """One client and its request."""

    answers: Mapping[Refusal, SpamdCode] = {
        Refusal.NOT_LISTED: SpamdCode.FORBIDDEN,
        Refusal.TOO_MANY: SpamdCode.TEMPORARY,
        Refusal.TOO_LARGE: SpamdCode.DATA,
        Refusal.NO_ROOM: SpamdCode.TEMPORARY,
        Refusal.TOO_SLOW: SpamdCode.TIMEOUT,
        Refusal.FAULT: SpamdCode.TEMPORARY,
    }

    async def handle_requests(self) -> None:
        self.unread += await self.next_request()
        if self.unread:
            await self.handle(self._answer_request())

    async def refuse(self, answer: SpamdCode) -> None:
        self.client_may_send = True
        await self.send(f"SPAMD/1.1 {answer}\r\n\r\n".encode("ascii"))

    async def _answer_request(self) -> None:
        match = _REQUEST_LINE.fullmatch(await self._read_line())
        if match is None:
            raise RefusedError(SpamdCode.PROTOCOL)
        method = SpamdMethod(match[1].decode())
        if method is SpamdMethod.PING:
            self.client_may_send = True  # some clients send an empty line behind it
            await self.send(PONG)
            return
        lines: list[bytes] = []
        while line := await self._read_line():
            lines.append(line)
            if len(lines) == MAX_FIELDS:
                raise RefusedError(SpamdCode.PROTOCOL)
        request = parse_request(method, int(match[2]), lines)
        with closing(self._service.incoming_message(self.address)) as message:
            remaining = request.length
            stream = zlib.decompressobj() if request.compressed else None
            while remaining != 0 and (self.unread or await self._fill_buffer()):
                size = CHUNK_BYTES if remaining is None else min(CHUNK_BYTES, remaining)
                piece = bytes(self.unread[:size])
                del self.unread[:size]
                if remaining is not None:
                    remaining -= len(piece)
                for content in _inflate(stream, piece) if stream else (piece,):
                    message.write(content)
                    self.check_message(message)
            if remaining or self.unread or (stream and not stream.eof):
                raise RefusedError(SpamdCode.PROTOCOL)
            await self._answer(request, message.spool)

    async def _read_line(self) -> bytes:
        """The next line without its end; RefusedError if it is too long, or incomplete."""
        while (end := self.unread.find(b"\n")) < 0:
            if len(self.unread) > MAX_LINE_BYTES or not await self._fill_buffer():
                raise RefusedError(SpamdCode.PROTOCOL)
        line = bytes(self.unread[:end])
        del self.unread[: end + 1]
        return line.removesuffix(b"\r")

    async def _fill_buffer(self) -> bool:
        piece = await self.read_more()
        self.unread += piece
        return bool(piece)

    async def _answer(self, request: SpamdRequest, message: Spool) -> None:
        sender, recipients = parse_envelope(message.read_start(MAX_HEAD_BYTES))
        asked = ScanRequest(message, self.address, sender, recipients, user=request.user)
        if request.method is SpamdMethod.TELL:
            outcome = await self._service.teach(asked, request.label)
            if outcome in _CODE_BY_OUTCOME:
                raise RefusedError(_CODE_BY_OUTCOME[outcome])
            field = "DidSet" if request.label else "DidRemove"
            await self.send(f"SPAMD/1.1 0 EX_OK\r\n{field}: local\r\n\r\n".encode("ascii"))
            return
        result = await self._service.scan(asked)
        if result.action is Action.DEFER:
            raise RefusedError(SpamdCode.TEMPORARY)
        spam = f"{result.is_unwanted} ; {result.score:.1f} / {REQUIRED_SCORE:.1f}"
        content: bytes | None = None
        match request.method:
            case SpamdMethod.PROCESS | SpamdMethod.HEADERS:
                tagged = tag_message(message, result.fields, FORGED_FIELDS)
                if request.method is SpamdMethod.PROCESS:
                    await self.send(encode_answer_head(request, spam, tagged.size))
                    for piece in tagged.chunks():
                        await self.send(piece)
                    return
                content = tagged.head
            case SpamdMethod.SYMBOLS:
                content = result.symbol.encode()
            case SpamdMethod.REPORT | SpamdMethod.REPORT_IFSPAM:
                is_told = request.method is SpamdMethod.REPORT or result.is_unwanted
                content = format_report(result).encode() if is_told else b""
        length = None if content is None else len(content)
        await self.send(encode_answer_head(request, spam, length) + (content or b""))


def _inflate(stream: Any, data: bytes) -> Iterator[bytes]:
    """The content of a zlib stream (RFC 1950), in bounded pieces; RefusedError if it is none."""
    while data:
        try:
            yield stream.decompress(data, CHUNK_BYTES)
        except zlib.error:
            raise RefusedError(SpamdCode.DATA) from None
        data = stream.unconsumed_tail
        if stream.unused_data:
            raise RefusedError(SpamdCode.DATA)
