"""Subject and author of a header section, wherever they stand."""

from __future__ import annotations

import pytest

from spamguard.proxy.delivery_log import decode_author, decode_subject


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_wherever_they_stand(end: bytes) -> None:
    lines = (b"fRoM : Anna", b" <a@b>", b"X: 1", b"SUBJECT:one", b"\ttwo", b"Subject: other")
    for header in (
        end.join(lines),
        end.join((*lines[3:], *lines[:3])),
        end.join((b"X-From: no", b"X-Subject: no", *lines, b"")),
    ):
        assert (decode_subject(header), decode_author(header)) == ("one two", "Anna <a@b>")


def test_what_is_not_there_is_empty() -> None:
    for header in (
        b"",
        b"X: Subject: a\r\n From: b@c",
        b"Subject\r\nFrom\r\n",
        b"X-From: a@b\r\n",
        b"X: a\rFrom: b@c",
    ):
        assert (decode_subject(header), decode_author(header)) == ("", ""), header


def test_several_from_fields_are_one_list() -> None:
    """Which of them people are shown is up to their mail programs."""
    assert (
        decode_author(b"From: Bank <info@bank.example>\r\nFrom: x@evil.example")
        == "Bank <info@bank.example>, x@evil.example"
    )
    assert decode_author(b"From: a@b\r\n" * 2000) == "a@b, a@b, ..."


def test_what_ends_lines_elsewhere_ends_no_field() -> None:
    assert decode_author(b"From: Bank\r <x@evil.example>\r\nTo: b") == "Bank <x@evil.example>"
