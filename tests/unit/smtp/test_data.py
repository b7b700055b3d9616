"""Only CRLF.CRLF ends a message, however it is cut, and no message sent on holds another end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spamguard.smtp.commands import DataReader, dot_stuff
from tests.unit.mail.support import seconds
from tests.unit.smtp.smuggling import ANY_END, ENDS, cuts

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


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_no_other_end_is_taken(end: bytes) -> None:
    text = b"Subject: 1\r\n\r\nfirst" + end + b"MAIL FROM:<a@b>\r\nsecond\r\n.\r\n"
    bodies = set()
    for chunks in cuts(text):
        body, finished, rest, found = read(chunks, normalise=False)
        assert (finished, rest) == (True, b"")
        assert b"second" in body
        assert found
        bodies.add(body)
    assert len(bodies) == 1


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_normalised_message_holds_no_end_for_anybody(end: bytes) -> None:
    text = b"Subject: 1\r\n\r\nfirst" + end + b"MAIL FROM:<a@b>\r\nsecond\r\n.\r\n"
    for chunks in cuts(text):
        body, _, rest, _ = read(chunks, normalise=True)
        assert rest == b""
        for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
            sent = b"".join(dot_stuff(pieces))
            assert [match.end() for match in ANY_END.finditer(sent)] == [len(sent) - 1]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_what_should_have_been_normalised_is_never_sent(end: bytes) -> None:
    text = b"first" + end + b"second\r\n"
    for chunks in cuts(text):
        given_out = []
        with pytest.raises(ValueError, match=r"bare|nul"):
            given_out.extend(dot_stuff(chunks))
        assert not ANY_END.search(b"".join(given_out))


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"", b".\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b"a\r\n", b"a\r\n.\r\n"),
        (b".", b"..\r\n.\r\n"),
        (b"\r\n", b"\r\n.\r\n"),
        (b".\r\n.\r\n..\r\n", b"..\r\n..\r\n...\r\n.\r\n"),
        (b"a.\r\nb", b"a.\r\nb\r\n.\r\n"),
    ],
)
def test_dots_are_put_on(body: bytes, sent: bytes) -> None:
    for chunks in cuts(body):
        assert b"".join(dot_stuff(chunks)) == sent


def test_a_half_line_end_at_the_end_is_never_sent() -> None:
    for chunks in ([b"a\r"], [b"a", b"\r"], [b"\r"]):
        with pytest.raises(ValueError, match="bare-cr"):
            list(dot_stuff(chunks))


def test_oddities_show_as_soon_as_they_are_certain() -> None:
    reader = DataReader()
    assert reader.feed(b"a\r") == b"a"
    assert reader.oddities == set()
    assert reader.feed(b"b\0\nc") == b"\rb\0\nc"
    assert reader.oddities == {"bare-cr", "bare-lf", "nul"}


def test_commands_behind_the_end_are_no_oddity() -> None:
    reader = DataReader()
    assert reader.feed(b"a\r\n.\r\n\0\r\n\n") == b"a\r\n"
    assert (reader.is_finished, reader.rest, reader.oddities) == (True, b"\0\r\n\n", set())
    with pytest.raises(ValueError, match="ended"):
        reader.feed(b"more")


@pytest.mark.slow
def test_no_message_is_slow_to_read_or_to_send() -> None:
    def through(chunk: bytes) -> None:
        reader = DataReader(normalise=True)
        for _ in dot_stuff(reader.feed(chunk) for _ in range(32)):
            pass

    for unit in (b"\r\n", b"\r\n.a", b"\r", b"\n", b"\0", b"\r\n.\r", b".", b"a" * 70 + b"\r\n"):
        chunk = (unit * (1 << 18))[: 1 << 18]
        assert seconds(lambda chunk=chunk: through(chunk), 1) < 5
