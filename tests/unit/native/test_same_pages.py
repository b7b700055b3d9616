"""The kernel takes pages apart as the expressions do, whatever the markup."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail import html
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
PIECES = (
    "<", ">", "/", "!", "?", "a", "/a", "img", "<a href=x>", "</a>", "<img src=y>", "<p>", "<br/>",
    "<x", " ", "\t", "\n", "\f", "\0", "é", "中", "<é>", "<a é>", "<中", "\ud800", "<A>", "x" * 30,
)  # fmt: skip


def assert_same_page(source: str) -> None:
    compiled, plain = both(lambda: html.scan_tags(source))
    assert (compiled.text, compiled.images, compiled.linked_image) == (
        plain.text,
        plain.images,
        plain.linked_image,
    )
    assert (list(compiled.names), list(compiled.attributes)) == (
        list(plain.names),
        list(plain.attributes),
    )


@repeatable
@given(
    st.text('<>/!?abipmg ="\n\f\0é中', max_size=200)
    | st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
)
def test_any_markup(source: str) -> None:
    assert_same_page(source)


def test_pages_that_end_anywhere() -> None:
    source = "é<a href=1>x<img>é</a><!doctype html><p"
    for size in range(len(source) + 1):
        assert_same_page(source[:size])
