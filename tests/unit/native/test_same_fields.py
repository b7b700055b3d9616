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


def test_text_made_to_cost_time() -> None:
    for unit in (*PIECES, *(name + b": " + value + b"\n" for name in NAMES for value in VALUES)):
        assert_same_fields(filled(unit, 70_000))
