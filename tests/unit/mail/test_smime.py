"""Messages within opaque signatures, as OpenSSL and others write them, and damaged ones."""

from __future__ import annotations

from base64 import encodebytes
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.mime import extract_signed_content
from tests.unit.mail.support import KEY, header, repeatable, seconds

INNER = b"Content-Type: text/html\r\n\r\n<p>pills " + b"for you " * 40 + b"</p>"
END = b"\0\0"
SIGNED, DATA = bytes.fromhex("06092a864886f70d010702"), bytes.fromhex("06092a864886f70d010701")
CERTIFICATES = b"\xa0\x03\x30\x01\x05"


def one(tag: int, content: bytes) -> bytes:
    """An element of a known size."""
    size = len(content)
    return (
        bytes((tag, size)) + content
        if size < 128
        else bytes((tag, 0x82, size >> 8, size & 255)) + content
    )


def der(content: bytes) -> bytes:
    inner = one(0x30, DATA + one(0xA0, one(0x04, content)))
    return one(0x30, SIGNED + one(0xA0, one(0x30, b"\x02\x01\x01\x31\x00" + inner + CERTIFICATES)))


def ber(content: bytes) -> bytes:
    """In pieces, no size known before."""
    pieces = b"".join(one(0x04, content[at : at + 100]) for at in range(0, len(content), 100))
    head = b"\x30\x80" + SIGNED + b"\xa0\x80\x30\x80\x02\x01\x01\x31\x00"
    return (
        head + b"\x30\x80" + DATA + b"\xa0\x80\x24\x80" + pieces + END * 3 + CERTIFICATES + END * 3
    )


@pytest.mark.parametrize("write", [der, ber])
def test_signed_content_is_extracted(write: Callable[[bytes], bytes]) -> None:
    assert extract_signed_content(write(INNER)) == INNER
    assert extract_signed_content(write(b"short")) == b"short"
    assert INNER.startswith(extract_signed_content(write(INNER)[:200]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SIGNED,
        DATA,
        SIGNED + DATA,
        SIGNED + DATA + b"\xa0",
        der(INNER).replace(DATA, SIGNED),
        b"x" * 200 + der(INNER),
    ],
)
def test_elsewhere_nothing_is(data: bytes) -> None:
    assert extract_signed_content(data) == b""


@repeatable
@given(st.binary(max_size=60))
def test_any_bytes_are_taken(data: bytes) -> None:
    assert len(extract_signed_content(SIGNED + DATA + data)) <= len(data)


def test_many_pieces_cost_little() -> None:
    flood = SIGNED + DATA + b"\xa0\x80\x24\x80" + b"\x04\x00" * 4_000_000
    assert seconds(lambda: extract_signed_content(flood), 1) < 1


@pytest.mark.parametrize(
    "media", [b"application/pkcs7-mime; smime-type=signed-data", b"Application/X-PKCS7-MIME"]
)
def test_words_are_read_as_mail_programs_show_them(media: bytes) -> None:
    fields = (b"Content-Type: " + media + b"; name=smime.p7m", b"Content-Transfer-Encoding: base64")
    tokens = set(
        FeatureExtractor(KEY).token_texts(header(*fields, body=encodebytes(ber(INNER)))).values()
    )
    assert "pills" in tokens
    encrypted = set(
        FeatureExtractor(KEY)
        .token_texts(header(*fields, body=encodebytes(bytes(range(256)))))
        .values()
    )
    assert "attachment:smime_p7m" in encrypted
