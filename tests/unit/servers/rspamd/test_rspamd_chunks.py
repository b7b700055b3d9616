"""Merged chunks carry the same body in fewer chunks."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.servers.listener import IncomingMessage
from spamguard.servers.rspamd import ChunkMerger
from tests.support.scanners import ScriptedJudge, Served
from tests.support.waiting import PATIENCE
from tests.unit.servers.rspamd.talking import MAIL, run, said

HEAD = b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def read(data: bytes) -> tuple[bytes, bytes] | None:
    """The body, and what is behind it, as h11 reads them; None: it does not."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(HEAD)
    connection.next_event()
    body = b""
    try:
        for piece in (data, b"") if data else (b"",):
            connection.receive_data(piece)
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    return body, connection.trailing_data[0]
                assert isinstance(event, h11.Data)
                body += bytes(event.data)
    except h11.RemoteProtocolError:
        return None
    return None


def merged(parts: list[bytes]) -> list[bytes] | None:
    chunks = ChunkMerger()
    try:
        return [found for part in parts if (found := chunks.merge(part))]
    except h11.RemoteProtocolError:
        return None


WHOLE, ODD = (
    (b"3\r\nabc\r\n", b"03\r\nabc\r\n", b"0\r\n\r\n"),
    (b"3;x=y\r\nabc\r\n", b"3 \r\nabc\r\n", b"00\r\n", b"Trailer: x\r\n"),
)
WRONG = (
    b"3\n",
    b"abc",
    b"3\r\nab\r\n",
    b"3\r\nabcd\r\n",
    b"G\r\n",
    b"ffffffffff\r\n",
    b"",
    b"\r",
    b"\r\n",
    b"GET / HTTP",
)
BODIES = st.one_of(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8).map(
        lambda found: chunked(*found) + b"0\r\n\r\n"
    ),
    st.lists(st.sampled_from((*WHOLE, *ODD, *WRONG)), max_size=8).map(b"".join),
)


@given(BODIES, st.lists(st.integers(0, 400), max_size=6))
def test_the_same_is_read_however_it_comes(data: bytes, cuts: list[int]) -> None:
    merged_pieces = merged(pieces(data, cuts))
    assert (None if merged_pieces is None else read(b"".join(merged_pieces))) == read(data)


def test_many_are_one() -> None:
    lines = [b"line %d\r\n" % number for number in range(10_000)]
    (merged_piece,) = [piece for piece in (merged([chunked(*lines)]) or ()) if piece]
    whole = b"".join(lines)
    assert merged_piece == b"%x\r\n%b\r\n" % (len(whole), whole)


def test_nothing_but_a_few_bytes_is_kept() -> None:
    chunks = ChunkMerger()
    assert chunks.merge(b"a\r\n0123") == b"4\r\n0123\r\n"
    assert chunks.merge(b"456789\r") == b"6\r\n456789\r\n"
    assert chunks.merge(b"\n1") == b""
    assert chunks.merge(b"\r") == b""
    assert chunks.merge(b"\nx\r\n0") == b"1\r\nx\r\n"
    assert chunks.merge(b"\r\n\r\n") == b"0\r\n\r\n"
    assert chunks.merge(b"GET / HTTP/1.1\r\n") == b"GET / HTTP/1.1\r\n"


@pytest.mark.parametrize("cuts", [[], [1], [70, 90, 100], list(range(0, 600, 7))])
def test_several_requests_on_one_connection(tmp_path: Path, cuts: list[int]) -> None:
    """Sent together, and cut anywhere."""
    mails = [b"Subject: %d\r\n\r\ntext\r\n" % number for number in range(3)]
    requests = [HEAD + chunked(*mail.splitlines(keepends=True)) + b"0\r\n\r\n" for mail in mails]
    judge = ScriptedJudge()

    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            for piece in pieces(b"".join(requests), cuts):
                writer.write(piece)
                await asyncio.sleep(0.002)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    assert run(tmp_path, talk, judge=judge).count(b"HTTP/1.1 200") == 3
    assert judge.raws == mails


def test_haraka_sends_every_line_as_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just as Node writes it for haraka-plugin-rspamd 1.6.1, which reads these of the answer's
    members.
    """
    fields = (
        "IP: 127.0.0.1\r\nHostname: mx\r\nHelo: client.example\r\nFrom: a@example.org\r\n"
        "Rcpt: anna@example.net\r\nRcpt: b@example.net\r\n"
    )
    head = (
        f"POST /checkv2 HTTP/1.1\r\n{fields}Queue-Id: 435E.1\r\nHost: 127.0.0.1:11333\r\n"
        "Connection: keep-alive\r\n"
    )
    lines = [
        b"Received: from x\r\n",
        *MAIL.splitlines(keepends=True),
        *[b"short line\r\n"] * 20_000,
    ]
    written: list[int] = []
    write: Any = IncomingMessage.write

    def counted(arriving: IncomingMessage, data: bytes) -> None:
        written.append(len(data))
        write(arriving, data)

    monkeypatch.setattr(IncomingMessage, "write", counted)
    judge = ScriptedJudge()
    found = said(
        tmp_path,
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked(*lines) + b"0\r\n\r\n",
        judge=judge,
    )
    assert judge.raws == [b"".join(lines)]
    assert (
        len(written) < 200
    )  # pieces that were parsed: 20,000 would take a large message beyond Haraka's patience
    answer = found.json
    assert {
        name: type(answer[name]) for name in ("action", "score", "required_score", "is_skipped")
    } == {
        "action": str,
        "score": float,
        "required_score": float,
        "is_skipped": bool,
    }
    assert all({"name", "score"} <= set(symbol) for symbol in answer["symbols"].values())
    assert answer["urls"] == answer["emails"] == []
    assert answer["milter"]["remove_headers"] == {"X-Spam-Flag": 0}
    assert all(
        isinstance(value, str) and "\n" not in value
        for value in answer["milter"]["add_headers"].values()
    )
