"""A mail server on a real socket that obeys a milter, as Postfix and Sendmail do."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from spamguard.servers.milter import MilterCommand, encode_packet
from tests.support.waiting import PATIENCE

ALL = struct.pack("!III", 6, 0x1FF, 0x1FFFFF)
OLD = struct.pack("!III", 2, 0x3F, 0x7F)


@dataclass
class Answer:
    """What came of a message. edits: packets before the last one, which is the reply."""

    reply: bytes
    text: bytes = b""
    edits: list[tuple[bytes, bytes]] = field(default_factory=list)
    progress: int = 0

    def letters(self) -> bytes:
        return b"".join(letter for letter, _ in self.edits)

    def applied(self, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The header afterwards; fields: name and value of each before."""
        left = list(fields)
        for letter, data in self.edits:
            number = int.from_bytes(data[:4]) if letter in (b"i", b"m") else 0
            name, value = data[4:].split(b"\0")[:2] if letter in (b"i", b"m") else (b"", b"")
            if letter == b"i":
                left.insert(number, (name, value))
            elif letter == b"m":
                assert value == b""
                at = [place for place, (one, _) in enumerate(left) if one.lower() == name.lower()]
                del left[at[number - 1]]
        return left


class Mta:
    """One connection to a milter."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.steps = 0

    def send(self, command: MilterCommand, data: bytes = b"") -> None:
        self.writer.write(encode_packet(command.value, data))

    async def heard(self) -> tuple[bytes, bytes]:
        """The next packet; IncompleteReadError when there is none any more."""
        (length,) = struct.unpack(
            "!I", await asyncio.wait_for(self.reader.readexactly(4), PATIENCE)
        )
        raw = await self.reader.readexactly(length)
        return raw[:1], raw[1:]

    async def say(self, command: MilterCommand, data: bytes = b"", no_reply: int = 0) -> None:
        """A command that is answered unless that step was agreed on."""
        self.send(command, data)
        if not self.steps & no_reply:
            assert await self.heard() == (b"c", b"")

    async def agree(self, offer: bytes = ALL) -> tuple[int, int, int]:
        self.send(MilterCommand.OFFER, offer)
        letter, data = await self.heard()
        assert letter == b"O"
        version, actions, self.steps = struct.unpack("!III", data)
        return version, actions, self.steps

    async def client(
        self,
        name: bytes = b"mail.example.org",
        address: bytes = b"192.0.2.1",
        helo: bytes = b"helo.example.org",
    ) -> None:
        await self.say(
            MilterCommand.CONNECT,
            name + b"\0" + b"4" + struct.pack("!H", 4711) + address + b"\0",
            0x1000,
        )
        await self.say(MilterCommand.HELLO, helo + b"\0", 0x2000)

    async def envelope(
        self,
        *recipients: bytes,
        sender: bytes = b"a@example.org",
        queue: bytes = b"4QuEuE",
        login: bytes = b"",
    ) -> None:
        self.send(MilterCommand.MACROS, b"Mi\0" + queue + b"\0{auth_authen}\0" + login + b"\0")
        await self.say(MilterCommand.SENDER, b"<" + sender + b">\0BODY=8BITMIME\0", 0x4000)
        for recipient in recipients or (b"b@example.net",):
            await self.say(MilterCommand.RECIPIENT, b"<" + recipient + b">\0", 0x8000)

    async def content(self, raw: bytes, chunk: int = 65535) -> list[tuple[bytes, bytes]]:
        """All but the end of a message with CRLF line ends; the fields as they were shown."""
        head, _, body = raw.partition(b"\r\n\r\n")
        fields = []
        for line in (
            head.replace(b"\r\n", b"\n")
            .replace(b"\n ", b"\0 ")
            .replace(b"\n\t", b"\0\t")
            .split(b"\n")
        ):
            name, _, value = line.replace(b"\0", b"\n").partition(b":")
            shown = value if self.steps & 0x100000 else value.removeprefix(b" ")
            fields.append((name, shown))
            await self.say(MilterCommand.FIELD, name + b"\0" + shown + b"\0", 0x80)
        await self.say(MilterCommand.END_OF_HEADER, no_reply=0x40000)
        for at in range(0, len(body), chunk):
            await self.say(MilterCommand.BODY, body[at : at + chunk], 0x80000)
        return fields

    async def end(self, data: bytes = b"") -> Answer:
        """What the milter makes of the message."""
        self.send(MilterCommand.END_OF_MESSAGE, data)
        answer = Answer(b"")
        while (heard := await self.heard())[0] in (b"i", b"m", b"h", b"q", b"p"):
            if heard[0] == b"p":
                answer.progress += 1
            else:
                answer.edits.append(heard)
        answer.reply, answer.text = heard
        return answer

    async def message(
        self, raw: bytes, *recipients: bytes
    ) -> tuple[Answer, list[tuple[bytes, bytes]]]:
        """A whole one; what came of it, and its header afterwards."""
        await self.envelope(*recipients)
        fields = await self.content(raw)
        answer = await self.end()
        return answer, answer.applied(fields)

    async def hung_up(self) -> bool:
        """Whether the milter has, with nothing more to say."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, OSError):
            await self.writer.wait_closed()
