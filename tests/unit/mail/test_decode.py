"""Transfer encodings, charsets, encoded words and folding, valid and damaged."""

from __future__ import annotations

import base64
import binascii
import codecs
import quopri
from email.header import Header, decode_header, make_header
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.decode import (
    CODECS,
    decode_base64,
    decode_text,
    decode_transfer_encoding,
    decode_unstructured,
)
from spamguard.mail.text import fold
from tests.unit.mail.support import repeatable, seconds, words


def test_every_codec_in_the_list_is_a_charset_that_python_has() -> None:
    assert all(codecs.lookup(name)._is_text_encoding for name in set(CODECS.values()))


@repeatable
@given(st.binary(max_size=300), st.sampled_from(sorted(CODECS)))
def test_any_bytes_are_text_in_any_charset(data: bytes, charset: str) -> None:
    text, _ = decode_text(data, charset.encode())
    assert isinstance(text, str)


@repeatable
@given(st.binary(max_size=500))
def test_transfer_encodings_are_undone(data: bytes) -> None:
    assert decode_transfer_encoding(base64.encodebytes(data), b"base64") == (data, [])
    assert decode_transfer_encoding(quopri.encodestring(data), b"quoted-printable") == (
        quopri.decodestring(quopri.encodestring(data)),
        [],
    )
    lines = [binascii.b2a_uu(data[at : at + 45]) for at in range(0, len(data), 45)]
    assert decode_transfer_encoding(
        b"begin 644 x\n" + b"".join(lines) + b"`\nend\n", b"x-uuencode"
    ) == (data, [])
    assert decode_transfer_encoding(data, b"8bit") == (data, [])
    assert decode_transfer_encoding(data, b"rot13") == (data, [b"encoding-unknown"])


@repeatable
@given(st.binary(max_size=300))
def test_nothing_in_base64_raises(data: bytes) -> None:
    assert isinstance(decode_base64(data)[0], bytes)
    assert isinstance(decode_base64(b"=".join([data] * 150))[0], bytes)


@repeatable
@given(
    words.map(lambda text: " ".join(text.split())),
    st.sampled_from(("utf-8", "iso-8859-1", "iso-2022-jp")),
)
def test_headers_that_the_standard_library_writes_are_read(text: str, charset: str) -> None:
    text = text.encode(charset, "ignore").decode(charset)
    value = Header(text, charset).encode()
    assert decode_unstructured(value.encode())[0].replace("\n", "") == str(
        make_header(decode_header(value))
    ).replace("\n", "")


@pytest.mark.parametrize("charset", [b"windows-1252", b"euc-kr", b"euc-jp", b"big5"])
def test_text_that_is_no_character_at_all_is_read_as_fast_as_any(charset: bytes) -> None:
    assert seconds(partial(decode_text, b"\x81\xff" * 500_000, charset)) < 0.06


@repeatable
@given(st.text(max_size=400))
def test_folded_text_is_in_lower_case_and_all_of_it_can_be_seen(text: str) -> None:
    folded = fold(text)
    assert folded == folded.lower()
    assert not set(folded) & set("\u200b\u200d\u00ad\ufeff\u00a0\u2019")


@given(words)
def test_text_in_lower_case_is_folded_alike_when_that_is_known(text: str) -> None:
    assert fold(text.lower(), lower=True) == fold(text.lower())
