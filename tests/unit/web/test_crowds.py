"""Many hostile clients at once: authenticated clients still get answers."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from spamguard.web import app
from spamguard.web.auth import CredentialKind
from tests.support.certificates import self_signed, server_context
from tests.support.processes import own_descriptors
from tests.support.waiting import PATIENCE, eventually
from tests.unit.web.served import ANNA, OPERATOR, ROOT, Served, served

pytestmark = pytest.mark.slow

CLASSES = f"{ROOT}/classes"
LOGIN = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 999\r\n\r\nlink="
)


@contextmanager
def connections(running: Served, number: int, content: bytes) -> Iterator[list[socket.socket]]:
    """So many that send this and then nothing more."""
    opened = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(number)]
    try:
        for one in opened:
            one.sendall(content)
        yield opened
    finally:
        for one in opened:
            one.close()


def test_clients_without_tls_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake is no connection yet, and has a file descriptor all the same."""
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 10)
    pem = self_signed(tmp_path)
    with served(tmp_path, tls=server_context(pem)) as running:
        running.verify = ssl.create_default_context(cafile=pem)
        client = running.client(ANNA)
        assert client.get(CLASSES).status_code == 200
        before = own_descriptors()
        with connections(running, 60, b""):
            assert [running.client(ANNA).get(CLASSES).status_code for _ in range(3)] == [200] * 3
        # asyncio gives up a handshake after 60 s
        eventually(lambda: own_descriptors() <= before + 4, "all are gone", 3 * PATIENCE)


def test_strangers_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they are being answered, slowly, since they send slowly."""
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 12)
    monkeypatch.setattr(app, "MAX_ANONYMOUS", 3)
    with served(tmp_path) as running, connections(running, 12, LOGIN):
        client = running.client(ANNA)
        eventually(lambda: client.get(CLASSES).status_code == 200, "most are gone")
        assert [running.client(ANNA).get(CLASSES).status_code for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("length", [999, 20_000])
def test_strangers_who_are_refused_leave_room_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Because there are too many of them, or for the length of their body, which never comes."""
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 12)
    monkeypatch.setattr(app, "MAX_ANONYMOUS", 3)
    request = LOGIN.replace(b"999", b"%d" % length)
    with served(tmp_path) as running, connections(running, 40, request):
        clients = [running.client(ANNA) for _ in range(5)]
        assert [client.get(CLASSES).status_code for client in clients] == [200] * 5


@pytest.mark.parametrize("path", ["/login", f"{ROOT}/judge"])
def test_a_body_beyond_the_limit_of_strangers_is_refused_at_the_head(
    tmp_path: Path, path: str
) -> None:
    """Nobody waits for what would come slowly, until that is too late (408)."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
    with served(tmp_path) as running:
        assert running.raw(head.encode()).startswith(b"HTTP/1.1 401")


def test_authenticated_clients_keep_their_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 4)
    with (
        served(tmp_path) as running,
        socket.create_connection(("127.0.0.1", running.port), 10) as slow,
    ):
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        head = (
            b"POST "
            + ROOT.encode()
            + b"/judge HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            + token
        )
        slow.sendall(
            head
            + b"\r\nContent-Type: message/rfc822\r\nContent-Length: 17\r\nConnection: close\r\n\r\n"
            + b"Subject: "
        )
        with connections(running, 20, LOGIN):
            time.sleep(0.3)
            slow.sendall(b"x\r\n\r\nxyz")
            assert slow.recv(100).startswith(b"HTTP/1.1 200")


def test_one_address_leaves_others_room_to_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly it sends forms."""
    monkeypatch.setattr(app, "MAX_ANONYMOUS", 6)
    monkeypatch.setattr(app, "MAX_ANONYMOUS_PER_ADDRESS", 3)
    with served(tmp_path) as running:
        login = f"{running.url}/login"
        with (
            connections(running, 12, LOGIN),
            httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as other,
        ):
            eventually(lambda: httpx.get(login).status_code == 503, "this one has what it may have")
            assert other.get(login).status_code == 200
        eventually(lambda: httpx.get(login).status_code == 200, "it has room again")


def test_one_person_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly their programs hand mail over."""
    monkeypatch.setattr(app, "MAX_REQUESTS", 8)
    monkeypatch.setattr(app, "MAX_REQUESTS_PER_PERSON", 3)
    with served(tmp_path) as running:
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        head = (
            b"POST "
            + ROOT.encode()
            + b"/judge HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            + token
        )
        anna, operator = running.client(ANNA), running.client(OPERATOR)
        with connections(
            running, 12, head + b"\r\nContent-Type: message/rfc822\r\nContent-Length: 99\r\n\r\nx"
        ):
            eventually(lambda: anna.get(CLASSES).status_code == 503, "she has what she may have")
            assert operator.get(CLASSES).status_code == 200
        eventually(lambda: anna.get(CLASSES).status_code == 200, "she has room again")


def test_nonsense_after_a_refusal_is_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is turned away may send what it likes."""
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 1)
    begin = LOGIN.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    with served(tmp_path) as running, connections(running, 1, begin) as (one,):
        assert one.recv(100).startswith(b"HTTP/1.1 503")
        one.sendall(b"zz\r\n\r\n")
        eventually(lambda: hung_up(one), "hung up")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def hung_up(one: socket.socket) -> bool:
    """Whether the other side has."""
    try:
        return one.recv(100, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
