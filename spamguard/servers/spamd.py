"""A verdict in words, for people who ask from a program that shows a text. Pure: what a message
brings along cannot become a line of it.

Who sent a message and to whom. The protocol has no words for it: Exim, Haraka and spamass-milter
put header fields on top. Pure.

Must never believe fields further down: those above them were there before, so these came with the
message.

What is said in spamd's protocol, versions 1.0 to 1.5 (spamd/PROTOCOL in SpamAssassin): requests
parsed, answers written. Pure.

A request is a line with method and version, header fields but in version 1.0, an empty line, and a
message. Lines end in CRLF; a bare LF is taken too.

One request of one client of spamd's protocol, from its first line to the answer; the connection
ends with it.

Must never answer anything but a refusal to what did not come in whole, and never inflate more than
a message may have.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import Iterable
from contextlib import closing
from enum import Enum, StrEnum
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Action
from spamguard.engine.policy import REQUIRED_SCORE
from spamguard.learning.lessons import TrainingOutcome
from spamguard.limits import LimitExceeded, quota_key
from spamguard.proxy import outgoing
from spamguard.proxy.scan import ScanRequest, ScanResult, ScanService, format_words
from spamguard.servers.listener import (
    CHUNK_BYTES,
    ClientTimeout,
    ConnectionClosed,
    Conversation,
    IncomingMessage,
    Rejection,
    ServerContext,
)
from spamguard.spool import Spool, SpoolView

_log = logging.getLogger("spamguard.doors")


def format_report(judged: ScanResult, *, with_weights: bool) -> str:
    """Some lines, CRLF line ends."""
    if judged.scan is None:
        lines = [f"spamguard: not judged ({judged.reason}), id {judged.id}"]
    else:
        told = [f"    {word}" for word in format_words(judged, with_weights=with_weights)]
        lines = [
            f"spamguard: {judged.label}, {judged.score:.1f} points of {REQUIRED_SCORE:.1f} required, id {judged.id}",
            "words:",
            *told,
        ]
    return "".join(f"{line}\r\n" for line in lines)


MAX_HEAD_BYTES = 64 << 10  # bytes of a message that are looked at
_MAX_RECIPIENTS = 1000  # that are remembered
_MAX_ADDRESS_LENGTH = 512  # letters of an address
_MBOX_LINE = re.compile(rb"From [^\n]*+\n")  # Exim sends a mailbox of one message
_ENVELOPE_FIELD = re.compile(
    rb"X-Envelope-(From|To):((?:[^\n]*+\n(?=[ \t])|)*+[^\n]*+)\n", re.IGNORECASE
)


class SpamdEnvelope(NamedTuple):
    """Addresses without brackets, "" and () where nothing is said."""

    sender: str = ""
    recipients: tuple[str, ...] = ()


def parse_envelope(head: bytes) -> SpamdEnvelope:
    """What the beginning of a message says of its envelope."""
    line = _MBOX_LINE.match(head)
    position, values = line.end() if line else 0, dict[bytes, list[bytes]]()
    while field := _ENVELOPE_FIELD.match(head, position):
        values.setdefault(field[1].lower(), []).append(field[2])
        position = field.end()
    recipients = (
        _parse_address(one) for value in values.get(b"to", ()) for one in value.split(b",")
    )
    return SpamdEnvelope(
        _parse_address(values.get(b"from", [b""])[0]),
        tuple(filter(None, recipients))[:_MAX_RECIPIENTS],
    )


def _parse_address(value: bytes) -> str:
    return (
        value.decode("utf-8", "replace")
        .strip()
        .removeprefix("<")
        .removesuffix(">")[:_MAX_ADDRESS_LENGTH]
    )


MAX_LINE_BYTES = 8192  # bytes of a line of a request, its end included
MAX_FIELDS = 255
_REQUEST_LINE = re.compile(rb"([A-Z_]{1,20}) SPAMC/([0-9])\.([0-9]{1,2})")
_REQUEST_FIELD = re.compile(rb"([A-Za-z-]{1,40})[ \t]*:[ \t]*(.*)", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,12}")
_PING_FIELDS_VERSION = (1, 5)  # before that, PING and SKIP have no header fields


class SpamdMethod(StrEnum):
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


class SpamdCode(Enum):
    """Codes of answers (sysexits.h), with a fixed text each."""

    OK = 0, "EX_OK"
    DATA = 65, "Message cannot be taken"
    UNAVAILABLE = 69, "Service unavailable"
    TEMPORARY = 75, "Try again later"
    PROTOCOL = 76, "Request not understood"
    FORBIDDEN = 77, "Not allowed"
    TIMEOUT = 79, "Too slow"  # spamd's own number


class SpamdError(Exception):
    """A request that gets no other answer. about: what is wrong, fixed words."""

    def __init__(self, code: SpamdCode, about: str = "") -> None:
        super().__init__(about)
        self.code = code
        self.detail = about


class SpamdRequest(NamedTuple):
    """What was said before the message. length: of the message as it comes, None: until the client
    sends no more.

    label: for TELL, "" none. set, remove: which databases the lesson is for, or to be taken out of.
    """

    method: SpamdMethod
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
        return (
            self.version >= _PING_FIELDS_VERSION
            if self.method in (SpamdMethod.PING, SpamdMethod.SKIP)
            else self.version > (1, 0)
        )


def parse_request_line(line: bytes) -> SpamdRequest:
    """The first line, without its end. RefusedError."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None or found[1].decode() not in SpamdMethod.__members__:
        raise SpamdError(SpamdCode.PROTOCOL, "unknown method or version")
    return SpamdRequest(SpamdMethod(found[1].decode()), (int(found[2]), int(found[3])))


def apply_field(request: SpamdRequest, line: bytes) -> SpamdRequest:
    """The request with one more header field, a line without its end; unknown ones change nothing.
    RefusedError.
    """
    found = _REQUEST_FIELD.fullmatch(line)
    if found is None:
        raise SpamdError(SpamdCode.PROTOCOL, "not a header field")
    name, value = found[1].lower(), found[2].strip()
    if name == b"content-length":
        if not _LENGTH.fullmatch(value):
            raise SpamdError(SpamdCode.PROTOCOL, "not a length")
        return request._replace(length=int(value))
    if name == b"compress":
        if value.lower() != b"zlib":
            raise SpamdError(SpamdCode.PROTOCOL, "unknown compression")
        return request._replace(compressed=True)
    if name == b"user":
        return request._replace(user=value.decode("utf-8", "replace"))
    if name == b"message-class":
        return request._replace(label=value.decode("latin-1").lower())
    if name == b"set":
        return request._replace(set=_parse_databases(value))
    return request._replace(remove=_parse_databases(value)) if name == b"remove" else request


def _parse_databases(value: bytes) -> frozenset[str]:
    return frozenset(word.strip() for word in value.decode("latin-1").lower().split(","))


def check_request(request: SpamdRequest) -> None:
    """RefusedError for what contradicts itself, once all fields are there."""
    if request.compressed and request.length is None:
        raise SpamdError(SpamdCode.PROTOCOL, "compressed without a length")
    if request.method is not SpamdMethod.TELL:
        return
    if "local" in request.set & request.remove:
        raise SpamdError(SpamdCode.PROTOCOL, "both set and remove")
    if "local" not in request.set | request.remove:
        raise SpamdError(SpamdCode.UNAVAILABLE, "only local lessons are taken")
    if "local" in request.set and request.label not in ("spam", "ham"):
        raise SpamdError(SpamdCode.PROTOCOL, "unknown class")


def encode_refusal(error: SpamdError) -> bytes:
    """The answer to what is not done."""
    number, text = error.code.value
    return f"SPAMD/1.1 {number} {text}{': ' if error.detail else ''}{error.detail}\r\n\r\n".encode(
        "ascii"
    )


PONG = b"SPAMD/1.5 0 PONG\r\n"


def encode_answer_head(request: SpamdRequest, spam: str, length: int | None) -> bytes:
    """What stands before the content of an answer. spam: the value of the field `Spam`; length: of
    the content, None: there is none.

    Old clients look for one of the two fields only, and at its place: before version 1.3 that is
    the length where a message is sent back, the verdict otherwise; before 1.2 there are no fields
    with a message.
    """
    sends_back = request.method in (SpamdMethod.PROCESS, SpamdMethod.HEADERS)
    fields = []
    if length is not None and (
        request.version >= (1, 3) or (sends_back and request.version >= (1, 2))
    ):
        fields.append(f"Content-length: {length}\r\n")
    if request.version >= (1, 3) or not sends_back:
        fields.append(f"Spam: {spam}\r\n")
    if sends_back and not fields:
        return b"SPAMD/1.0 0 EX_OK\r\n"
    return "".join(("SPAMD/1.1 0 EX_OK\r\n", *fields, "\r\n")).encode("ascii")


def format_verdict(
    request: SpamdRequest, score: float, required: float, *, is_unwanted: bool
) -> str:
    """The value of the field `Spam`."""
    words = ("Yes", "No") if request.method is SpamdMethod.REPORT_IFSPAM else ("True", "False")
    return f"{words[not is_unwanted]} ; {score:.1f} / {required:.1f}"


def encode_tell_answer(field: str) -> bytes:
    """The answer to TELL. field: DidSet or DidRemove; "": it changed nothing."""
    return (
        b"SPAMD/1.1 0 EX_OK\r\n"
        + (f"{field}: local\r\n" if field else "").encode("ascii")
        + b"\r\n"
    )


# An error that is raised time and again would keep all that it has passed, so they are made when
# needed.
_ERROR_BY_REJECTION = {
    Rejection.TOO_LARGE: (SpamdCode.DATA, "too large"),
    Rejection.TRY_LATER: (SpamdCode.TEMPORARY, ""),
}
_ERROR_BY_OUTCOME = {
    TrainingOutcome.FORBIDDEN: (SpamdCode.FORBIDDEN, "this client may not teach"),
    TrainingOutcome.IMPOSSIBLE: (SpamdCode.DATA, ""),
    TrainingOutcome.TRY_LATER: (SpamdCode.TEMPORARY, ""),
}


class SpamdSession(Conversation):
    """One client."""

    def __init__(
        self, house: ServerContext, asking: ScanService, spool_directory: Path, address: str
    ) -> None:
        super().__init__(house, address)
        self._scan_service = asking
        self._quota_key = quota_key(address, trusted=asking.trusts(address))
        self._spool_directory = spool_directory
        self._buffer = bytearray()
        self._at_eof = False

    def rejection(self, refused: LimitExceeded) -> bytes:
        """One code for too many, another for who is not welcome."""
        too_many, not_listed = (
            SpamdError(SpamdCode.TEMPORARY, "too many connections"),
            SpamdError(SpamdCode.FORBIDDEN),
        )
        return encode_refusal(not_listed if refused is LimitExceeded.NOT_LISTED else too_many)

    async def handle_requests(self) -> None:
        """One request."""
        self._buffer += await self.next_request()
        if not self._buffer:
            return
        try:
            await self._serve()
        except SpamdError as error:
            _log.info("%s: refused: %s %s", self.address, error.code.value[1], error.detail)
            await self._refuse(error)
        except ClientTimeout:
            await self._refuse(SpamdError(SpamdCode.TIMEOUT))
        except ConnectionClosed:
            raise
        except Exception:  # a fault of ours: the client is told, and keeps its message  # noqa: BLE001
            _log.exception("%s: a fault in this request", self.address)
            await self._refuse(SpamdError(SpamdCode.TEMPORARY))

    async def _refuse(self, error: SpamdError) -> None:
        self.close_after_reply()
        await self.send(encode_refusal(error))

    async def _serve(self) -> None:
        request = parse_request_line(await self._read_line())
        if request.has_fields:
            request = await self._read_fields(request)
        if request.method is SpamdMethod.PING:
            self.close_after_reply()  # some send an empty line behind it, some do not
            await self.send(PONG)
        elif request.method is not SpamdMethod.SKIP:
            with closing(
                IncomingMessage(
                    self._spool_directory,
                    self._context.limits,
                    self._context.byte_quota,
                    self._quota_key,
                )
            ) as message:
                await self._receive(request, message)
                await self._answer(request, message.spool)

    async def _read_fields(self, request: SpamdRequest) -> SpamdRequest:
        for _ in range(MAX_FIELDS):
            if not (line := await self._read_line()):
                check_request(request)
                return request
            request = apply_field(request, line)
        raise SpamdError(SpamdCode.PROTOCOL, "too many fields")

    async def _read_line(self) -> bytes:
        """The next line without its end; the end of what is sent ends it too. RefusedError: it is
        too long, or there is none.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE_BYTES:
                raise SpamdError(SpamdCode.PROTOCOL, "line too long")
            if not await self._fill_buffer():
                raise SpamdError(SpamdCode.PROTOCOL, "incomplete")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")

    async def _fill_buffer(self) -> bool:
        """Whether there was more."""
        piece = b"" if self._at_eof else await self.read_more()
        self._buffer += piece
        self._at_eof = not piece
        return bool(piece)

    # ---- the message

    async def _receive(self, request: SpamdRequest, message: IncomingMessage) -> None:
        """All of it. RefusedError: it is not as long as was said, or too large."""
        left, inflating = request.length, _Inflater() if request.compressed else None
        while left != 0 and (self._buffer or await self._fill_buffer()):
            piece = bytes(
                self._buffer[:CHUNK_BYTES]
                if left is None
                else self._buffer[: min(CHUNK_BYTES, left)]
            )
            del self._buffer[: len(piece)]
            left = None if left is None else left - len(piece)
            for some in inflating.inflate(piece) if inflating else (piece,):
                message.write(some)
                if message.rejection is not None:
                    raise SpamdError(*_ERROR_BY_REJECTION[message.rejection])
                if inflating:
                    await asyncio.sleep(0)  # others have their turn
        if left or self._buffer or (inflating and not inflating.is_complete):
            raise SpamdError(SpamdCode.PROTOCOL, "not as long as was said")

    # ---- the answer

    async def _answer(self, request: SpamdRequest, message: Spool) -> None:
        sender, recipients = parse_envelope(message.read_start(MAX_HEAD_BYTES))
        question = ScanRequest(message, self.address, sender, recipients, user=request.user)
        if request.method is SpamdMethod.TELL:
            await self._teach(request, question)
            return
        judged = await self._scan_service.scan(question)
        if judged.action is Action.DEFER:
            raise SpamdError(SpamdCode.TEMPORARY)
        spam = format_verdict(request, judged.score, REQUIRED_SCORE, is_unwanted=judged.is_unwanted)
        if request.method in (SpamdMethod.PROCESS, SpamdMethod.HEADERS):
            content = outgoing.tag_message(
                message, judged.fields, self._scan_service.scanner.policy.forged
            )
            await self._send_back(request, spam, content)
        else:
            text = self._answer_text(request, judged)
            await self.send(
                encode_answer_head(request, spam, None if text is None else len(text))
                + (text or b"")
            )

    def _answer_text(self, request: SpamdRequest, judged: ScanResult) -> bytes | None:
        """What is sent with the verdict, if anything."""
        if request.method is SpamdMethod.CHECK:
            return None
        if request.method is SpamdMethod.SYMBOLS:
            return judged.symbol.encode() + (b"" if request.version >= (1, 3) else b"\r\n")
        if request.method is SpamdMethod.REPORT or judged.is_unwanted:
            return format_report(
                judged, with_weights=self._scan_service.scanner.policy.tell_probability
            ).encode()
        return b""

    async def _send_back(self, request: SpamdRequest, spam: str, content: SpoolView) -> None:
        if request.method is SpamdMethod.HEADERS:
            await self.send(encode_answer_head(request, spam, len(content.head)) + content.head)
            return
        await self.send(encode_answer_head(request, spam, content.size))
        await self.send_all(content.chunks())

    async def _teach(self, request: SpamdRequest, question: ScanRequest) -> None:
        setting = "local" in request.set
        taught = await self._scan_service.teach(question, request.label if setting else "")
        if taught in _ERROR_BY_OUTCOME:
            raise SpamdError(*_ERROR_BY_OUTCOME[taught])
        changed = taught is TrainingOutcome.ACCEPTED
        await self.send(
            encode_tell_answer(("DidSet" if setting else "DidRemove") if changed else "")
        )


class _Inflater:
    """A zlib stream (RFC 1950), some bytes at a time."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()

    @property
    def is_complete(self) -> bool:
        """Whether it has come to its end."""
        return self._stream.eof

    def inflate(self, data: bytes) -> Iterable[bytes]:
        """What these bytes hold. RefusedError: they are none of such a stream."""
        while data:
            try:
                yield self._stream.decompress(data, CHUNK_BYTES)
            except zlib.error:
                raise SpamdError(SpamdCode.DATA, "not compressed as was said") from None
            data = self._stream.unconsumed_tail
            if self._stream.unused_data:
                raise SpamdError(SpamdCode.DATA, "not compressed as was said")
