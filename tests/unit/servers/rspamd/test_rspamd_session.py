"""rspamd's protocol as its clients speak it, and malformed requests."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from spamguard.config.options import ScannerLimits
from spamguard.servers import scanner
from spamguard.users import UserResolver
from tests.support.scanners import ScriptedJudge, Served
from tests.support.waiting import PATIENCE
from tests.unit.servers.rspamd.talking import MAIL, parse, request, run, said


@pytest.mark.parametrize(
    ("fields", "user"),
    [
        ({"User": "anna"}, "anna"),
        ({"User": "anna", "Rcpt": "ben@y.example"}, "ben@y.example"),
        ({"User": "anna", "Rcpt": "x@y.example", "Deliver-To": "<ben@y.example>"}, "ben@y.example"),
        ({"IP": "nonsense", "User": " "}, ""),
    ],
)
def test_whose_mail_it_is(tmp_path: Path, fields: Mapping[str, str], user: str) -> None:
    async def talk(served: Served) -> list[str]:
        await served.say(request("/checkv2", fields=fields))
        return list(served.judge.users[0])[:1]

    assert run(tmp_path, talk, resolver=UserResolver(())) == ([user] if user else [])


@pytest.mark.parametrize("name", ["Compression", "Content-Encoding"])
def test_what_cannot_be_unpacked_is_not_judged(tmp_path: Path, name: str) -> None:
    judge = ScriptedJudge()
    assert (
        said(tmp_path, request("/checkv2", gzip.compress(MAIL), {name: "gzip"}), judge=judge).status
        == 415
    )
    assert judge.raws == []
    assert said(tmp_path, request("/checkv2", fields={name: "identity"})).status == 200


def test_compressed(tmp_path: Path) -> None:
    packed = zstandard.compress(MAIL)
    for fields in ({"Compression": "zstd"}, {"Content-Encoding": "zstd"}):
        judge = ScriptedJudge()
        assert said(tmp_path, request("/checkv2", packed, fields), judge=judge).status == 200
        assert judge.raws == [MAIL]
    for raw in (packed[:-3], MAIL, b""):
        assert said(tmp_path, request("/checkv2", raw, {"Compression": "zstd"})).status == 400


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    bomb = zstandard.compress(bytes(256 << 20))
    judge = ScriptedJudge()
    answer = said(
        tmp_path,
        request("/checkv2", bomb, {"Compression": "zstd"}),
        judge=judge,
        limits=ScannerLimits(message_size=1 << 20),
    )
    assert (answer.status, answer.json, judge.raws) == (413, {"error": "too large"}, [])


def test_a_client_that_waits_for_100_continue_gets_it(tmp_path: Path) -> None:
    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            head, _, raw = request("/checkv2", fields={"Expect": "100-continue"}).partition(
                b"\r\n\r\n"
            )
            writer.write(head + b"\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 100")
            writer.write(raw)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    assert b"200" in run(tmp_path, talk)


@pytest.mark.parametrize("at", [1, 10, 17, 18])
def test_the_first_line_may_come_in_pieces(tmp_path: Path, at: int) -> None:
    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            data = f"CHECK RSPAMC/1.3\r\nContent-length: {len(MAIL)}\r\n\r\n".encode() + MAIL
            writer.write(data[:at])
            await asyncio.sleep(0.1)
            writer.write(data[at:])
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    assert run(tmp_path, talk).startswith(b"RSPAMD/1.3 0 EX_OK")


# ---- what nobody should say


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x00" * 200_000, 400),
        (b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000, 431),
        (b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nshort", 400),
        (
            (
                b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
                b"chunked\r\n\r\nzz\r\n"
            ),
            400,
        ),
        (b"POST /checkv2 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),  # no Host
        (request("/nothing"), 404),
        (request("/checkv2", fields={"Origin": "null"}), 403),
        (request("/checkv2", fields={"Sec-Fetch-Site": "cross-site"}), 403),
        (request("/../checkv2"), 404),
        (request("/%63heckv2"), 404),
        (request("/checkv2", method="DELETE"), 405),
        (request("/checkv2", b""), 400),
        (b"CHECK RSPAMC/9.9\r\n\r\n", 400),
    ],
)
def test_nonsense_is_refused_and_never_judged(tmp_path: Path, data: bytes, status: int) -> None:
    judge = ScriptedJudge()
    answer = said(tmp_path, data, judge=judge)
    assert (answer.status, list(answer.json), judge.raws) == (status, ["error"], [])
    assert "Traceback" not in answer.fields
    assert "close" in answer.fields


# ---- bodies in chunks (RFC 9112, section 7.1), as Haraka sends them


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
    } == {"action": str, "score": float, "required_score": float, "is_skipped": bool}
    assert all({"name", "score"} <= set(symbol) for symbol in answer["symbols"].values())
    assert answer["urls"] == answer["emails"] == []
    assert answer["milter"]["remove_headers"] == {"X-Spam-Flag": 0}
    assert all(
        isinstance(value, str) and "\n" not in value
        for value in answer["milter"]["add_headers"].values()
    )


# ---- lessons


@pytest.mark.slow
def test_passwords_are_not_guessed_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "_WRONG_PASSWORD_SECONDS", 0.5)
    (tmp_path / "password").write_text("secret\n")

    async def talk(served: Served) -> None:
        async def guess(password: str, path: str) -> int:
            return parse(await served.say(request(path, fields={"Password": password}))).status

        guesses = [
            asyncio.create_task(guess("wrong", path)) for path in ("/learnspam", "/learnham") * 2
        ]
        await asyncio.sleep(0.05)
        begun = asyncio.get_running_loop().time()
        assert await guess("secret", "/learnspam") == 200
        assert not all(guess.done() for guess in guesses)  # who knows it does not wait for those
        await asyncio.gather(*guesses)
        assert asyncio.get_running_loop().time() - begun > 1.5  # one after the other

    run(tmp_path, talk, password_file=tmp_path / "password")
