"""What every scanner door promises, run on each: one verdict whatever is spoken, nothing judged
that did not come in whole, limits that hold, and a good end.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import OnError, Protocol, ScannerLimits
from spamguard.proxy.scorer import NotScanned
from spamguard.servers import listener
from tests.support.scanners import HAM, ScriptedJudge, Served, in_transactions, serving
from tests.support.silent import silent_clients
from tests.support.waiting import PATIENCE, drain, until
from tests.unit.servers.milter.mta import Mta

pytestmark = pytest.mark.slow  # waits for seconds

MAIL = b"Subject: x\r\nFrom: a@x.example\r\n\r\nhello\r\n" + b"line of it\r\n" * 200
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def by_rspamd(streams: Streams, raw: bytes, cut: int | None) -> str:
    reader, writer = streams
    data = b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
    writer.write(data[:cut])
    if not (status := await reader.readline()):
        return "hung up"
    fields = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(fields.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    assert b"Traceback" not in body
    if b" 200 " not in status:
        return "refused"
    return {"add header": "spam", "no action": "pass", "soft reject": "later"}[
        json.loads(body)["action"]
    ]


async def by_spamd(streams: Streams, raw: bytes, cut: int | None) -> str:
    reader, writer = streams
    data = b"PROCESS SPAMC/1.5\r\nContent-length: %d\r\n\r\n" % len(raw) + raw
    writer.write(data[:cut])
    answer = await reader.read()
    assert b"Traceback" not in answer
    if not answer or b" 0 EX_OK" not in answer:
        return (
            "hung up"
            if not answer
            else "later"
            if answer.startswith(b"SPAMD/1.1 75")
            else "refused"
        )
    assert answer.endswith(raw)
    return "spam" if b"Spam: True" in answer else "pass"


async def by_milter(streams: Streams, raw: bytes, cut: int | None) -> str:
    server = Mta(*streams)
    try:
        if not server.steps:
            await server.agree()
            await server.client()
        if cut is not None:
            await server.envelope()
            await server.content(raw[: len(raw) // 2])
            return "hung up" if await server.hung_up() else "went on"
        answer, fields = await server.message(raw)
    except (asyncio.IncompleteReadError, ConnectionError):
        return "hung up"
    if answer.reply != b"c":
        return "later" if answer.text.startswith(b"451") else "refused"
    return "spam" if b"X-Spam-Flag" in [name for name, _ in fields] else "pass"


ASKERS: dict[Protocol, Callable[[Streams, bytes, int | None], Awaitable[str]]] = {
    Protocol.RSPAMD: by_rspamd,
    Protocol.SPAMD: by_spamd,
    Protocol.MILTER: by_milter,
}
AWAY = {"refused", "hung up", "later"}


@pytest.fixture(params=ASKERS)
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


async def ask(
    served: Served, protocol: Protocol, raw: bytes = MAIL, *, cut: int | None = None
) -> str:
    """What a client understands: spam, pass, later, refused, hung up. cut: bytes of the request
    that are sent.
    """
    streams = await served.connect()
    try:
        return await asyncio.wait_for(ASKERS[protocol](streams, raw, cut), PATIENCE)
    except (ConnectionError, asyncio.IncompleteReadError):
        return "hung up"
    finally:
        streams[1].close()


def run(
    directory: Path, protocol: Protocol, talk: Callable[[Served], Awaitable[Any]], **settings: Any
) -> Any:
    async def main() -> Any:
        async with serving(directory, protocol, **settings) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def test_a_verdict_is_answered_and_recorded(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> list[str]:
        answers = [await ask(served, protocol)]
        served.judge.says = HAM
        answers.append(await ask(served, protocol))
        assert served.judge.raws == [MAIL, MAIL]
        assert [entry.label for entry in served.entries] == ["spam", "ham"]
        assert {entry.door.partition(":")[0] for entry in served.entries} == {protocol}
        return answers

    assert run(tmp_path, protocol, talk) == ["spam", "pass"]


@pytest.mark.parametrize(("on_error", "told"), [(OnError.PASS, "pass"), (OnError.DEFER, "later")])
def test_what_cannot_be_judged(
    tmp_path: Path, protocol: Protocol, on_error: OnError, told: str
) -> None:
    async def talk(served: Served) -> str:
        return await ask(served, protocol)

    judge = ScriptedJudge(NotScanned("crashed"))
    assert run(tmp_path, protocol, talk, judge=judge, on_error=on_error) == told


def test_a_fault_of_ours_lets_mail_pass(
    tmp_path: Path, protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ScriptedJudge):
        async def judge(self, *_: Any) -> Any:
            raise ZeroDivisionError

    async def talk(served: Served) -> str:
        return await ask(served, protocol)

    assert run(tmp_path, protocol, talk, judge=Broken()) == "pass"
    assert "ZeroDivisionError" in caplog.text


def test_strangers_are_sent_away(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> str:
        answer = await ask(served, protocol)
        assert served.judge.raws == []
        return answer

    assert run(tmp_path, protocol, talk, clients=("192.0.2.0/24",)) in AWAY


@pytest.mark.parametrize(
    "limits", [ScannerLimits(connections=2), ScannerLimits(connections_per_client=2)]
)
def test_one_connection_too_many(tmp_path: Path, protocol: Protocol, limits: ScannerLimits) -> None:
    async def talk(served: Served) -> list[str]:
        served.judge.hold = asyncio.Event()
        judged = [asyncio.create_task(ask(served, protocol)) for _ in range(2)]
        await until(lambda: len(served.judge.raws) == 2)
        answers = [await ask(served, protocol)]
        served.judge.hold.set()
        answers += [await task for task in judged]
        await until(lambda: served.door.connections == 0)
        return [*answers, await ask(served, protocol)]

    away, *welcome = run(tmp_path, protocol, talk, limits=limits)
    assert away in AWAY
    assert welcome == ["spam"] * 3


def test_silent_clients_make_room_for_others(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> list[str]:
        async with silent_clients(served.address[1], 52) as silent:
            assert [await reader.read() for reader in silent[:12]] == [b""] * 12
            return [await ask(served, protocol) for _ in range(81)]

    assert (
        run(
            tmp_path,
            protocol,
            talk,
            limits=ScannerLimits(connections=40, connections_per_client=13),
        )
        == ["spam"] * 81
    )


def test_a_client_in_a_transaction_is_not_evicted(tmp_path: Path, protocol: Protocol) -> None:
    """One message is being judged, another comes in; only a silent client makes room."""

    async def talk(served: Served) -> list[str]:
        served.judge.hold = hold = asyncio.Event()
        judged = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        half = asyncio.create_task(ask(served, protocol, cut=len(MAIL) // 2))
        await until(lambda: in_transactions(served.door) == 2)
        served.judge.hold = None
        async with silent_clients(served.address[1], 6) as silent:
            assert [await reader.read() for reader in silent[:5]] == [b""] * 5
            answers = [await ask(served, protocol) for _ in range(5)]
        assert not half.done()
        half.cancel()
        hold.set()
        return [await judged, *answers]

    assert run(tmp_path, protocol, talk, limits=ScannerLimits(connections=3)) == ["spam"] * 6


def test_a_client_that_is_silent_in_a_transaction_makes_room(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one whose message is being judged, however long that takes."""
    monkeypatch.setattr(listener, "SILENT_SECONDS", 0.2)

    async def talk(served: Served) -> list[str]:
        served.judge.hold = hold = asyncio.Event()
        judged = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        cuts = {Protocol.MILTER: (9,), Protocol.RSPAMD: (1, 60, 90), Protocol.SPAMD: (1, 10, 90)}
        silent = [asyncio.create_task(ask(served, protocol, cut=cut)) for cut in cuts[protocol]]
        await until(lambda: served.door.connections == 1 + len(silent))
        await asyncio.sleep(0.5)
        served.judge.hold = None
        answers = [await ask(served, protocol) for _ in range(5)]
        hold.set()
        return [await judged, *answers]

    limits = ScannerLimits(connections=4 if protocol is not Protocol.MILTER else 2)
    assert run(tmp_path, protocol, talk, limits=limits) == ["spam"] * 6


@pytest.mark.parametrize(
    "protocol", [Protocol.RSPAMD, Protocol.MILTER]
)  # spamd's ends with its answer
def test_a_kept_connection_is_idle_between_messages(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> list[str]:
        streams = await served.connect()
        answers = [await ASKERS[protocol](streams, MAIL, None), await ask(served, protocol)]
        assert await streams[0].read() == b""
        streams[1].close()
        return answers

    assert run(tmp_path, protocol, talk, limits=ScannerLimits(connections=1)) == ["spam"] * 2


@pytest.mark.parametrize(
    "protocol", sorted(ASKERS.keys() - {Protocol.MILTER})
)  # a mail server may wait for its own clients for hours
def test_a_silent_client_is_disconnected(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> None:
        _, writer = await served.connect()
        await until(lambda: served.door.connections == 1)
        await until(lambda: served.door.connections == 0)
        writer.close()

    run(tmp_path, protocol, talk, limits=ScannerLimits(command_timeout=0.2))


@pytest.mark.parametrize(
    "limits", [ScannerLimits(data_timeout=0.2), ScannerLimits(message_timeout=0.2)]
)
def test_half_a_message_is_never_judged(
    tmp_path: Path, protocol: Protocol, limits: ScannerLimits
) -> None:
    async def talk(served: Served) -> str:
        answer = await ask(served, protocol, cut=len(MAIL) // 2)
        await until(lambda: served.door.connections == 0)
        assert served.judge.raws == []
        return answer

    assert run(tmp_path, protocol, talk, limits=limits) in AWAY


@pytest.mark.parametrize(
    "begin",
    [
        b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nX: ",
        b"CHECK SPAMC/1.5\r\nUser: ",
        b"POST /checkv2 HTTP/1.1\r\nHost: x\r\n",
    ],
)
@pytest.mark.parametrize("protocol", sorted(ASKERS.keys() - {Protocol.MILTER}))
def test_a_client_that_sends_too_slowly_is_cut_off(
    tmp_path: Path, protocol: Protocol, begin: bytes
) -> None:
    async def talk(served: Served) -> float:
        reader, writer = await served.connect()
        answered = asyncio.create_task(reader.read())
        started = asyncio.get_running_loop().time()
        writer.write(begin)
        while not answered.done():
            writer.write(b"y")
            await asyncio.wait([answered], timeout=0.05)
        await until(lambda: served.door.connections == 0)
        assert served.judge.raws == []
        return asyncio.get_running_loop().time() - started

    assert (
        run(tmp_path, protocol, talk, limits=ScannerLimits(data_timeout=10, message_timeout=0.5))
        < 10
    )


def test_a_client_that_leaves_during_its_request_leaves_nothing_behind(
    tmp_path: Path, protocol: Protocol
) -> None:
    async def talk(served: Served) -> str:
        for _ in range(5):
            task = asyncio.create_task(ask(served, protocol, MAIL * 300, cut=len(MAIL) * 150))
            await until(lambda: served.door.connections == 1)
            await asyncio.sleep(0.05)
            task.cancel()
            await until(lambda: served.door.connections == 0)
        assert served.judge.raws == []
        return await ask(served, protocol)

    assert (
        run(tmp_path, protocol, talk, limits=ScannerLimits(size_in_flight=len(MAIL) * 310))
        == "spam"
    )


def test_a_client_that_leaves_while_it_is_judged_leaves_nothing_behind(
    tmp_path: Path, protocol: Protocol
) -> None:
    async def talk(served: Served) -> str:
        served.judge.hold = asyncio.Event()
        for number in range(3):
            task = asyncio.create_task(ask(served, protocol))
            await until(lambda number=number: len(served.judge.raws) == number + 1)
            task.cancel()
        served.judge.hold.set()
        await until(lambda: served.door.connections == 0)
        return await ask(served, protocol)

    assert (
        run(tmp_path, protocol, talk, limits=ScannerLimits(size_in_flight=len(MAIL) * 4)) == "spam"
    )


def test_a_message_that_is_too_large_is_not_judged(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> list[str]:
        answers = [await ask(served, protocol, MAIL + b"x" * 100_000 + b"\r\n")]
        assert served.judge.raws == []
        return [*answers, await ask(served, protocol)]

    large, usual = run(tmp_path, protocol, talk, limits=ScannerLimits(message_size=50_000))
    assert large in {
        "refused",
        "pass",
    }  # what is not judged passes where the protocol has no word for it
    assert usual == "spam"


def test_too_much_at_once_is_not_judged(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> list[str]:
        served.judge.hold = asyncio.Event()
        first = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        second = await ask(served, protocol)
        assert len(served.judge.raws) == 1
        served.judge.hold.set()
        return [await first, second, await ask(served, protocol)]

    first, second, third = run(
        tmp_path, protocol, talk, limits=ScannerLimits(size_in_flight=len(MAIL) * 3 // 2)
    )
    assert (first, third) == ("spam", "spam")
    assert second in {"refused", "later", "pass"}


@pytest.mark.parametrize(("trusted", "judged"), [((), False), (("127.0.0.0/8",), True)])
def test_a_stranger_may_have_half_of_what_may_come_at_once(
    tmp_path: Path, protocol: Protocol, trusted: tuple[str, ...], judged: bool
) -> None:
    """Clients that do not send the ends of their messages keep out no other message."""

    async def talk(served: Served) -> str:
        served.judge.hold = asyncio.Event()
        first = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        second = asyncio.create_task(ask(served, protocol))
        await until(lambda: second.done() or len(served.judge.raws) == 2)
        served.judge.hold.set()
        assert await first == "spam"
        return await second

    limits = ScannerLimits(size_in_flight=3 * len(MAIL), message_size=len(MAIL) + 100)
    assert (run(tmp_path, protocol, talk, trusted=trusted, limits=limits) == "spam") is judged


def test_draining_finishes_what_is_under_way(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> str:
        served.judge.hold = asyncio.Event()
        asked = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        draining = asyncio.create_task(drain(served.door, 30))
        await asyncio.sleep(0.1)
        assert not draining.done()
        served.judge.hold.set()
        answer = await asked
        await draining
        assert served.door.connections == 0
        return answer

    assert run(tmp_path, protocol, talk) == "spam"


@pytest.mark.parametrize("moment", range(3))
def test_a_client_that_connects_at_that_moment_cuts_nobody_off(
    tmp_path: Path, protocol: Protocol, moment: int
) -> None:
    async def talk(served: Served) -> str:
        served.judge.hold = asyncio.Event()
        asked = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        with socket.create_connection(served.address):
            for _ in range(moment):
                await asyncio.sleep(0)
            draining = asyncio.ensure_future(drain(served.door, 30))
            await asyncio.sleep(0.05)
        served.judge.hold.set()
        answer = await asked
        await draining
        return answer

    assert run(tmp_path, protocol, talk) == "spam"


def test_a_new_client_is_served_while_the_door_drains(tmp_path: Path, protocol: Protocol) -> None:
    async def talk(served: Served) -> str:
        streams = await served.connect()
        await until(lambda: served.door.connections == 1)
        draining = asyncio.create_task(drain(served.door, 30))
        await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(ASKERS[protocol](streams, MAIL, None), PATIENCE)
        streams[1].close()
        await draining
        return answer

    assert run(tmp_path, protocol, talk) == "spam"


def test_no_client_can_keep_a_door_open(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_CANCEL_TIMEOUT", 0.2)

    async def talk(served: Served) -> None:
        served.judge.hold = asyncio.Event()
        hung = asyncio.create_task(ask(served, protocol))
        await until(lambda: served.judge.raws)
        silent = await served.connect()
        half = asyncio.create_task(ask(served, protocol, cut=50))
        await until(lambda: served.door.connections == 3)
        await drain(served.door, 1.5)
        assert served.door.connections == 0
        silent[1].close()
        assert await half in AWAY
        hung.cancel()

    run(tmp_path, protocol, talk)


def test_random_bytes_affect_no_other_client(
    tmp_path: Path, protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes by chance, behind what begins well."""
    chance = random.Random(5)
    begins = (
        b"",
        b"POST /checkv2 HTTP/1.1\r\n",
        b"CHECK SPAMC/1.5\r\n",
        b"\0\0\0\x0dO",
        b"TELL SPAMC/1.5\r\nCompress: zlib\r\n",
        b"\xff" * 4,
    )

    async def talk(served: Served) -> str:
        for _ in range(150):
            noise = chance.choice(begins) + chance.randbytes(chance.choice((1, 20, 3000)))
            _, writer = await served.connect()
            writer.write(noise)
            writer.write_eof()
            await until(lambda: served.door.connections == 0)
            writer.close()
        return await ask(served, protocol)

    assert run(tmp_path, protocol, talk) == "spam"
    assert "fault" not in caplog.text
