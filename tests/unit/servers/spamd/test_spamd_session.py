"""spamd's protocol as its clients speak it, and malformed requests."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import Protocol, ScannerLimits
from spamguard.users import QueuedLesson
from tests.support.scanners import HAM, ScriptedJudge, Served, serving
from tests.support.waiting import PATIENCE, until

MAIL = b"Subject: x\nX-Spam-Flag: YES\nX-Other: y\n\nhello\r\n\x00\xff\n"


def run(directory: Path, talk: Callable[[Served], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with serving(directory, Protocol.SPAMD, **settings) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def request(
    method: str,
    raw: bytes = MAIL,
    version: str = "1.5",
    fields: str = "",
    *,
    length: int | None = -1,
) -> bytes:
    size = "" if length is None else f"Content-length: {len(raw) if length < 0 else length}\r\n"
    return f"{method} SPAMC/{version}\r\n{fields}{size}\r\n".encode() + raw


def said(directory: Path, data: bytes, *, end: bool = True, **settings: Any) -> bytes:
    async def talk(served: Served) -> bytes:
        return await served.say(data, end=end)

    result = run(directory, talk, **settings)
    assert isinstance(result, bytes)
    return result


def test_ping_and_skip(tmp_path: Path) -> None:
    assert said(tmp_path, b"PING SPAMC/1.2\r\n", end=False) == b"SPAMD/1.5 0 PONG\r\n"
    assert said(tmp_path, b"PING SPAMC/1.5\r\n\r\n", end=False) == b"SPAMD/1.5 0 PONG\r\n"
    assert said(tmp_path, b"PING SPAMC/1.2\r\n\r\n") == b"SPAMD/1.5 0 PONG\r\n"


@pytest.mark.parametrize("length", [None, -1])
def test_haraka_sends_no_length_and_reads_header_fields(tmp_path: Path, length: int | None) -> None:
    """Haraka's plugin reads `Spam:` line by line, an empty line, then fields that begin with
    X-Spam-.
    """
    answer = said(
        tmp_path, request("HEADERS", version="1.4", fields="User: default\r\n", length=length)
    )
    head, _, fields = answer.partition(b"\r\n\r\n")
    assert re.search(
        rb"^Spam: (True|False) ; (-?\d+\.\d) / (-?\d+\.\d)$", head.replace(b"\r", b""), re.MULTILINE
    )
    assert re.search(
        rb"^X-Spam-Status: Yes, score=\d+\.\d required=5\.0 tests=SPAMGUARD_SPAM$",
        fields,
        re.MULTILINE,
    )
    assert fields.endswith(b"Subject: x\nX-Other: y\n\n")
    assert f"Content-length: {len(fields)}".encode() in head


def test_reports_tell_words_harmlessly(tmp_path: Path) -> None:
    answer = said(tmp_path, request("REPORT"))
    assert b"    cheap\r\n    odd??X-Evil: yes?\r\n" in answer
    told = said(tmp_path, request("REPORT"), tell_probability=True)
    assert b"    cheap +1.50\r\n" in told
    assert b"Spam: True ; " in said(tmp_path, request("REPORT_IFSPAM"))
    answer = said(tmp_path, request("REPORT_IFSPAM"), judge=ScriptedJudge(HAM))
    assert re.search(rb"Content-length: 0\r\nSpam: False ; -\d+\.\d / 5\.0\r\n\r\n$", answer)
    assert said(tmp_path, request("SYMBOLS")).endswith(b"\r\n\r\nSPAMGUARD_SPAM")
    assert said(tmp_path, request("SYMBOLS", version="1.2")).endswith(b"\r\n\r\nSPAMGUARD_SPAM")


def test_compressed(tmp_path: Path) -> None:
    packed = zlib.compress(MAIL)
    assert b"Spam: True" in said(tmp_path, request("CHECK", packed, fields="Compress: zlib\r\n"))
    for raw, code in ((packed[:-3], b"76"), (packed + b"more", b"65"), (MAIL, b"65"), (b"", b"76")):
        assert said(tmp_path, request("CHECK", raw, fields="Compress: zlib\r\n")).startswith(
            b"SPAMD/1.1 " + code
        )
    assert said(
        tmp_path, request("CHECK", packed, fields="Compress: zlib\r\n", length=None)
    ).startswith(b"SPAMD/1.1 76")
    assert said(tmp_path, request("CHECK", packed, fields="Compress: bzip2\r\n")).startswith(
        b"SPAMD/1.1 76"
    )


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)

    async def talk(served: Served) -> bytes:
        answer = await served.say(request("CHECK", bomb, fields="Compress: zlib\r\n"))
        assert served.judge.raws == []
        return answer

    assert (
        run(tmp_path, talk, limits=ScannerLimits(message_size=1 << 20))
        == b"SPAMD/1.1 65 Message cannot be taken\r\n\r\n"
    )


# ---- TELL

TEACHERS = {"teachers": ("127.0.0.1/32",)}
AS_SPAM = "Message-class: spam\r\nSet: local\r\nUser: anna\r\n"


def test_tell(tmp_path: Path) -> None:
    async def talk(served: Served) -> list[bytes]:
        forget = "Remove: local\r\nUser: anna\r\n"
        as_ham = "Set: local, remote\r\nMessage-class: ham\r\n"
        answers = [
            await served.say(request("TELL", fields=fields)) for fields in (AS_SPAM, forget, as_ham)
        ]
        assert served.lessons() == [
            QueuedLesson("spam", "anna", "spamd", MAIL),
            QueuedLesson("", "anna", "spamd", MAIL),
            QueuedLesson("ham", "", "spamd", MAIL),
        ]
        return answers

    ok = b"SPAMD/1.1 0 EX_OK\r\n"
    set_, removed = ok + b"DidSet: local\r\n\r\n", ok + b"DidRemove: local\r\n\r\n"
    assert run(tmp_path, talk, **TEACHERS) == [set_, removed, set_]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("Message-class: spam\r\nSet: remote\r\n", b"76"),
        ("Message-class: spam\r\n", b"76"),
        ("Message-class: spam\r\nSet: local\r\nRemove: local\r\n", b"76"),
        ("Message-class: eggs\r\nSet: local\r\n", b"76"),
        ("Set: local\r\n", b"76"),
        (AS_SPAM.replace("anna", "two\twords"), b"65"),
    ],
)
def test_what_tell_does_not_do(tmp_path: Path, fields: str, code: bytes) -> None:
    assert said(tmp_path, request("TELL", fields=fields), **TEACHERS).startswith(
        b"SPAMD/1.1 " + code
    )


def test_tell_is_for_teachers(tmp_path: Path) -> None:
    assert said(tmp_path, request("TELL", fields=AS_SPAM)).startswith(b"SPAMD/1.1 77 ")


# ---- what nobody should say


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"CHECK\r\n\r\n",
        b"EVIL SPAMC/1.5\r\n\r\n",
        b"check SPAMC/1.5\r\n\r\n",
        b"CHECK SPAMC/15\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CHECK SPAMC/1.5\r\nno field\r\n\r\n",
        b"CHECK SPAMC/1.5\r\nContent-length: -5\r\n\r\n",
        b"CHECK SPAMC/1.5\r\nContent-length: 99999999999999\r\n\r\n",
        b"CHECK SPAMC/1.5\r\nContent-length: 9",
        b"CHECK SPAMC/1.5\r\nContent-length: 9\r\n\r\nshort",
        b"CHECK SPAMC/1.5\r\nContent-length: 3\r\n\r\ntoo long",
        b"CHECK SPAMC/1.5\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"CHECK SPAMC/1.5\r\nX: " + b"y" * 100_000,
        b"\x00" * 100_000,
    ],
)
def test_nonsense_is_refused_and_never_judged(tmp_path: Path, data: bytes) -> None:
    async def talk(served: Served) -> bytes:
        answer = await served.say(data)
        assert served.judge.raws == []
        return answer

    assert run(tmp_path, talk).startswith(b"SPAMD/1.1 76 Request not understood")


@pytest.mark.parametrize("cut", [100, None])
def test_a_reset_connection_logs_no_fault(
    tmp_path: Path, cut: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a request, or without taking the answer: by a reset, as programs do that end
    by a signal.
    """

    async def talk(served: Served) -> None:
        served.judge.hold = asyncio.Event()
        for number in range(5):
            _, writer = await served.connect()
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.write(request("PROCESS", MAIL + bytes(400_000))[:cut])
            await writer.drain()
            await until(
                lambda number=number: (
                    served.door.connections and (cut is not None or len(served.judge.raws) > number)
                )
            )
            writer.transport.abort()
        await asyncio.sleep(0.1)
        served.judge.hold.set()
        await until(lambda: not served.door.connections)

    run(tmp_path, talk)
    assert "fault" not in caplog.text
