"""Mail that breaks the rules, as programs send it: what a mail program shows is what we read."""

from __future__ import annotations

from base64 import b64encode, encodebytes
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.content import read_content
from spamguard.mail.decode import decode_transfer_encoding
from spamguard.mail.headers import ascii_host, relation_clues
from spamguard.mail.message import add_fields, extract_attached, message_digest
from spamguard.mail.mime import DEFAULT_LIMITS, has_header, parse_message
from tests.unit.mail.support import KEY, header, repeatable, seconds

PAGE = b"<p>Your parcelvoucher waits</p>"
FROM = b"From: Anna <anna@x.example>"
MARK = b"\xef\xbb\xbf"


def parts(*types: bytes, boundary: bytes = b"b", body: bytes = encodebytes(PAGE)) -> bytes:
    """A multipart with these Content-Type fields; body and delimiters are right."""
    part = header(
        b"Content-Type: text/html; charset=utf-8", b"Content-Transfer-Encoding: base64", body=body
    )
    fields = [b"Content-Type: " + kind for kind in types]
    delimiter = b"--" + boundary
    return header(FROM, *fields, body=delimiter + b"\n" + part + b"\n" + delimiter + b"--\n")


def attached(encoding: bytes, inner: bytes, kind: bytes = b"message/rfc822") -> bytes:
    fields = b"Content-Type: " + kind, b"Content-Transfer-Encoding: " + encoding
    part = header(*fields, body=inner)
    return header(
        FROM, b"Content-Type: multipart/mixed; boundary=o", body=b"--o\n" + part + b"\n--o--\n"
    )


def encoded(declared: bytes, body: bytes, kind: bytes = b"text/plain") -> bytes:
    return header(
        FROM, b"Content-Type: " + kind, b"Content-Transfer-Encoding: " + declared, body=body
    )


def signed(content: bytes) -> bytes:
    start = "3080 06092a864886f70d010702 a080 3080 020101 3080 06092a864886f70d010701 a080 0482"
    return bytes.fromhex(start) + len(content).to_bytes(2, "big") + content


INNER = parts(b'multipart/mixed; boundary="=_in"', boundary=b"=_in")
QUOTED = INNER.replace(b"=", b"=3D")
SHORT = b"Subject: x\n\nparcelvoucher\n"
NO_LABEL = "".join(map(chr, range(0x4E00, 0x4E20)))
UUENCODED = b"M" + b"0" * 60 + b"\n"


@pytest.mark.parametrize(
    "raw",
    [
        parts(b'multipart/mixed; boundary="foo\n bar"', boundary=b"foo bar"),
        parts(b'multipart/mixed; boundary="foo\n\tbar"', boundary=b"foo bar"),
        parts(b'multipart/mixed; boundary="foo\n\tbar"', boundary=b"foo\tbar"),
        parts(b'multipart/mixed; boundary="foo\n bar"', boundary=b"foobar"),
        parts(b"multipart/mixed; boundary='foo'", boundary=b"foo"),
        parts(b"multipart/mixed; boundary='foo'", boundary=b"'foo'"),
        parts(b'multipart/mixed; boundary=foo"', boundary=b"foo"),
        parts(b"multipart/mixed; boundary=a; boundary=b"),
        parts(b'multipart/mixed;\n type="text/html"\n boundary="b"'),
        parts(b"multipart/mixed boundary=b"),
        parts(b"multipart / mixed; boundary = b"),
        parts(b'(odd) "multipart/mixed"; boundary=b'),
        parts(b'multipart/mixed; (was; boundary="x") boundary="b"'),
        parts(b"multipart/mixed; charset=utf-8 (a (b) boundary=x); boundary=b"),
        parts(b"multipart/mixed; boundary*0=b; boundary*1=c", boundary=b"bc"),
        parts(b"multipart/mixed; boundary=a", b"multipart/mixed; boundary=b"),
        parts(b"text/plain", b"multipart/mixed; boundary=b"),
        parts(b"multipart/mixed", b"multipart/mixed; boundary=b"),
        parts(b"multipart/mixed; boundary=b", b"multipart/mixed; boundary=c"),
        MARK + INNER,
        MARK + b"From a@x.example Sat Nov 28 10:00:00 2026\n" + INNER,
        b"Received: from x\n" + MARK + INNER,
        attached(b"8bit", INNER),
        attached(b"quoted-printable", INNER),  # declared only
        attached(b"quoted-printable", QUOTED),
        attached(b"quoted-printable", QUOTED.replace(b"3D", b"3d"), b"message/global"),
        attached(b"quoted-printable", SHORT.replace(b"voucher", b"=\nvoucher")),
        attached(b"base64", encodebytes(INNER)),
        attached(b"base64", encodebytes(attached(b"quoted-printable", QUOTED))),
        attached(b"base64", encodebytes(signed(SHORT)), b"application/x-mine; name=Smime.P7M"),
        attached(b"8bit", SHORT, b"message/global-delivery-status"),
        encoded(b"base64", PAGE, b"text/html"),
        encoded(b"base64", b"Your parcelvoucher waits at the depot, dear friend.\n" * 9),
        encoded(b"base64", "Über parcelvoucher prüfen müßen".encode()),
        encoded(b"base64", b"parcelvoucher\n"),
        encoded(b"base64", b"!".join(encodebytes(PAGE * 4).split(b"m")) .replace(b"!", b"m!!! ")),
        encoded(b"7bit", b"begin 644 a.jpg\n" + UUENCODED * 3 + b"`\nend\nparcelvoucher"),
    ],
)  # fmt: skip
def test_it_is_read_as_mail_programs_read_it(raw: bytes) -> None:
    content = read_content(raw, DEFAULT_LIMITS)
    assert b"parcelvoucher" in content.sections[0][1].split()
    assert content.message.root.first_values[b"from"] or b"message/global" in raw


@pytest.mark.parametrize("raw", [INNER, attached(b"quoted-printable", QUOTED)])
def test_a_mark_in_front_stays_and_changes_nothing(raw: bytes) -> None:
    marked = MARK + raw
    assert add_fields(marked, [b"X-A: 1"], [b"x-b"]) == b"X-A: 1\n" + marked
    assert has_header(marked)
    assert not has_header(MARK + b"no header")
    marked_fields, fields = (parse_message(m, DEFAULT_LIMITS).root.fields for m in (marked, raw))
    assert marked_fields == fields
    assert extract_attached(marked) == extract_attached(raw)
    written = add_fields(marked, [b"X-Spamguard: spam"], [])
    assert message_digest(written, KEY) == message_digest(marked, KEY) == message_digest(raw, KEY)


@pytest.mark.parametrize(
    "files",
    [
        b"begin 644 a.jpg\n" + UUENCODED * 3 + b"`\nend\n",
        b"begin 0600 a.jpg\n"
        + UUENCODED * 3
        + b"#0V%T\n`\nend\n\nbegin 755 b.exe\n#0V%T\n`\nend\n",
        b"begin 100644 a.jpg\r\n" + UUENCODED.replace(b"\n", b"\r\n") * 3,  # cut off
    ],
)
def test_files_in_text_are_left_out_wherever_they_stand(files: bytes) -> None:
    text = b"see the picture\n" + files + b"below it\n" * 300
    content = read_content(header(FROM, body=text), DEFAULT_LIMITS)
    assert set(content.sections[0][1].split()) == set(b"see the picture below it".split())
    names = [name for _, name in content.attachments]
    assert names == [b"a.jpg", b"b.exe"][: len(names)] != []


@repeatable
@given(st.binary(max_size=400))
def test_base64_is_decoded_whatever_it_holds(data: bytes) -> None:
    text = b64encode(data)
    assert decode_transfer_encoding(text, b"base64") == (data, [])


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("prüzehall.example", "xn--przehall-75a.example"),
        ("PRÜZEHALL.Example", "xn--przehall-75a.example"),
        ("pru\u0308zehall。example", "xn--przehall-75a.example"),
        ("prize\u00adhall．ｅxample", "prizehall.example"),
        ("prizehall｡example", "prizehall.example"),
        ("раypal.example", "xn--ypal-43d9g.example"),
        ("почта.рф", "xn--80a1acny.xn--p1ai"),
        (NO_LABEL + ".x", NO_LABEL + ".x"),
        ("é.a.b.c.d.e.example", "é.a.b.c.d.e.example"),
        ("XN--PRZEHALL-75A.example", "XN--PRZEHALL-75A.example"),
    ],
)
def test_hosts_beyond_ascii_have_one_name(written: str, host: str) -> None:
    assert ascii_host(written) == host
    for kind in (b"From: x <post@%b>", b"From: post@%b"):
        raw = header(kind % written.encode("utf-8", "replace"), body=b"hello")
        tokens = dict(read_content(raw, DEFAULT_LIMITS).sections)[b"address"].split()
        lower = host.lower().replace(".", "_").encode("utf-8", "replace")
        assert not lower.isascii() or tokens == [b"post-at-" + lower, lower]


@repeatable
@given(st.text(st.characters(exclude_categories=()) | st.sampled_from("。.é\ud800"), max_size=300))
def test_any_text_may_stand_for_a_host(written: str) -> None:
    assert isinstance(ascii_host(written), str)


@pytest.mark.parametrize(
    ("author", "clue"),
    [
        (b"PayPal Service <x@paypal.com>", b"name_in_domain"),
        (b'"Home Depot" <news@e.homedepot.com>', b"name_in_domain"),
        (b"x@smith.example (Anna Smith)", b"name_in_domain"),
        (b"=?utf-8?q?Cr=C3=A9dit_Agricole?= <x@credit-agricole.fr>", b"name_in_domain"),
        (b"HP Support <x@hp.com>", b"name_in_domain"),
        (b"Liberty Mutual <x@trinkengraphmetrics.example>", b"name_elsewhere"),
        (b'"service@paypal.com" <x@evil.example>', b"name_elsewhere"),
        (b"PayPal <x@paypal.evil.example>", b"name_elsewhere"),
        (b"A. B. <x@grab.example>", b"name_elsewhere"),
        (b"<anna@paypal.com>", b"name_none"),
        (b"anna@paypal.com", b"name_none"),
        (b"", b"name_none"),
    ],
)
def test_the_name_in_from_belongs_to_the_domain_or_not(author: bytes, clue: bytes) -> None:
    message = parse_message(header(b"From: " + author), DEFAULT_LIMITS)
    assert clue in relation_clues(message.root.first_values, [], [])


@pytest.mark.parametrize("unit", [b"(", b"(a", b"boundary=a;", b'"', b'a="', b"=", b"\\", b"a\n "])
def test_no_content_type_costs_time(unit: bytes) -> None:
    value = b"multipart/mixed; " + unit * (200_000 // len(unit))
    raw = header(b"Content-Type: " + value.rstrip(), body=b"--x\n" * 250_000)
    assert seconds(partial(parse_message, raw, DEFAULT_LIMITS), 2) < 0.3
