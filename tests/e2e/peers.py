"""A scripted next hop and a client that sends bytes unchanged, both on plain sockets."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE

OFFERED = (
    b"250-hop\r\n250-PIPELINING\r\n250-SIZE 100000000\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n"
    b"250-DSN\r\n250 ENHANCEDSTATUSCODES\r\n"
)
USUAL: Mapping[str, bytes] = {
    "greeting": b"220 hop ESMTP\r\n",
    "EHLO": OFFERED,
    "LHLO": OFFERED,
    "DATA": b"354 go on\r\n",
    "QUIT": b"221 2.0.0 bye\r\n",
}
# What any server that is known takes for the end of a message, NULs left out.
ANY_END = re.compile(rb"(?:\r\n|\r|\n)\.(?:\r\n|\r|\n)")

Said = bytes | None | Callable[["Heard", bytes], bytes | None]
"""What the hop says: these bytes, nothing and it hangs up, or whatever comes out of this for the
session and the line.
"""


@dataclass
class Heard:
    """The input of one session. messages: as on the wire, up to the CRLF before the final dot."""

    lines: list[bytes] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    recipients: int = 0

    def said(self, verb: bytes) -> list[bytes]:
        """The lines with this verb."""
        return [line for line in self.lines if line.upper().startswith(verb)]


class Hop:
    """Answers each verb as `answers` says, "250 2.0.0 ok" otherwise; "dot" is the end of data.
    each: LMTP's replies to it.
    """

    def __init__(self, answers: Mapping[str, Said] | None = None, *, each: bool = False) -> None:
        self.port = free_port()
        self.answers: dict[str, Said] = {**USUAL, **(answers or {})}
        self.sessions: list[Heard] = []
        self._each = each
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def messages(self) -> list[bytes]:
        """All messages, dots taken off."""
        return [
            (b"\r\n" + raw).replace(b"\r\n.", b"\r\n")[2:]
            for session in self.sessions
            for raw in session.messages
        ]

    def forget(self) -> None:
        """Forget the input so far; sessions may go on."""
        for session in self.sessions:
            session.lines.clear()
            session.messages.clear()

    def lines(self, verb: bytes) -> list[bytes]:
        """The lines with this verb of all sessions."""
        return [line for session in self.sessions for line in session.said(verb)]

    @contextmanager
    def serving(self) -> Iterator[Hop]:
        """Listen on loopback."""
        with socket.create_server(("127.0.0.1", self.port), backlog=256) as listening:
            accepting = threading.Thread(target=self._accept, args=(listening,))
            accepting.start()
            try:
                yield self
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                accepting.join()
                for one in list(self._open):
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                for thread in self._threads:
                    thread.join()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                return
            self._open.add(connected)
            thread = threading.Thread(target=self._serve, args=(connected,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        heard = Heard()
        self.sessions.append(heard)
        with connected, suppress(OSError), connected.makefile("rb") as stream:
            if self._say(connected, heard, "greeting", b""):
                while (line := stream.readline()) and self._obey(
                    connected, stream, heard, line.rstrip(b"\r\n")
                ):
                    pass
        self._open.discard(connected)

    def _obey(
        self, connected: socket.socket, stream: Iterator[bytes], heard: Heard, line: bytes
    ) -> bool:
        verb = line.split(b" ")[0].decode("ascii", "replace").upper()
        heard.lines.append(line)
        if verb == "MAIL":
            heard.recipients = 0
        said = self._say(connected, heard, verb, line)
        if said is None or verb == "QUIT":
            return False
        if verb == "RCPT" and said.startswith(b"25"):
            heard.recipients += 1
        if verb == "DATA" and said.startswith(b"354"):
            return self._take(connected, stream, heard)
        return True

    def _take(self, connected: socket.socket, stream: Iterator[bytes], heard: Heard) -> bool:
        message = bytearray()
        before = b"\r\n"
        for line in stream:
            if line == b".\r\n" and before.endswith(b"\r\n"):
                break
            message += line
            before = line
        else:
            return False  # half a message: forgotten
        heard.messages.append(bytes(message))
        said = [
            self._say(connected, heard, "dot", b"%d" % at)
            for at in range(heard.recipients if self._each else 1)
        ]
        return None not in said

    def _say(self, connected: socket.socket, heard: Heard, step: str, line: bytes) -> bytes | None:
        said = self.answers.get(step, b"250 2.0.0 ok\r\n")
        text = said(heard, line) if callable(said) else said
        if text:
            connected.sendall(text)
        return text


class Client:
    """One connection to the daemon."""

    def __init__(self, port: int, seconds: float = PATIENCE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Say these bytes."""
        self.socket.sendall(data)

    def reply(self) -> bytes:
        """The next reply, all its lines; b"" when the daemon has hung up."""
        lines = []
        while line := self._stream.readline():
            lines.append(line)
            if line[3:4] != b"-":
                break
        return b"".join(lines)

    def ask(self, line: bytes) -> bytes:
        """One command, its line end added; the reply."""
        self.send(line + b"\r\n")
        return self.reply()

    def hello(self, verb: bytes = b"EHLO") -> Client:
        """Past the greeting and EHLO."""
        assert self.reply().startswith(b"220")
        assert self.ask(verb + b" client.example").startswith(b"250")
        return self

    def begin(self, *recipients: bytes, sender: bytes = b"<a@example.org>") -> Client:
        """MAIL and RCPT, both accepted."""
        assert self.ask(b"MAIL FROM:" + sender).startswith(b"250")
        for one in recipients or (b"<b@example.net>",):
            assert self.ask(b"RCPT TO:" + one).startswith(b"250")
        return self

    def data(self, message: bytes) -> bytes:
        """DATA and the message as it is, the final dot behind it; the reply."""
        assert self.ask(b"DATA").startswith(b"354")
        self.send(message + b".\r\n")
        return self.reply()
