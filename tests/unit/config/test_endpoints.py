"""Endpoints as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Protocol, parse_endpoint

FORMS = {
    "smtp://127.0.0.1:10025": Endpoint(Protocol.SMTP, "127.0.0.1", 10025),
    "smtp://[::1]:25": Endpoint(Protocol.SMTP, "::1", 25),
    "lmtp://mail.example.org:24": Endpoint(Protocol.LMTP, "mail.example.org", 24),
    "smtp://localhost:0": Endpoint(Protocol.SMTP, "localhost", 0),
    "lmtp:/run/dovecot/lmtp": Endpoint(Protocol.LMTP, path=Path("/run/dovecot/lmtp")),
    "maildir:/home/anna/My Mail": Endpoint(Protocol.MAILDIR, path=Path("/home/anna/My Mail")),
}
WRONG = [
    "",
    "smtp",
    "smtp://",
    "smtp://host",
    "smtp://:25",
    "smtp://host:",
    "smtp://host:65536",
    "smtp://::1:25",
    "smtp://[::1]",
    "smtp:/path",
]
WRONG += [
    "maildir://host:1",
    "maildir:relative",
    "lmtp:",
    "lmtp:relative",
    "maildir:/",
    "http://host:80",
    "smtp://a b:25",
    "smtp://host:25/",
]
WRONG += [
    "SMTP://host:25",
    " smtp://host:25",
    "smtp://host:25\n",
    "lmtp:/a\0b",
    "smtp://host:٢٥",
    "smtp://user@host:25",
]


@pytest.mark.parametrize("text", FORMS)
def test_every_form_there_and_back(text: str) -> None:
    assert parse_endpoint(text) == FORMS[text]
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize("text", WRONG)
def test_other_endpoints_get_an_error_with_the_forms(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path",
    ):
        parse_endpoint(text)
