"""Lines out of bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.servers.smtp_state import MAX_LONG_LINE_BYTES, BadLineError, LineBuffer


def all_of(lines):
    found = []
    while True:
        try:
            line = lines.next_line()
        except BadLineError:
            found.append("bad")
            continue
        if line is None:
            return found
        found.append(line)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"\0"]), max_size=30),
    st.integers(1, 5),
)
def test_only_crlf_ends_a_line_however_the_bytes_are_cut(pieces, step):
    text, lines, found = b"".join(pieces), LineBuffer(), []
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        found += all_of(lines)
    *ended, rest = text.split(b"\r\n")
    assert (found, bytes(lines.data)) == (ended, rest)


@pytest.mark.parametrize("step", [1000, 4096, 70000])
def test_an_overlong_line_is_refused_at_its_end_and_takes_no_memory(step):
    text, lines, found, most = b"x" * 200_000 + b"\r\nNOOP\r\n", LineBuffer(), [], 0
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        found += all_of(lines)
        most = max(most, len(lines.data))
    assert found == ["bad", b"NOOP"]
    assert most <= MAX_LONG_LINE_BYTES


def test_its_end_may_come_in_two_pieces():
    lines = LineBuffer()
    lines.data += b"x" * 20_000 + b"\r"
    assert all_of(lines) == []
    lines.data += b"\nNOOP\r\n"
    assert all_of(lines) == ["bad", b"NOOP"]


@pytest.mark.parametrize(
    "text", [b"NOOP\n", b"a\r\nNOOP\n", b"\n", b"NOOP\nNOOP\n", b"x" * 20_000 + b"\n"]
)
@pytest.mark.parametrize("step", [1, 5, 30_000])
def test_a_line_that_ends_in_lf_alone_is_noticed(text, step):
    lines = LineBuffer()
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        all_of(lines)
    assert lines.ends_in_bare_lf


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r\n", b"a", b"\r", b"x" * 20_000]), max_size=20), st.integers(1, 5)
)
def test_without_a_bare_lf_none_is_noticed(pieces, step):
    text, lines = b"".join(pieces), LineBuffer()
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        all_of(lines)
        assert not lines.ends_in_bare_lf


def test_what_was_taken_can_be_put_back():
    lines = LineBuffer()
    lines.data += b"abc\r\n.\r\nQUIT"
    assert lines.take_all() == b"abc\r\n.\r\nQUIT"
    lines.data += b"\r\n"
    lines.put_back(b"QUIT")
    assert all_of(lines) == [b"QUIT"]
