"""The data of messages: its end, what is refused in it, and its limits."""

import asyncio

import pytest

from spamguard import storage
from spamguard.config.options import DoorLimits, Position
from spamguard.smtp.commands import DataReader
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving

pytestmark = pytest.mark.slow  # waits for seconds

SMUGGLED = (
    b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<victim@x.example>\r\nDATA\r\nSubject: smuggled\r\n"
)


def run(directory, talk, proxy, **options):
    async def main():
        async with serving(directory, proxy, **options) as served:
            return await asyncio.wait_for(talk(await served.call()), PATIENCE)

    return asyncio.run(main())


def sending(data, step=0, after=b"NOOP"):
    """Sends this data and its end, in pieces of `step` bytes; what was said to it and to the
    command behind it.
    """

    async def talk(caller):
        await caller.begin()
        whole = data + b"\r\n.\r\n"
        for at in range(0, len(whole), step or len(whole)):
            caller.send(whole[at : at + (step or len(whole))])
            await caller.writer.drain()
            await asyncio.sleep(0.001 if step else 0)
        return [(await caller.reply()), *await caller.codes(after)]

    return talk


def test_the_log_says_whose_message_was_refused(tmp_path, caplog):
    caplog.set_level("INFO")

    async def talk(caller):
        await caller.code()
        await caller.say(b"EHLO me.example")
        await caller.say(b"XFORWARD ADDR=192.0.2.9")
        await caller.say(b"MAIL FROM:<who@x.example>")
        for _ in range(2):
            await caller.say(b"RCPT TO:<b@x.example>")
        await caller.say(b"DATA")
        return await caller.say(b"a: b\r\n\r\nx\ny\r\n.")

    assert run(tmp_path, talk, ScriptedProxy())[0] == 554
    assert (
        "message refused: client=192.0.2.9 from=<who@x.example> recipients=2: 5.6.0 " in caplog.text
    )


def test_what_is_announced_as_too_big_is_refused_at_once(tmp_path):
    async def talk(caller):
        await caller.code()
        return await caller.codes(b"EHLO me", b"MAIL FROM:<> SIZE=1001", b"MAIL FROM:<> SIZE=1000")

    assert run(tmp_path, talk, ScriptedProxy(), limits=DoorLimits(message_size=1000)) == [
        250,
        552,
        250,
    ]


@pytest.mark.parametrize("step", [0, 3])
def test_the_header_section_is_limited(tmp_path, step):
    limits = DoorLimits(header_size=40)
    for header, fits in (
        (b"a: " + b"x" * 35 + b"\r\n", True),
        (b"a: " + b"x" * 36 + b"\r\n", False),
        (b"x" * 50, False),
        (b"", True),
    ):
        data = header + b"\r\n" + b"body " * 40
        before, after = ScriptedProxy(), ScriptedProxy()
        assert run(tmp_path, sending(data, step), before, limits=limits)[0][0] == (
            250 if fits else 552
        ), header
        assert (
            run(tmp_path, sending(data, step), after, limits=limits, position=Position.AFTER_QUEUE)[
                0
            ][0]
            == 250
        )
        assert len(before.contents) == fits
        assert after.contents == [data + b"\r\n"]


def test_a_full_disk_is_temporary(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.Spool, "write", full)
    proxy = ScriptedProxy()
    assert run(tmp_path, sending(MESSAGE), proxy) == [
        (452, "4.3.1 No space left for this message now, try again later"),
        250,
    ]
    assert proxy.contents == []


@pytest.mark.parametrize(
    ("trusted", "told"),
    [((), [452, 250, 250, 250, 354, 452]), (("127.0.0.0/8",), [250, 250, 250, 250, 354, 250])],
)
def test_a_stranger_may_have_half_of_the_bytes_in_flight(tmp_path, trusted, told):
    async def main():
        proxy = ScriptedProxy(hold=asyncio.Event())
        async with serving(
            tmp_path,
            proxy,
            trusted=trusted,
            limits=DoorLimits(size_in_flight=2000, message_size=800),
        ) as served:
            first, second = [await served.call() for _ in range(2)]
            await first.begin()
            first.send(b"x" * 700 + b"\r\n.\r\n")
            await proxy.holding.wait()
            await second.code()
            _, *heard = await second.codes(
                b"EHLO me",
                b"MAIL FROM:<> SIZE=400",
                b"RSET",
                b"MAIL FROM:<>",
                b"RCPT TO:<b@c>",
                b"DATA",
            )
            second.send(b"x" * 400 + b"\r\n.\r\n")
            if trusted:
                proxy.hold.set()
            return [*heard, await second.code()]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == told


def test_a_fault_while_reading_ends_the_session(tmp_path, monkeypatch, caplog):
    def fail(self, chunk):
        raise RuntimeError("in the data")

    monkeypatch.setattr(DataReader, "feed", fail)
    proxy = ScriptedProxy()

    async def talk(caller):
        await caller.begin()
        caller.send(MESSAGE + SMUGGLED + b".\r\n")
        return await caller.code(), await caller.at_end()

    assert run(tmp_path, talk, proxy) == (421, True)
    assert [(transaction.content, transaction.ended) for transaction in proxy.passed] == [(None, 1)]
    assert "in the data" in caplog.text
