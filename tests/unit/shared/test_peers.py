"""Requests between nodes: what is believed, and what a node may answer."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spamguard.shared import peers
from spamguard.shared.peers import (
    MAX_ANSWER_BYTES,
    PeerAnswers,
    PeerClient,
    PeerError,
    PeerGate,
    PeerNode,
    PeerRefusalError,
    peer_key,
    sign,
)
from tests.support import certificates
from tests.support.waiting import PATIENCE

KEY = peer_key(bytes(range(32)))
SECOND = 1_000_000_000
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nword"


# ---- checking


def field(method: str, target: str, moment: int, key: bytes = KEY) -> str:
    return f"{moment} asking {sign(key, method, target, moment, 'asking')}"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_write_counts_once_within_the_window(method: str) -> None:
    gate, now, target = PeerGate(KEY, "asked"), time.time_ns() + SECOND, "/p?to=asked"
    ahead = field(method, target, now + 29 * SECOND)
    gate.check(ahead, method, target, now)
    for later in (0, 1, 30, 58, 59):
        with pytest.raises(PeerError, match="come before"):
            gate.check(ahead, method, target, now + later * SECOND)
    with pytest.raises(PeerError, match="clocks"):  # it is forgotten when it is too old
        gate.check(ahead, method, target, now + 61 * SECOND)
    gate.check(field(method, target, now + 1), method, target, now)


@pytest.mark.parametrize("target", ["/p", "/p?to=", "/p?to=other", "/p?to=asked&to=asked"])
def test_a_request_is_for_one_node(target: str) -> None:
    now = time.time_ns()
    with pytest.raises(PeerError, match="another node"):
        PeerGate(KEY, "asked").check(field("GET", target, now), "GET", target, now)


# ---- asking


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no node absent."""
    monkeypatch.setattr(peers, "ASK_SECONDS", PATIENCE)


@contextmanager
def node(
    name: str, *pieces: bytes, pause: float = 0.0, tls: ssl.SSLContext | None = None
) -> Iterator[PeerNode]:
    """A node that answers each request with these bytes and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer(connection: socket.socket) -> None:
            try:
                with tls.wrap_socket(connection, server_side=True) if tls else connection as peer:
                    peer.recv(65536)
                    for piece in pieces:
                        peer.sendall(piece)
                        time.sleep(pause)
            except OSError:
                return

        def work() -> None:
            while True:
                try:
                    connection, _ = door.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            port = door.getsockname()[1]
            yield PeerNode(name, name, f"{'https' if tls else 'http'}://127.0.0.1:{port}")
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def ask(*nodes: PeerNode, ca: Path | None = None) -> PeerAnswers[str]:
    async def run() -> PeerAnswers[str]:
        client = PeerClient(KEY, "asking", lambda: nodes, ca)
        try:
            return await client.ask_all("/peer/x", {}, bytes.decode)
        finally:
            await client.close()

    return asyncio.run(run())


TROUBLES = {
    "large": (
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_ANSWER_BYTES + 1),
        "has more than 8,388,608 bytes",
    ),
    "moved": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n\r\n", "answer 302"),
    "not text": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff", "makes no sense"),
    "not HTTP": (b"220 mx.example ESMTP\r\n\r\n", "illegal status line"),
    "short": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nword", "peer closed connection"),
    "nothing": (b"", "disconnected"),
    "refusing": (
        b"HTTP/1.1 401 No\r\nContent-Length: 24\r\n\r\n" + b'{"detail": "the\\nclocks"}'[:24],
        "answer 401",
    ),
    "explaining": (
        b'HTTP/1.1 503 No\r\nContent-Length: 17\r\n\r\n{"detail":"a\\nb"}',
        "answer 503 a\ufffdb",
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_answer_that_makes_no_sense(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    answer, text = TROUBLES[trouble]
    with node("well", OK) as well, node("bad", answer) as bad, caplog.at_level(logging.WARNING):
        assert ask(bad, well) == ([(well, "word")], ["bad"])
    (line,) = caplog.messages
    assert line.startswith("node bad did not answer: ")
    assert text in line
    assert "\n" not in line


def test_certificates_are_verified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pem = certificates.self_signed(tmp_path)
    with node("b", OK, tls=certificates.server_context(pem)) as by_address:
        by_name = by_address._replace(url=by_address.url.replace("127.0.0.1", "localhost"))
        assert ask(by_name, ca=pem).answers == [(by_name, "word")]
        for peer, ca, reason in (
            (by_name, None, "self-signed certificate"),
            (by_address, pem, "IP address mismatch"),
            (by_name, tmp_path / "gone.pem", "No such file"),
        ):
            caplog.clear()
            assert ask(peer, ca=ca).absent == ["b"]
            assert reason in caplog.text


def test_acting_tells_why_it_was_refused() -> None:
    async def run(peer: PeerNode) -> None:
        client = PeerClient(KEY, "asking", list, None)
        try:
            await client.act(peer, "POST", "/peer/x", {}, bytes.decode)
        finally:
            await client.close()

    answer = b'HTTP/1.1 403 No\r\nContent-Length: 20\r\n\r\n{"detail":"not you"}'
    with node("b", answer) as peer, pytest.raises(PeerRefusalError) as error:
        asyncio.run(run(peer))
    assert (error.value.status, error.value.detail) == (403, "not you")
