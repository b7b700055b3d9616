"""The fields of a request that are trusted."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.exceptions import HTTPException

from spamguard.config.options import HostPort, Web, WebProxy
from spamguard.web.requests import (
    RequestContext,
    RequestReader,
)

LOOPBACK = Web(HostPort("127.0.0.1", 8080))
PROXY = WebProxy(("192.0.2.0/24",), "X-Remote-User", ("olga",))
BEHIND = Web(HostPort("0.0.0.0", 8080), ("spam.example.org",), proxy=PROXY)


def read(
    web: Web,
    *fields: tuple[str, bytes | str],
    client: str = "127.0.0.1",
    scheme: str = "http",
    host: str = "localhost",
) -> RequestContext:
    given = [("host", host), *fields] if host else list(fields)
    written = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in given
    ]
    scope: dict[str, Any] = {
        "headers": written,
        "client": (client, 1),
        "scheme": scheme,
        "raw_path": b"/",
        "query_string": b"",
    }
    return RequestReader(web).read(scope)


def refused(web: Web, *fields: tuple[str, bytes | str], **more: Any) -> int:
    with pytest.raises(HTTPException) as caught:
        read(web, *fields, **more)
    return caught.value.status_code


@pytest.mark.parametrize(
    "name",
    ["authorization", "content-type", "content-length", "origin", "sec-fetch-site"],
)
def test_important_fields_must_not_be_repeated(name: str) -> None:
    assert refused(LOOPBACK, (name, "a"), (name, "a")) == 400


def test_a_length_and_chunks_contradict() -> None:
    assert refused(LOOPBACK, ("content-length", "5"), ("transfer-encoding", "chunked")) == 400


def test_a_proxy_is_believed() -> None:
    given = [
        ("x-remote-user", "olga"),
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-proto", "https"),
    ]
    found = read(BEHIND, *given, client="192.0.2.5", host="spam.example.org")
    assert (found.user, found.client, found.secure) == ("olga", "198.51.100.1", True)


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("", "192.0.2.5"),
        ("10.9.9.9, 198.51.100.1", "198.51.100.1"),  # what stands before it may be invented
        ("198.51.100.1, 192.0.2.9", "198.51.100.1"),
        ("198.51.100.1, rubbish", "192.0.2.5"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("1.1.1.1," * 1000 + "192.0.2.8", "1.1.1.1"),
    ],
)
def test_whom_a_proxy_speaks_for(forwarded: str, client: str) -> None:
    assert (
        read(
            BEHIND, ("x-forwarded-for", forwarded), client="192.0.2.5", host="spam.example.org"
        ).client
        == client
    )


@pytest.mark.parametrize(
    "name",
    [
        b"a\xff",
        b"a,b",
        b"a\x01",
        b"x" * 300,
        "anna\xa0".encode(),
        "\u3000anna".encode(),
        b"anna\x1f",
    ],
)
def test_invalid_user_names(name: bytes) -> None:
    assert (
        refused(BEHIND, ("x-remote-user", name), client="192.0.2.5", host="spam.example.org") == 400
    )


def test_two_names_are_none() -> None:
    given = [("x-remote-user", "anna"), ("x-remote-user", "olga")]
    assert refused(BEHIND, *given, client="192.0.2.5", host="spam.example.org") == 400


def test_requests_beside_the_proxy_are_refused() -> None:
    assert refused(BEHIND, client="198.51.100.7", host="spam.example.org") == 403
    assert read(BEHIND, client="::ffff:192.0.2.5", host="spam.example.org")
    assert read(BEHIND, client="127.0.0.1", host="spam.example.org").user == ""


@pytest.mark.parametrize(
    ("origin", "own"),
    [("https://localhost", True), ("http://localhost", False), ("HTTPS://LocalHost", True)],
)
def test_a_form_of_a_page_without_tls_is_refused(origin: str, own: bool) -> None:
    """A man in the middle can have made it, because our pages come by HTTPS."""
    assert read(LOOPBACK, ("origin", origin), scheme="https").same_origin is own
