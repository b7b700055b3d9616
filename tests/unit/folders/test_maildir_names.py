"""Names of folders and files of a Maildir, odd ones too."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.folders.mailboxes import FileName, base_name_key, parse_file_name
from spamguard.folders.roles import INBOX_NAME, decode_utf7, encode_utf7, folder_parts


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("~peter/mail/&U,BTFw-/&ZeVnLIqe-", "~peter/mail/台北/日本語"),  # the example of RFC 3501
        ("Entw&APw-rfe", "Entwürfe"),
        ("R&-D", "R&D"),
        ("&2D3cjA-", "\U0001f48c"),
        ("Junk", "Junk"),
        ("", ""),
    ],
)
def test_modified_utf7(coded: str, text: str) -> None:
    assert decode_utf7(coded) == text
    assert encode_utf7(text) == coded


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


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("", INBOX_NAME),
        (".Junk", ("Junk",)),
        (".Junk.Old", ("Junk", "Old")),
        ("Junk", ("Junk",)),
        ("Junk/Old", ("Junk", "Old")),
        ("Junk/v1.2", ("Junk", "v1.2")),
        (".Entw&APw-rfe.R&-D", ("Entwürfe", "R&D")),
        (".Gel\udcf6scht", ("Gel\udcf6scht",)),
    ],
)
def test_directories_of_folders(where: str, name: tuple[str, ...]) -> None:
    assert folder_parts(where) == name


@pytest.mark.parametrize(
    "where",
    [".", "..", ".Junk.", "..Junk", ".a..b", "a//b", "/a", "a/", "../x", "a/../b", "a/.b", ".a/b"],
)
def test_directories_that_are_no_folders(where: str) -> None:
    assert folder_parts(where) is None


@pytest.mark.parametrize(
    ("file", "base", "flags"),
    [
        ("1.M2P3.host", "1.M2P3.host", ""),
        ("1.M2P3.host:2,", "1.M2P3.host", ""),
        ("1.M2P3.host:2,FS", "1.M2P3.host", "FS"),
        ("1.M2P3.host!2,S", "1.M2P3.host", "S"),
        ("1.M2P3.host;2,S", "1.M2P3.host", "S"),
        ("1.M2P3.host:2,Sab", "1.M2P3.host", "Sab"),
        ("1.M2P3.host,S=123,W=130:2,S", "1.M2P3.host", "S"),
        ("1.M2P3.host,W=130", "1.M2P3.host", ""),
        ("1.M2P3.host,U=7,S=5:2,T", "1.M2P3.host,U=7", "T"),
        ("1.M2P3.host:1,x", "1.M2P3.host:1,x", ""),
        (",S=5", ",S=5", ""),
        ("1.\udcff.host:2,S", "1.\udcff.host", "S"),
    ],
)
def test_file_names(file: str, base: str, flags: str) -> None:
    assert parse_file_name(file) == FileName(base, flags)


@pytest.mark.parametrize(
    "file",
    [
        "",
        ".",
        "..",
        ".nfs0001",
        ".EXPUNGED",
        "dovecot-uidlist",
        "dovecot.index.log",
        "maildirfolder",
        "subscriptions",
    ],
)
def test_files_that_are_no_messages(file: str) -> None:
    assert parse_file_name(file) is None


def test_keys_are_the_same_for_ever_and_fit_into_a_file() -> None:
    assert base_name_key("1.M2P3.host") == -3743177171623512930
    names = {base_name_key(f"{number}.M2P3.host") for number in range(10_000)}
    assert len(names) == 10_000
    assert min(names) >= -(1 << 63)
    assert max(names) < 1 << 63
    assert isinstance(base_name_key("\udcff"), int)
