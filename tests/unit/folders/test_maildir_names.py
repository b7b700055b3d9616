"""Names of folders and files of a Maildir, odd ones too."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.folders.maildir import base_name_key, parse_file_name
from spamguard.folders.roles import decode_utf7, encode_utf7, folder_parts


@pytest.mark.parametrize(
    "text",
    [
        "&",
        "&&",
        "R&D",
        "&A-",
        "&AGE-",
        "&AC4-",
        "&2D0-",
        "&APw",
        "&AP/-",
        "&APw=-",
        "Gr\udcfc\udcdfe",
        "Grüße",
    ],
)
def test_what_is_no_modified_utf7_stays_as_it_is(text: str) -> None:
    assert decode_utf7(text) == text


@given(st.text())
def test_text_comes_back_from_its_code(text: str) -> None:
    coded = encode_utf7(text)
    assert coded.isascii()
    assert decode_utf7(coded) == text


@given(st.binary())
def test_no_name_raises(raw: bytes) -> None:
    name = os.fsdecode(raw)
    assert isinstance(decode_utf7(name), str)
    folder_parts(name)
    if (found := parse_file_name(name)) is not None:
        assert name.startswith(found.base.split(",")[0])
        base_name_key(found.base)
