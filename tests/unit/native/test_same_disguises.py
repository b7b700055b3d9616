"""The kernel finds the words in disguise that Python finds, whatever the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import deobfuscate
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
PIECES = (*"a|b0|1|2| |.|!|@|-|a0a| v1agra. |a b c d|я|中".encode().split(b"|"), b"\x80", b"\xd0")


def assert_same(utf8: bytes) -> None:
    compiled, plain = both(lambda: deobfuscate(utf8))
    assert compiled == plain


@repeatable
@given(st.binary(max_size=100) | st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
def test_any_text(utf8: bytes) -> None:
    assert_same(utf8)
    assert_same(utf8 * 30)  # more words than are looked at
