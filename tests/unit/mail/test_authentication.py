"""Whose mail a server that we believe says it is, and what senders write to be taken for others."""

from __future__ import annotations

import pytest

from spamguard.mail.authentication import authenticated_sender, parse_author

SERVERS = frozenset({"mx.example.org"})
PASSED = b"Authentication-Results: mx.example.org; dmarc=pass header.from=bank.example\r\n"
FAILED = PASSED.replace(b"dmarc=pass", b"dmarc=fail")
RECEIVED = (
    b"Received: from mail.bank.example by mx.example.org; Sat, 28 Nov 2026 06:00:00 +0000\r\n"
)
ODD_FIELDS = (
    *[PASSED.replace(b":", blank + b":", 1) for blank in (b" ", b"\t", b" \t ")],
    *[
        PASSED.replace(b".org;", b".org" + blank + b";")
        for blank in (b" ", b"\t", b"\x0b", b"\x0c", b"\r\n ", b"  1", b"\t(x)", b"(x)", b"\xa0")
    ],
)
FROM = b"From: The Bank <News@Bank.example>\r\n"
NEWS = "news@bank.example"


def sender(*fields: bytes) -> str:
    return authenticated_sender(b"".join(fields) + b"Subject: news\r\n\r\nhello\r\n", SERVERS)


def by(results: bytes, author: bytes = FROM) -> str:
    """The sender by these results of our server."""
    return sender(b"Authentication-Results: mx.example.org; " + results + b"\r\n", RECEIVED, author)


@pytest.mark.parametrize(
    "fields",
    [
        (RECEIVED, PASSED, FROM),  # below the field of the server that took it
        (FAILED, RECEIVED, PASSED, FROM),
        (FAILED, PASSED, RECEIVED, FROM),  # not taken out, though the server should
        (b"Authentication-Results: other.example; dmarc=none\r\n", PASSED, RECEIVED, FROM),
        (b"Authentication-Results: ; dmarc=none\r\n", PASSED, RECEIVED, FROM),
        (b'Authentication-Results: "mx.example.org\r\n', PASSED, RECEIVED, FROM),
        (PASSED.replace(b"mx.", b"evil.mx."), RECEIVED, FROM),
        (PASSED.replace(b"mx.example.org", b"mx.example.org.evil.example"), RECEIVED, FROM),
        (b"X-" + PASSED, RECEIVED, FROM),
        (b"ARC-" + PASSED, RECEIVED, FROM),
        (PASSED, RECEIVED, FROM, b"From: evil@evil.example\r\n"),
        (PASSED, RECEIVED, FROM, b"Subject: a\rFrom: evil@evil.example\r\n"),
        (PASSED, RECEIVED, b"no field\r\n", FROM),
        (PASSED, RECEIVED, FROM * 501),
        (PASSED, FROM),  # no server has put its Received below what it found
        # a server that strips fields in its name may overlook these
        *[(odd, RECEIVED, FROM) for odd in ODD_FIELDS],
    ],
)
def test_what_a_sender_can_write_authenticates_nobody(fields: tuple[bytes, ...]) -> None:
    assert sender(*fields) == ""


def test_where_the_server_strips_results_no_received_is_needed() -> None:
    def stripped(*fields: bytes) -> str:
        raw = b"".join(fields) + b"Subject: news\r\n\r\nhello\r\n"
        return authenticated_sender(raw, SERVERS, results_stripped=True)

    assert stripped(PASSED, FROM) == NEWS
    assert stripped(PASSED.replace(b";", b" (filter (1.0; x));", 1), FROM) == NEWS
    assert stripped(FAILED, FROM) == stripped(RECEIVED, PASSED, FROM) == ""
    assert [stripped(odd, FROM) for odd in ODD_FIELDS] == [""] * len(ODD_FIELDS)


@pytest.mark.parametrize(
    ("results", "authentic"),
    [
        (b"dmarc=pass (p=reject dis=none) header.from=bank.example", True),
        (b"dmarc/1 = pass header . from = BANK.example", True),
        (b"spf=pass smtp.mailfrom=a@b.example;\r\n\tdmarc=pass header.from=bank.example", True),
        (b"dmarc=pass action=none header.from=bank.example;compauth=pass reason=100", True),
        (b"dmarc=pass", False),
        (b"dmarc=pass header.from=evil.example", False),
        (b"dmarc=pass header.from=evil.example header.from=bank.example", False),
        (b"dmarc=fail (dmarc=pass header.from=bank.example)", False),
        (b"dmarc=fail (a (b) ; dmarc=pass header.from=bank.example)", False),
        (b"spf=pass (unclosed; dmarc=pass header.from=bank.example", False),
        (b'spf=pass reason="; dmarc=pass header.from=bank.example"', False),
        (b'spf=pass smtp.mailfrom="a;dmarc=pass header.from=bank.example;"@e.example', False),
        (b'dmarc=pass header.from="bank.example"', False),
        (b"xdmarc=pass header.from=bank.example", False),
        (b"dmarc=passed header.from=bank.example", False),
        (b"spf=pass smtp.mailfrom=news@bank.example", False),
        (b"dkim=pass header.d=bank.example", True),
        (b"dkim=pass header.i=@bank.example", True),
        (b"dkim=pass header.d=news.bank.example", False),  # a tenant of that domain may sign so
        (b"dkim=fail header.d=bank.example; dkim=pass header.d=bank.example", True),
        (b"dmarc=none; dkim=pass header.d=bank.example", True),
        (b"dmarc=fail header.from=bank.example; dkim=pass header.d=bank.example", False),
        (b"dmarc=temperror; dkim=pass header.d=bank.example", False),
        (b"dkim=fail header.d=bank.example", False),
        (b"dkim=pass header.d=evilbank.example", False),
        (b"dkim=pass header.d=evil.example header.i=@bank.example", False),
        (b"dkim=pass header.d=example", False),
        (b"dkim=pass header.d=bank.example.evil.example", False),
        (b"dkim=pass", False),
        (b"dkim=pass header.d=", False),
    ],
)
def test_which_results_authenticate(results: bytes, authentic: bool) -> None:
    assert by(results) == (NEWS if authentic else "")


def test_two_hosts_below_one_domain_are_not_aligned() -> None:
    """Only a list of public suffixes tells whether they belong to one owner."""
    author = b"From: anna@anna.pages.example\r\n"
    assert by(b"dkim=pass header.d=evil.pages.example", author) == ""
    assert by(b"dkim=pass header.d=pages.example", author) == "anna@anna.pages.example"


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (b"anna@example.org", "anna@example.org"),
        (b" Anna <Anna@Example.ORG> ", "anna@example.org"),
        (b'"Smith, Anna (x)" <anna@example.org>', "anna@example.org"),
        (b'"boss@example.com" <anna@example.org>', "anna@example.org"),
        (b"=?utf-8?q?boss=40example.com?=\r\n <anna@example.org>", "anna@example.org"),
        (b"(boss@example.com) anna@example.org (Anna)", "anna@example.org"),
        ("Zoë <zoë@exämple.org>".encode(), "zoë@exämple.org"),
        (b"", ""),
        (b"Anna", ""),
        (b"anna@localhost", ""),
        (b"anna@example.org, boss@example.com", ""),
        (b"<anna@example.org> <boss@example.com>", ""),
        (b"boss@example.com <anna@example.org>", ""),
        (b"anna@example.org <boss@example.com", ""),
        (b"Team: anna@example.org;", ""),
        (b"Team: anna@example.org, boss@example.com;", ""),
        (b"undisclosed:;", ""),
        (b"<@a.example,@b.example:anna@example.org>", ""),
        (b'"anna"@example.org', ""),
        (b'"a"nna@example.org', ""),
        (b"anna (x) @example.org", ""),
        (b"anna@example.org@example.com", ""),
        (b"anna@exam ple.org", ""),
        (b"anna@.example.org", ""),
        (b"anna@example.org.", ""),
        (b'"Anna <anna@example.org>', ""),
        (b"Anna (<anna@example.org>", ""),
        (b"\xff@example.org", ""),
        (b"a" * 321 + b"@example.org", ""),
    ],
)
def test_from_must_name_one_address_plainly(value: bytes, address: str) -> None:
    assert parse_author([value]) == address
    assert parse_author([value, value]) == parse_author([]) == ""


@pytest.mark.parametrize("piece", [b"(", b'"', b"(a", b"a=", b"; a", b"<", b"\\", b"@a.", b","])
def test_hostile_fields_are_read_in_linear_time(piece: bytes) -> None:
    value = piece * (200_000 // len(piece))
    folded = b"Authentication-Results: mx.example.org; " + value + b"\r\n"
    assert sender(folded, RECEIVED, FROM) == ""
    assert sender(PASSED, RECEIVED, b"From: " + value + b"\r\n") == ""
    assert parse_author([value[:8000]]) == ""
    assert by(value[:8000]) == ""
