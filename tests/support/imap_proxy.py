"""A proxy before an IMAP server that writes down every command, and can cut a connection after one.

It takes a server's extensions away too: what it does not know is answered with BAD.
"""

from __future__ import annotations

import re
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Session:
    client: socket.socket
    server: socket.socket
    user: str = ""
    last: str = ""
    ends_after: bytes = b""  # the answer that the client does not get any more

    def end(self) -> None:
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class ImapProxy:
    """commands: user and command, without tags. cuts: connections that were cut."""

    target: int
    unknown: Sequence[str] = ()
    listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    commands: list[tuple[str, str]] = field(default_factory=list)
    cuts: int = 0
    change: Callable[[bytes], bytes] = lambda piece: piece  # of what the server says
    _sessions: list[_Session] = field(default_factory=list)
    _left: dict[str, int] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def is_idle(self, user: str) -> bool:
        """Whether both connections of a user wait in IDLE."""
        last = [each.last for each in list(self._sessions) if each.user == user]
        return len(last) == 2 and set(last) == {"IDLE"}

    def cut_after(self, user: str, commands: int) -> None:
        """Cut the connection on which the user's command of this number from now on comes: an even
        one is still done by the server, an odd one is not.
        """
        self._left[user] = commands

    def is_armed(self, user: str) -> bool:
        return self._left.get(user, 0) > 0

    def cut_all(self, user: str) -> None:
        for session in list(self._sessions):
            if session.user == user:
                session.end()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            session = _Session(client, server)
            self._sessions.append(session)
            try:
                self._pass_on(session)
            except OSError:
                pass
            finally:
                self._sessions.remove(session)

    def _pass_on(self, session: _Session) -> None:
        asked, answered = b"", b""
        while True:
            ready, _, _ = select.select([session.client, session.server], [], [])
            if session.client in ready:
                asked += (piece := session.client.recv(1 << 16))
                *lines, asked = asked.split(b"\r\n")
                for line in lines:
                    self._ask(session, line)
                if not piece:
                    return
            if session.server in ready:
                piece = session.server.recv(1 << 16)
                if session.ends_after:
                    answered += piece
                    if re.search(rb"(?m)^" + session.ends_after, answered) or not piece:
                        return
                elif piece:
                    session.client.sendall(self.change(piece))
                else:
                    return

    def _ask(self, session: _Session, line: bytes) -> None:
        tag, _, rest = line.decode("utf-8").partition(" ")
        if rest.startswith("LOGIN "):
            session.user, rest = rest.split()[1].strip('"'), "LOGIN"
        self.commands.append((session.user, rest or tag))
        session.last = rest or tag
        if any(word in rest for word in self.unknown):
            session.client.sendall(f"{tag} BAD unknown\r\n".encode())
            return
        if rest and self.is_armed(session.user):
            self._left[session.user] = left = self._left[session.user] - 1
            if not left:
                self.cuts += 1
                if self.cuts % 2:
                    raise ConnectionAbortedError
                session.ends_after = rb"\+ " if rest == "IDLE" else re.escape(tag).encode()
        session.server.sendall(line + b"\r\n")


@contextmanager
def before(port: int, unknown: Sequence[str] = ()) -> Iterator[ImapProxy]:
    """A proxy before the server at this port. unknown: words of commands that it refuses."""
    proxy = ImapProxy(port, unknown)
    with proxy.listening:
        threading.Thread(target=proxy.run, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.listening.shutdown(socket.SHUT_RDWR)
            for user in {each.user for each in proxy._sessions}:
                proxy.cut_all(user)
