"""Hostile input from the network: nothing hangs, costs much, or gets more than a
problem document.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.web import monitor, requests
from spamguard.web.auth import CredentialKind
from tests.support.waiting import PATIENCE
from tests.unit.web.served import ANNA, ROOT, Served, served

pytestmark = pytest.mark.slow  # waits for seconds

HOST = b"Host: localhost\r\n"
CLASSES = ROOT.encode() + b"/model"


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
    "target",
    [b"/history?" + b"a=b&" * 20_000, b"/" + b"a" * 60_000, CLASSES + b"?" + b"a" * 20_000],
)
def test_a_huge_address(server: Served, target: bytes) -> None:
    token = b"Authorization: Bearer " + server.secret(CredentialKind.TOKEN, ANNA).encode()
    answer = server.raw(close(b"GET " + target, token))
    assert not answer or status(answer) in (400, 431)


def test_slow_clients_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: a header that never ends, one byte now and then; also as the second request of a
    connection.
    """
    monkeypatch.setattr(monitor, "HEADER_SECONDS", 1.0)
    with served(tmp_path) as running:
        first = b"GET /login HTTP/1.1\r\n" + HOST + b"\r\n"
        for begin in (b"", b"G", first + b"G"):
            with socket.create_connection(("127.0.0.1", running.port), 10) as connected:
                connected.sendall(begin)
                assert refused_in_the_end(connected, b"x")


def test_a_body_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.5)
    with served(tmp_path) as running:
        token = running.secret(CredentialKind.TOKEN, ANNA).encode()
        fields = (
            b"Authorization: Bearer " + token,
            b"Content-Type: message/rfc822",
            b"Content-Length: 500",
        )
        answer = running.raw(close(b"POST " + ROOT.encode() + b"/judge", *fields, content=b"x"))
        assert status(answer) == 408


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
