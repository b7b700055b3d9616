"""Traits and numbers: their values on known mail, their bounds on any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.mail.extract import FeatureExtractor
from tests.unit.mail.support import KEY, header, messages, repeatable

FROM = b"From: Anna <anna@mail.example.com>"


def trait(name: str, raw: bytes) -> str:
    code = int(FeatureExtractor(KEY).features(raw).traits[list(TRAITS).index(name)])
    return list(TRAITS[name])[code]


def attached(name: bytes, media: bytes = b"application/octet-stream") -> bytes:
    part = (
        b"--b\nContent-Type: "
        + media
        + b"\nContent-Disposition: attachment; filename="
        + name
        + b"\n\nx\n--b--\n"
    )
    return header(FROM, b"Content-Type: multipart/mixed; boundary=b", body=part)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("media type", header(FROM), "absent"),
        ("media type", header(b"Content-Type: text/html"), "text/html"),
        (
            "media type",
            header(b"Content-Type: Multipart/Alternative; boundary=b"),
            "multipart/alternative",
        ),
        ("media type", header(b"Content-Type: image/png"), "other"),
        ("transfer encoding", header(FROM), "absent"),
        ("transfer encoding", header(b"Content-Transfer-Encoding: BASE64 "), "base64"),
        ("charset", header(b"Content-Type: text/plain; charset=KOI8-R"), "cyrillic"),
        ("charset", header(b"Content-Type: text/plain; charset=x-sjis"), "japanese"),
        ("charset", header(b"Content-Type: text/plain; charset=x"), "other"),
        ("charset", header(FROM), "absent"),
        ("attachment", header(FROM), "none"),
        ("attachment", attached(b"a.EXE"), "program"),
        ("attachment", attached(b"a.pdf.js"), "program"),
        ("attachment", attached(b"a.docm"), "document"),
        ("attachment", attached(b"a", b"image/png"), "image"),
        ("attachment", attached(b"a.unknown"), "other"),
        ("recipients", header(FROM), "none"),
        ("recipients", header(b"To: a@b.c"), "one"),
        ("recipients", header(b"To: a@b.c", b"Cc: d@e.f"), "several"),
        ("recipients", header(b"To: Undisclosed-Recipients:;"), "undisclosed"),
        ("recipients", header(b"To: nobody"), "other"),
        ("reply-to", header(FROM), "absent"),
        ("reply-to", header(FROM, b"Reply-To: x@Example.COM"), "same domain"),
        ("reply-to", header(FROM, b"Reply-To: x@example.org"), "other"),
        ("message-id", header(FROM, b"Message-ID: <1@host.example.com>"), "sender's domain"),
        ("subject", header(FROM), "absent"),
        ("subject", header(b"Subject: Re: x"), "reply"),
        ("subject", header(b"Subject: AW: x"), "reply"),
        ("subject", header(b"Subject: Fwd: x"), "forward"),
        ("subject", header(b"Subject: BUY NOW"), "capitals"),
        ("subject", header(b"Subject: Hello"), "other"),
        ("list", header(b"List-Id: <x>"), "list"),
        ("list", header(b"Precedence: Bulk"), "bulk"),
        ("date", header(b"Date: Mon, 1 Jan 2024 10:00:00 +0100"), "zone"),
        ("date", header(b"Date: yesterday"), "other"),
    ],
)
def test_traits(name: str, raw: bytes, value: str) -> None:
    assert trait(name, raw) == value


@repeatable
@given(messages() | st.binary(max_size=600))
def test_codes_and_numbers_are_bounded(raw: bytes) -> None:
    features = FeatureExtractor(KEY).features(raw)
    assert len(features.traits) == len(TRAITS)
    assert all(
        code < len(values) <= 16
        for code, values in zip(features.traits.tolist(), TRAITS.values(), strict=True)
    )
    assert len(features.numbers) == len(NUMBERS)
    assert features.numbers.min() >= 0
    assert features.numbers.max() <= 255
