"""The kernel finds the header fields that the expressions find, whatever the text."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.headers import parse_header
from tests.unit.mail.test_hostile import NAMES, VALUES, filled
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
PIECES = (
    b"A", b"Subject", b"x-\xe4", b"!~", b"\x7f", b":", b": ", b" :", b"\t:", b"\n", b"\n ",
    b"\n\t", b"\n\n", b" ", b"\0", b"\r", b"value", b"Name: value\n", b"Name: two\n lines\n",
    b"Name:\n",
)  # fmt: skip
LIMITS = ((256 << 10, 500), (40, 3))  # bytes and fields


def assert_same_fields(text: bytes) -> None:
    for limits in LIMITS:
        compiled, plain = both(partial(parse_header, text, *limits))
        assert compiled == plain


@repeatable
@given(st.binary(max_size=100) | st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))
def test_any_text(text: bytes) -> None:
    assert_same_fields(text)


def test_every_byte_in_a_name_behind_it_and_in_a_value() -> None:
    for byte in map(bytes, zip(range(256), strict=True)):
        for text in (
            byte,
            b"a" + byte,
            b"a" + byte + b"b: c\n",
            b"a:" + byte + b"b",
            b"a: b\n" + byte + b"c\n\nbody",
            b"a: b" + byte,
        ):
            assert_same_fields(text)


def test_shared_byte_objects_stay_as_they_are() -> None:
    every = bytes(range(256))
    for byte in range(256):
        # Python has only one object for each such slice
        parse_header(every[byte : byte + 1] + b": x\n", *LIMITS[0])
    assert b"".join([every[byte : byte + 1] for byte in range(256)]) == every


def test_a_block_cut_at_any_place() -> None:
    text = b"A: 1\nB:\n 2\nC : 3\n\nbody: no field\n"
    for size in range(len(text) + 1):
        assert_same_fields(text[:size])
        compiled, plain = both(partial(parse_header, text, size, 2))
        assert compiled == plain


def test_text_made_to_cost_time() -> None:
    for unit in (*PIECES, *(name + b": " + value + b"\n" for name in NAMES for value in VALUES)):
        assert_same_fields(filled(unit, 70_000))
