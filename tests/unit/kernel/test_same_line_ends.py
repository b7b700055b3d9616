"""The kernel sees odd bytes and dots behind line ends where Python does, wherever in a text they
are.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.smtp import data
from tests.unit.kernel.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
PIECES = (b"\r", b"\n", b"\r\n", b"\r\n.", b"\0", b".", b"a", b"a" * 61, b"\xff" * 64)


def assert_same(text: bytes) -> None:
    compiled, plain = both(lambda: data._scan_line_ends(text))
    assert compiled == plain


@repeatable
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_any_text(text: bytes) -> None:
    assert_same(text)


@pytest.mark.parametrize(
    "odd", [b"\r", b"\n", b"\0", b"\r\n", b"\r\n.", b"\r\n\r", b"\n\r\n.", b"\r\r\n."]
)
def test_at_every_place(odd: bytes) -> None:
    for size in range(140):
        assert_same(b"a" * size + odd)
        assert_same(odd + b"a" * size)
        assert_same(b"a" * (size // 2) + odd + b"." * (140 - size))


def test_what_is_seen() -> None:
    told = {
        b"": 0,
        b"a\r": 0,
        b"\r\n": 0,
        b"\ra": 1,
        b"\r\r": 1,
        b"\na": 2,
        b"a\n\r\n": 2,
        b"\0": 4,
        b"\n\r\0\r\n.": 7,
    }
    for functions in both(lambda: {text: data._scan_line_ends(text)[0] for text in told}):
        assert functions == told
    assert both(lambda: data._scan_line_ends(b"\r\na\r\n.\r\n.")[1]) == (3, 3)
