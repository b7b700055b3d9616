"""One request of one client of spamd's protocol, from its first line to the answer; the connection ends with it.

Must never answer anything but a refusal to what did not come in whole, and never inflate more than a message may have.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from spamguard.doors.spamd import dialogue, envelope
from spamguard.doors.spamd.dialogue import Code, Method, RefusedError, Request
from spamguard.policy import REQUIRED
from spamguard.proxy import heads, reports
from spamguard.proxy.asking import Asking, Judged, Question
from spamguard.proxy.lessons import Taught
from spamguard.reception.arriving import Arriving, NoRoom
from spamguard.reception.clients import Crowd, sharer
from spamguard.reception.conversation import PIECE, Conversation, Gone, House, Late
from spamguard.settings import Action
from spamguard.spool import Content, Spool

# An error that is raised time and again would keep all that it has passed, so they are made when needed.
_NO_ROOM = {NoRoom.TOO_LARGE: (Code.DATA, "too large"), NoRoom.NOT_NOW: (Code.TEMPORARY, "")}
_TAUGHT = {
    Taught.FORBIDDEN: (Code.FORBIDDEN, "this client may not teach"),
    Taught.IMPOSSIBLE: (Code.DATA, ""),
    Taught.LATER: (Code.TEMPORARY, ""),
}

_log = logging.getLogger("spamguard.doors")


class SpamdSession(Conversation):
    """One client."""

    def __init__(self, house: House, asking: Asking, spool_directory: Path, address: str) -> None:
        super().__init__(house, address)
        self._asking = asking
        self._sharer = sharer(address, trusted=asking.trusts(address))
        self._spool_directory = spool_directory
        self._buffer = bytearray()
        self._ended = False

    def turned_away(self, refused: Crowd) -> bytes:
        """One code for too many, another for who is not welcome."""
        too_many, not_listed = RefusedError(Code.TEMPORARY, "too many connections"), RefusedError(Code.FORBIDDEN)
        return dialogue.refusal(not_listed if refused is Crowd.NOT_LISTED else too_many)

    async def converse(self) -> None:
        """One request."""
        self._buffer += await self.next()
        if not self._buffer:
            return
        try:
            await self._serve()
        except RefusedError as error:
            _log.info("%s: refused: %s %s", self.address, error.code.value[1], error.about)
            await self._refuse(error)
        except Late:
            await self._refuse(RefusedError(Code.TIMEOUT))
        except Gone:
            raise
        except Exception:  # a fault of ours: the client is told, and keeps its message  # noqa: BLE001
            _log.exception("%s: a fault in this request", self.address)
            await self._refuse(RefusedError(Code.TEMPORARY))

    async def _refuse(self, error: RefusedError) -> None:
        self.leave_while_sending()
        await self.say(dialogue.refusal(error))

    async def _serve(self) -> None:
        request = dialogue.parse_first(await self._line())
        if request.has_fields:
            request = await self._with_fields(request)
        if request.method is Method.PING:
            self.leave_while_sending()  # some send an empty line behind it, some do not
            await self.say(dialogue.PONG)
        elif request.method is not Method.SKIP:
            with closing(Arriving(self._spool_directory, self._house.limits, self._house.load, self._sharer)) as message:
                await self._receive(request, message)
                await self._answer(request, message.spool)

    async def _with_fields(self, request: Request) -> Request:
        for _ in range(dialogue.MOST_FIELDS):
            if not (line := await self._line()):
                dialogue.check(request)
                return request
            request = dialogue.with_field(request, line)
        raise RefusedError(Code.PROTOCOL, "too many fields")

    async def _line(self) -> bytes:
        """The next line without its end; the end of what is sent ends it too. RefusedError: it is too long, or there is none."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > dialogue.LONGEST_LINE:
                raise RefusedError(Code.PROTOCOL, "line too long")
            if not await self._more():
                raise RefusedError(Code.PROTOCOL, "incomplete")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")

    async def _more(self) -> bool:
        """Whether there was more."""
        piece = b"" if self._ended else await self.more()
        self._buffer += piece
        self._ended = not piece
        return bool(piece)

    # ---- the message

    async def _receive(self, request: Request, message: Arriving) -> None:
        """All of it. RefusedError: it is not as long as was said, or too large."""
        left, inflating = request.length, _Inflating() if request.compressed else None
        while left != 0 and (self._buffer or await self._more()):
            piece = bytes(self._buffer[:PIECE] if left is None else self._buffer[: min(PIECE, left)])
            del self._buffer[: len(piece)]
            left = None if left is None else left - len(piece)
            for some in inflating.inflated(piece) if inflating else (piece,):
                message.write(some)
                if message.refused is not None:
                    raise RefusedError(*_NO_ROOM[message.refused])
                if inflating:
                    await asyncio.sleep(0)  # others have their turn
        if left or self._buffer or (inflating and not inflating.whole):
            raise RefusedError(Code.PROTOCOL, "not as long as was said")

    # ---- the answer

    async def _answer(self, request: Request, message: Spool) -> None:
        sender, recipients = envelope.told(message.head(envelope.LONGEST))
        question = Question(message, self.address, sender, recipients, user=request.user)
        if request.method is Method.TELL:
            await self._teach(request, question)
            return
        judged = await self._asking.judge(question)
        if judged.action is Action.DEFER:
            raise RefusedError(Code.TEMPORARY)
        spam = dialogue.verdict(request, judged.score, REQUIRED, is_unwanted=judged.is_unwanted)
        if request.method in (Method.PROCESS, Method.HEADERS):
            content = heads.tagged(message, judged.fields, self._asking.scanner.policy.forged)
            await self._send_back(request, spam, content)
        else:
            text = self._text(request, judged)
            await self.say(dialogue.answer(request, spam, None if text is None else len(text)) + (text or b""))

    def _text(self, request: Request, judged: Judged) -> bytes | None:
        """What is sent with the verdict, if anything."""
        if request.method is Method.CHECK:
            return None
        if request.method is Method.SYMBOLS:
            return judged.symbol.encode() + (b"" if request.version >= (1, 3) else b"\r\n")
        if request.method is Method.REPORT or judged.is_unwanted:
            return reports.text(judged, tell_parts=self._asking.scanner.policy.tell_probability).encode()
        return b""

    async def _send_back(self, request: Request, spam: str, content: Content) -> None:
        if request.method is Method.HEADERS:
            await self.say(dialogue.answer(request, spam, len(content.head)) + content.head)
            return
        await self.say(dialogue.answer(request, spam, content.size))
        await self.say_all(content.chunks())

    async def _teach(self, request: Request, question: Question) -> None:
        setting = "local" in request.set
        taught = await self._asking.teach(question, request.label if setting else "")
        if taught in _TAUGHT:
            raise RefusedError(*_TAUGHT[taught])
        changed = taught is Taught.LEARNT
        await self.say(dialogue.told(("DidSet" if setting else "DidRemove") if changed else ""))


class _Inflating:
    """A zlib stream (RFC 1950), some bytes at a time."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()

    @property
    def whole(self) -> bool:
        """Whether it has come to its end."""
        return self._stream.eof

    def inflated(self, data: bytes) -> Iterable[bytes]:
        """What these bytes hold. RefusedError: they are none of such a stream."""
        while data:
            try:
                yield self._stream.decompress(data, PIECE)
            except zlib.error:
                raise RefusedError(Code.DATA, "not compressed as was said") from None
            data = self._stream.unconsumed_tail
            if self._stream.unused_data:
                raise RefusedError(Code.DATA, "not compressed as was said")
