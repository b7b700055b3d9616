"""Hostile input from the network: nothing hangs, costs much, or gets more than a
problem document.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.web import app
from spamguard.web.auth import CredentialKind
from tests.support.processes import own_descriptors
from tests.support.waiting import PATIENCE, eventually
from tests.unit.web.served import ANNA, LETTER, MESSAGE, ROOT, Served, served

pytestmark = pytest.mark.slow  # waits for seconds

HOST = b"Host: localhost\r\n"
CLASSES = ROOT.encode() + b"/classes"


def status(answer: bytes) -> int:
    """Of an answer that says no more than it should."""
    assert b"Traceback" not in answer
    assert b"uvicorn" not in answer.lower()
    assert b"\r\nserver:" not in answer.lower()
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def close(line: bytes, *fields: bytes, content: bytes = b"") -> bytes:
    return (
        line
        + b" HTTP/1.1\r\n"
        + HOST
        + b"".join(field + b"\r\n" for field in fields)
        + b"Connection: close\r\n\r\n"
        + content
    )


def refused_in_the_end(connected: socket.socket, piece: bytes) -> bool:
    """Whether the server hangs up on a client that keeps sending this now and then."""
    until = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            connected.sendall(piece)
            time.sleep(0.05)
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300) + b"\r\n\r\n",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 9" + b"9" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Name: x\r\n" + HOST + b"\r\n",
    ],
    ids=range(16),
)
def test_invalid_requests(server: Served, request_bytes: bytes) -> None:
    answer = server.raw(request_bytes, end=True)
    assert not answer or status(answer) in (400, 411, 413, 421, 431, 501, 505)


@pytest.mark.parametrize("size", [20_000, 200_000, 2_000_000])
def test_a_huge_header(server: Served, size: int) -> None:
    """uvicorn itself refuses what is beyond its own limit, as no valid HTTP."""
    answer = server.raw(close(b"GET /", b"X: " + b"x" * size))
    # who goes on sending may be hung up on before it reads
    assert not answer or status(answer) == (431 if size < 64 << 10 else 400)


def test_many_fields(server: Served) -> None:
    assert status(server.raw(close(b"GET /", *[b"X: y"] * 150))) == 431


@pytest.mark.parametrize(
    "path",
    [
        b"/../../etc/passwd",
        b"/static/../../../etc/passwd",
        b"/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        b"/static/..%5c..",
        b"/static/%00",
        b"//evil.example/",
        b"/\\evil.example",
        b"http://evil.example/",
        b"*",
        b"/%ff%fe",
        b"/" + b"a/" * 2000,
        b"/history/" + b"%0d%0aSet-Cookie:x=y",
        b"/login?link=" + b"%00" * 100,
        b"/?" + b"a=b&" * 2000,
    ],
    ids=range(14),
)
def test_tricks_with_paths(server: Served, path: bytes) -> None:
    answer = server.raw(close(b"GET " + path))
    assert status(answer) in (200, 400, 401, 404, 405)
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert b"set-cookie" not in head
    assert b"\nlocation:" not in head
    assert b"root:" not in answer


def test_a_wrong_end_of_a_message(server: Served) -> None:
    token = server.secret(CredentialKind.TOKEN, ANNA).encode()
    fields = (b"Authorization: Bearer " + token, b"Content-Type: message/rfc822")
    before = len(server.service.messages)
    for more, content in (
        (b"Content-Length: 500", b"x"),
        (b"Transfer-Encoding: chunked", b"5\r\nhel"),
        (b"Transfer-Encoding: chunked", b"zz\r\n"),
    ):
        answer = server.raw(
            close(b"POST " + ROOT.encode() + b"/judge", *fields, more, content=content), end=True
        )
        assert not answer or status(answer) == 400
    assert len(server.service.messages) == before


@pytest.mark.parametrize(
    "first", [b"Content-Length: 5", b"Origin: x\r\nOrigin: x"], ids=["length and chunks", "twice"]
)
def test_bytes_after_an_ambiguous_request_are_no_request(server: Served, first: bytes) -> None:
    """A proxy may have taken it for a part of the request before, and not checked it."""
    token = b"Authorization: Bearer " + server.secret(CredentialKind.TOKEN, ANNA).encode()
    begin = (
        b"POST "
        + CLASSES
        + b" HTTP/1.1\r\n"
        + HOST
        + first
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    answer = server.raw(begin + b"GET " + CLASSES + b" HTTP/1.1\r\n" + HOST + token + b"\r\n\r\n")
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "target", [b"/history?" + b"a=b&" * 20_000, b"/" + b"a" * 60_000, CLASSES + b"?" + b"a" * 9000]
)
def test_a_huge_address(server: Served, target: bytes) -> None:
    token = b"Authorization: Bearer " + server.secret(CredentialKind.TOKEN, ANNA).encode()
    answer = server.raw(close(b"GET " + target, token))
    assert not answer or status(answer) in (414, 431, 400 if len(target) > 64 << 10 else 414)


def test_two_requests_at_once_are_two_answers(server: Served) -> None:
    token = server.secret(CredentialKind.TOKEN, ANNA).encode()
    one = (
        b"GET "
        + CLASSES
        + b" HTTP/1.1\r\n"
        + HOST
        + b"Authorization: Bearer "
        + token
        + b"\r\n\r\n"
    )
    answer = server.raw(one * 20 + close(b"GET /nothing"))
    assert answer.count(b"HTTP/1.1 200") == 20
    assert answer.count(b"HTTP/1.1 404") == 1


def test_an_upgrade_is_no_upgrade(server: Served) -> None:
    answer = server.raw(close(b"GET /login", b"Upgrade: websocket", b"Sec-WebSocket-Key: x"))
    assert status(answer) == 200


def test_slow_clients_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: a header that never ends, one byte now and then; also as the second request of a
    connection.
    """
    monkeypatch.setattr(app, "HEADER_SECONDS", 1.0)
    with served(tmp_path) as running:
        first = b"GET /login HTTP/1.1\r\n" + HOST + b"\r\n"
        for begin in (b"", b"G", first + b"G"):
            with socket.create_connection(("127.0.0.1", running.port), 10) as connected:
                connected.sendall(begin)
                assert refused_in_the_end(connected, b"x")


def test_a_body_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "CHUNK_SECONDS", 0.5)
    with served(tmp_path) as running:
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        fields = (
            b"Authorization: Bearer " + token,
            b"Content-Type: message/rfc822",
            b"Content-Length: 500",
        )
        answer = running.raw(close(b"POST " + ROOT.encode() + b"/judge", *fields, content=b"x"))
        assert status(answer) == 408


@pytest.mark.slow
def test_chunks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily they come, and whichever client sends them."""
    monkeypatch.setattr(app, "BODY_SECONDS", 1.0)
    with served(tmp_path) as running:
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        for fields in ((b"Authorization: Bearer " + token, b"Content-Type: message/rfc822"), ()):
            with socket.create_connection(("127.0.0.1", running.port), 10) as connected:
                connected.sendall(
                    close(
                        b"POST " + ROOT.encode() + b"/judge", *fields, b"Transfer-Encoding: chunked"
                    )
                )
                assert refused_in_the_end(connected, b"1\r\nx\r\n")
        assert running.service.messages == []


def test_clients_that_do_not_read_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WRITE_STALL_SECONDS", 1.5)
    with served(tmp_path) as running:

        async def large(*_: object) -> dict[str, bool]:
            return {"x" * 20_000_000: True}

        running.service.classes = large
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        before = own_descriptors()
        with socket.create_connection(("127.0.0.1", running.port), 10) as connected:
            connected.sendall(close(b"GET " + CLASSES, b"Authorization: Bearer " + token))
            eventually(lambda: own_descriptors() > before + 1, "accepted")
            eventually(lambda: own_descriptors() <= before + 1, "hung up", 20)


def test_silent_clients_keep_no_other_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 10)
    with served(tmp_path) as running:
        idle = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(40)]
        try:
            client = running.client(ANNA)
            assert [client.get(f"{ROOT}/classes").status_code for _ in range(3)] == [200] * 3
        finally:
            for session in idle:
                session.close()


def test_too_many_requests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_REQUESTS", 4)
    with served(tmp_path) as running:
        go = threading.Event()

        async def slow(*_: object) -> dict[str, bool]:
            import asyncio

            await asyncio.to_thread(go.wait, 20)
            return {}

        running.service.classes = slow
        found: list[int] = []
        client = running.client(ANNA)
        threads = [
            threading.Thread(target=lambda: found.append(client.get(f"{ROOT}/classes").status_code))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(found) == 2, "two are refused")
        go.set()
        for thread in threads:
            thread.join()
        assert sorted(found) == [200] * 4 + [503] * 2


def test_strangers_do_not_displace_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By forms that come slowly."""
    monkeypatch.setattr(app, "MAX_ANONYMOUS", 3)
    with served(tmp_path) as running:
        slow = close(
            b"POST /login",
            b"Content-Type: application/x-www-form-urlencoded",
            b"Content-Length: 999",
            content=b"link=",
        )
        idle = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(10)]
        try:
            for session in idle:
                session.sendall(slow)
            eventually(
                lambda: httpx.get(f"{running.url}/login").status_code == 503, "others are sent away"
            )
            assert running.client(ANNA).get(f"{ROOT}/classes").status_code == 200
        finally:
            for session in idle:
                session.close()
        eventually(lambda: httpx.get(f"{running.url}/login").status_code == 200, "it is over")


def test_a_stop_finishes_requests_under_way(tmp_path: Path) -> None:
    """When the process ends."""
    found: list[int] = []
    with served(tmp_path) as running:
        began = threading.Event()

        async def slow(*_: object) -> dict[str, bool]:
            import asyncio

            began.set()
            await asyncio.sleep(0.3)
            return {}

        running.service.classes = slow
        fields = {"Authorization": f"Bearer {running.secret(CredentialKind.TOKEN, ANNA)}"}
        thread = threading.Thread(
            target=lambda: found.append(
                httpx.get(f"{running.url}{ROOT}/classes", headers=fields).status_code
            )
        )
        thread.start()
        assert began.wait(PATIENCE)
    thread.join()
    assert found == [200]


def test_nothing_is_left_open(server: Served) -> None:

    for _ in range(3):
        server.raw(close(b"GET /nothing"))
    before = own_descriptors()
    for _ in range(30):
        server.raw(close(b"POST /login", b"Content-Length: 99999", content=b"x"), end=True)
        server.raw(b"GET / HTTP/1.1\r\n", end=True)
    eventually(lambda: own_descriptors() <= before + 2, "closed")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.binary(max_size=200),
    st.text(alphabet=st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=80),
    st.sampled_from(
        [
            b"/",
            b"/history",
            b"/login",
            b"/static/x",
            CLASSES,
            ROOT.encode() + b"/history",
            ROOT.encode() + b"/judge",
        ]
    ),
    st.sampled_from([b"GET", b"POST", b"DELETE", b"HEAD", b"TRACE", b"CONNECT", b"PATCH"]),
    st.sampled_from(
        [
            b"Cookie",
            b"Authorization",
            b"Content-Type",
            b"Origin",
            b"X-Forwarded-For",
            b"Accept",
            b"Range",
            b"Host",
        ]
    ),
)
def test_no_request_causes_a_500(
    server: Served, content: bytes, value: str, path: bytes, method: bytes, name: bytes
) -> None:
    query = b"?" + "".join(f"%{line:02x}" for line in content[:20]).encode()
    length = b"Content-Length: " + str(len(content)).encode()
    answer = server.raw(
        close(
            method + b" " + path + query,
            name + b": " + value.encode("latin-1"),
            length,
            content=content,
        )
    )
    assert status(answer) < 500
    assert not answer or status(answer) != 200 or method in (b"GET", b"HEAD")


def test_problems_are_whole(server: Served) -> None:
    answer = server.raw(close(b"GET " + CLASSES))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(content)["status"] == 401
    client = server.client(ANNA, **MESSAGE)
    assert client.post(f"{ROOT}/judge", content=LETTER).status_code == 200
