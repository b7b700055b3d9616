"""Bodies in chunks (RFC 9112, section 7.1), as Haraka sends them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.scanners import ScriptedJudge
from tests.unit.servers.rspamd.talking import MAIL, said


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def test_haraka_sends_every_line_as_a_chunk(tmp_path: Path) -> None:
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
    judge = ScriptedJudge()
    found = said(
        tmp_path,
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked(*lines) + b"0\r\n\r\n",
        judge=judge,
    )
    assert judge.raws == [b"".join(lines)]
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
