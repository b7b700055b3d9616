"""The address of the page in login links."""

from __future__ import annotations

import pytest

from spamguard.config.options import Certificate, HostPort, Web, WebProxy
from spamguard.web import auth

CERTIFICATE = Certificate(None, None)


@pytest.mark.parametrize(
    ("web", "page"),
    [
        (Web(HostPort("127.0.0.1", 8080)), "http://127.0.0.1:8080"),
        (Web(HostPort("::1", 8080)), "http://[::1]:8080"),
        (
            Web(HostPort("0.0.0.0", 8443), ("spam.example.org", "x"), CERTIFICATE),
            "https://spam.example.org:8443",
        ),
        (
            Web(
                HostPort("127.0.0.1", 8080),
                ("spam.example.org",),
                proxy=WebProxy(("127.0.0.1/32",)),
            ),
            "https://spam.example.org",
        ),
        (
            Web(
                HostPort("127.0.0.1", 8080),
                ("www.example.org",),
                proxy=WebProxy(("127.0.0.1/32",), path="/spam"),
            ),
            "https://www.example.org/spam",
        ),
    ],
)
def test_the_page(web: Web, page: str) -> None:
    assert web.page_url == page
    assert auth.login_url(f"{page}/", "a&b") == f"{page}/login?link=a%26b"
