"""Many hostile clients at once: authenticated clients still get answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spamguard.web import monitor, requests
from tests.support.waiting import eventually
from tests.unit.web.served import ANNA, ROOT, Served, served

pytestmark = pytest.mark.slow

CLASSES = f"{ROOT}/model"
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


def test_strangers_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they are being answered, slowly, since they send slowly."""
    monkeypatch.setattr(monitor, "MAX_PAGE_CONNECTIONS", 12)
    monkeypatch.setattr(requests, "MAX_ANONYMOUS", 3)
    with served(tmp_path) as running, connections(running, 12, LOGIN):
        client = running.client(ANNA)
        eventually(lambda: client.get(CLASSES).status_code == 200, "most are gone")
        assert [running.client(ANNA).get(CLASSES).status_code for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("path", ["/login", f"{ROOT}/judge"])
def test_a_body_beyond_the_limit_of_strangers_is_refused_at_the_head(
    tmp_path: Path, path: str
) -> None:
    """Nobody waits for what would come slowly, until that is too late (408)."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
    with served(tmp_path) as running:
        assert running.raw(head.encode()).startswith(b"HTTP/1.1 401")


def test_nonsense_after_a_refusal_is_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is turned away may send what it likes."""
    monkeypatch.setattr(monitor, "MAX_PAGE_CONNECTIONS", 1)
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
