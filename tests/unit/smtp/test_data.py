"""Only CRLF.CRLF ends a message, however it is cut, and no message sent on holds another end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spamguard.smtp.commands import DataReader, dot_stuff
from tests.unit.smtp.smuggling import ANY_END

repeatable = settings(derandomize=True, deadline=None, max_examples=400, database=None)
awkward = st.lists(
    st.sampled_from([b"\r", b"\n", b".", b"\0", b"a", b"\r\n", b"\r\n.", b"\r\n.\r\n"]), max_size=14
).map(b"".join)
clean = st.lists(st.sampled_from([b".", b"..", b"a", b"\r\n", b"\r\n.", b"\xff"]), max_size=14).map(
    b"".join
)


def cut(text: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def read(chunks: list[bytes], *, normalise: bool) -> tuple[bytes, bool, bytes, set[str]]:
    """Body, whether it is finished, what follows, oddities."""
    reader = DataReader(normalise=normalise)
    body = rest = b""
    for chunk in chunks:
        if reader.is_finished:
            rest += chunk
        else:
            body += reader.feed(chunk)
    return body, reader.is_finished, reader.rest + rest, reader.oddities


def reference(text: bytes, *, normalise: bool) -> tuple[bytes, bytes, set[str]] | None:
    """The same for a whole text, byte by byte; None when it does not end."""
    lines = (b"\r\n" + text).split(b"\r\n")[1:]
    if b"." not in lines[:-1]:
        return None
    last = lines.index(b".")
    kept = [line[1:] if line.startswith(b".") else line for line in lines[:last]]
    odd = {b"\r": "bare-cr", b"\n": "bare-lf", b"\0": "nul"}
    found = {name for byte, name in odd.items() if any(byte in line for line in lines[:last])}
    if normalise:
        kept = [
            line.replace(b"\0", b"").replace(b"\r", b" ").replace(b"\n", b"\r\n") for line in kept
        ]
    return b"".join([line + b"\r\n" for line in kept]), b"\r\n".join(lines[last + 1 :]), found


@repeatable
@given(awkward, st.lists(st.integers(0, 100), max_size=6), st.booleans())
@example(b".\r\nQUIT\r\n", [1], True)
@example(b"", [], True)
@example(b"\n.\r\n", [1, 2], False)
def test_a_message_is_the_same_however_it_is_cut(
    text: bytes, places: list[int], normalise: bool
) -> None:
    expected = reference(text, normalise=normalise)
    body, finished, rest, found = read(cut(text, places), normalise=normalise)
    assert finished == (expected is not None)
    if expected is not None:
        assert (body, rest, found) == expected


@pytest.mark.slow
@repeatable
@given(awkward, st.lists(st.integers(0, 100), max_size=6))
def test_what_is_normalised_can_be_sent(text: bytes, places: list[int]) -> None:
    body, _, _, _ = read([*cut(text, places), b"\r\n.\r\n"], normalise=True)
    sent = b"".join(dot_stuff([body]))
    assert [match.end() for match in ANY_END.finditer(sent)] == [len(sent) - 1]


@pytest.mark.slow
@repeatable
@given(clean, st.lists(st.integers(0, 100), max_size=6), st.lists(st.integers(0, 100), max_size=6))
def test_a_message_that_was_sent_comes_back(
    body: bytes, places: list[int], others: list[int]
) -> None:
    sent = b"".join(dot_stuff(cut(body, places)))
    whole = body if body.endswith(b"\r\n") or not body else body + b"\r\n"
    assert read(cut(sent + b"QUIT\r\n", others), normalise=False) == (
        whole,
        True,
        b"QUIT\r\n",
        set(),
    )
    assert len(ANY_END.findall(sent)) == 1


def test_commands_behind_the_end_are_no_oddity() -> None:
    reader = DataReader()
    assert reader.feed(b"a\r\n.\r\n\0\r\n\n") == b"a\r\n"
    assert (reader.is_finished, reader.rest, reader.oddities) == (True, b"\0\r\n\n", set())
    with pytest.raises(ValueError, match="ended"):
        reader.feed(b"more")
