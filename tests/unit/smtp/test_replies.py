"""Replies are the same however they are cut, bounded, and safe to pass on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.smtp.envelope import Reply, ReplyError, ReplyReader, parse_extensions

repeatable = settings(derandomize=True, deadline=None, max_examples=200, database=None)
text_of_line = st.binary(max_size=20).map(lambda text: text.translate(None, b"\r\n\0"))
replies = st.builds(
    Reply, st.integers(200, 599), st.lists(text_of_line, min_size=1, max_size=4).map(tuple)
)


def taken(chunks: list[bytes]) -> list[Reply]:
    reader = ReplyReader()
    found = []
    for chunk in chunks:
        reader.feed(chunk)
        while reply := reader.next_reply():
            found.append(reply)
    assert reader.pending_bytes == 0
    return found


@pytest.mark.slow
@repeatable
@given(st.lists(replies, max_size=4), st.integers(1, 9))
def test_replies_come_back_as_they_were_sent(sent: list[Reply], size: int) -> None:
    wire = b"".join([reply.encode() for reply in sent])
    assert taken([wire[at : at + size] for at in range(0, len(wire), size)]) == sent


@pytest.mark.parametrize(
    "wire",
    [
        b"hello\r\n",
        b"\r\n",
        b"25 ok\r\n",
        b"250ok\r\n",
        b"2500 ok\r\n",
        b"150 ok\r\n",
        b"650 ok\r\n",
        b"\xb2\xb5\xb0 ok\r\n",
        b"250-a\r\n251 b\r\n",
        b"250-a\r\n\r\n",
        b"\0250 ok\r\n",
    ],
)
def test_what_is_no_reply(wire: bytes) -> None:
    reader = ReplyReader()
    reader.feed(wire)
    with pytest.raises(ReplyError, match="reply"):
        reader.next_reply()


def test_what_a_hop_offers_can_be_offered_to_others() -> None:
    """Such clients got a 451: the reply could not be encoded."""
    offered = parse_extensions(
        Reply(250, (b"h", b"DSN \xc3\xa9", b"8BITMIME \x1b[31m", b"SMTPUTF8\ta", b"PIPELINING\t"))
    )
    assert offered == {"DSN": "??", "8BITMIME": "?[31m", "SMTPUTF8?A": "", "PIPELINING": ""}
