"""spamd's protocol as its clients speak it, and malformed requests."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import OnError, Policy, Protocol, ScannerLimits
from spamguard.proxy.scorer import NotScanned
from spamguard.servers.spamd import SpamdSession
from spamguard.users import QueuedLesson
from tests.support.scanners import HAM, UNSURE, ScriptedJudge, Served, serving
from tests.support.waiting import PATIENCE, until

MAIL = b"Subject: x\nX-Spam-Flag: YES\nX-Other: y\n\nhello\r\n\x00\xff\n"
STRIPPED = b"Subject: x\nX-Other: y\n\nhello\r\n\x00\xff\n"


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


def test_check_is_a_verdict_alone(tmp_path: Path) -> None:
    assert re.fullmatch(
        rb"SPAMD/1\.1 0 EX_OK\r\nSpam: True ; \d+\.\d / 5\.0\r\n\r\n",
        said(tmp_path, request("CHECK")),
    )
    ham = said(tmp_path, request("CHECK"), judge=ScriptedJudge(HAM))
    assert re.fullmatch(rb"SPAMD/1\.1 0 EX_OK\r\nSpam: False ; -\d+\.\d / 5\.0\r\n\r\n", ham)
    unsure = said(tmp_path, request("CHECK"), judge=ScriptedJudge(UNSURE))
    assert b"Spam: False ; 0.0 / 5.0" in unsure


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


def test_exim_reads_a_verdict_where_old_clients_expect_it(tmp_path: Path) -> None:
    """Exim's `spam` condition speaks version 1.2 and reads by sscanf: the status line, `Spam:`, an
    empty line, the report.
    """
    answer = said(tmp_path, request("REPORT", version="1.2", fields="User: nobody\r\n"))
    assert re.match(
        (
            rb"SPAMD/1\.1 0 EX_OK\r\nSpam: True ; \d+\.\d / 5\.0\r\n\r\nspamguard: spam, \d+\.\d "
            rb"points of 5\.0 required"
        ),
        answer,
    )


def test_reports_tell_words_harmlessly(tmp_path: Path) -> None:
    answer = said(tmp_path, request("REPORT"))
    assert b"    cheap\r\n    odd??X-Evil: yes?\r\n" in answer
    told = said(tmp_path, request("REPORT"), policy=Policy(tell_probability=True))
    assert b"    cheap +1.50\r\n" in told
    assert b"Spam: True ; " in said(tmp_path, request("REPORT_IFSPAM"))
    answer = said(tmp_path, request("REPORT_IFSPAM"), judge=ScriptedJudge(HAM))
    assert re.search(rb"Content-length: 0\r\nSpam: False ; -\d+\.\d / 5\.0\r\n\r\n$", answer)
    assert said(tmp_path, request("SYMBOLS")).endswith(b"\r\n\r\nSPAMGUARD_SPAM")
    assert said(tmp_path, request("SYMBOLS", version="1.2")).endswith(b"\r\n\r\nSPAMGUARD_SPAM")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_process_gives_the_message_back_but_for_our_fields(tmp_path: Path, end: bytes) -> None:
    raw = MAIL.replace(b"\r\n", b"\n").replace(b"\n", end)
    answer = said(tmp_path, request("PROCESS", raw))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert f"Content-length: {len(content)}".encode() in head
    *ours, rest = content.split(end, 3)
    assert [line.partition(b":")[0] for line in ours] == [
        b"X-Spam-Flag",
        b"X-Spam-Status",
        b"X-Spamguard",
    ]
    assert rest == STRIPPED.replace(b"\r\n", b"\n").replace(b"\n", end)


def test_process_of_a_large_message(tmp_path: Path) -> None:
    raw = MAIL + b"y" * 79 + b"\n" + b"x" * (3 << 20)
    answer = said(tmp_path, request("PROCESS", raw, version="1.3"))
    assert answer.endswith(raw[MAIL.index(b"X-Other") :])
    assert len(answer) > len(raw)


def test_what_cannot_be_judged_passes_or_is_put_off(tmp_path: Path) -> None:
    judge = ScriptedJudge(NotScanned("timeout"))
    answer = said(tmp_path, request("PROCESS"), judge=judge)
    assert b"Spam: False ; 0.0 / 5.0" in answer
    assert b"X-Spamguard: not-scanned; reason=timeout\n" + STRIPPED in answer
    answer = said(tmp_path, request("PROCESS"), judge=judge, policy=Policy(on_error=OnError.DEFER))
    assert answer == b"SPAMD/1.1 75 Try again later\r\n\r\n"


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
            await served.say(request("TELL", fields=fields))
            for fields in (AS_SPAM, AS_SPAM, forget, forget, as_ham)
        ]
        assert served.lessons() == [
            QueuedLesson("spam", "anna", "spamd", MAIL),
            QueuedLesson("", "anna", "spamd", MAIL),
            QueuedLesson("ham", "", "spamd", MAIL),
        ]
        return answers

    ok = b"SPAMD/1.1 0 EX_OK\r\n"
    set_, removed = ok + b"DidSet: local\r\n\r\n", ok + b"DidRemove: local\r\n\r\n"
    assert run(tmp_path, talk, **TEACHERS) == [set_, ok + b"\r\n", removed, ok + b"\r\n", set_]


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


@pytest.mark.slow
def test_a_refusal_leaves_nothing_behind(tmp_path: Path) -> None:
    """An error object that served for all of them would keep every session that it has ended."""

    async def talk(served: Served) -> None:
        for _ in range(10):
            await served.say(request("CHECK"))
            await served.say(request("TELL", fields=AS_SPAM))
            await served.say(request("TELL", MAIL + bytes(300), fields=AS_SPAM))

    def sessions() -> int:
        gc.collect()
        return sum(isinstance(thing, SpamdSession) for thing in gc.get_objects())

    before = sessions()
    run(tmp_path, talk, limits=ScannerLimits(message_size=len(MAIL) + 100))
    assert sessions() == before


def test_a_message_of_no_bytes(tmp_path: Path) -> None:
    assert b"Spam: True" in said(tmp_path, request("CHECK", b""))


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
