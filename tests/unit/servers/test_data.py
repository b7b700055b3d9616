"""The data of messages: its end, what is refused in it, and its limits."""

import asyncio

import pytest

from spamguard import storage
from spamguard.config.options import DoorLimits, OddBytes, Position, Protocol
from spamguard.smtp.commands import DataReader
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving
from tests.unit.smtp.smuggling import ENDS

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


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("step", [0, 1])
def test_only_one_sequence_ends_a_message(tmp_path, name, step):
    data = b"Subject: x\r\n\r\nbody" + ENDS[name] + SMUGGLED
    refusing, normalising = ScriptedProxy(), ScriptedProxy()
    assert run(tmp_path, sending(data, step), refusing) == [
        (554, "5.6.0 Message has bare CR, bare LF or NUL in it"),
        250,
    ]
    assert (refusing.contents, len(refusing.passed)) == ([], 1)

    heard = run(tmp_path, sending(data, step), normalising, position=Position.AFTER_QUEUE)
    assert [heard[0][0], heard[1]] == [250, 250]
    (passed,) = normalising.passed
    assert passed.oddities
    assert passed.oddities <= {"bare-cr", "bare-lf", "nul"}
    assert b"Subject: smuggled" in passed.content
    assert b"\0" not in passed.content
    assert (
        passed.content.replace(b"\r\n", b"").count(b"\r")
        == passed.content.replace(b"\r\n", b"").count(b"\n")
        == 0
    )


@pytest.mark.parametrize("position", Position)
@pytest.mark.parametrize("odd_bytes", [None, *OddBytes])
def test_which_doors_refuse_odd_bytes_and_which_normalise_them(
    tmp_path, position, odd_bytes, caplog
):
    caplog.set_level("INFO")
    proxy = ScriptedProxy()
    heard = run(
        tmp_path, sending(b"a: b\r\n\r\nx\ny"), proxy, position=position, odd_bytes=odd_bytes
    )
    repaired = odd_bytes is OddBytes.NORMALISE or (
        odd_bytes is None and position is Position.AFTER_QUEUE
    )
    assert heard[0][0] == (250 if repaired else 554)
    assert proxy.contents == ([b"a: b\r\n\r\nx\r\ny\r\n"] if repaired else [])
    assert ("message with bare-lf taken" if repaired else "message refused") in caplog.text


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


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\r\n",
        b" folded: from nowhere\r\n\r\nx",
        b"x" * 300_000,
        b"\xff" * 2000 + b"\r\n" * 9,
    ],
)
def test_any_other_message_is_taken(tmp_path, data):
    proxy = ScriptedProxy()
    stuffed = b"." + data if data.startswith(b".") else data
    assert run(tmp_path, sending(stuffed), proxy)[0][0] == 250
    assert proxy.contents == [data + b"\r\n"]


def test_an_empty_message(tmp_path):
    proxy = ScriptedProxy()

    async def talk(caller):
        await caller.begin()
        return await caller.codes(b".")

    assert run(tmp_path, talk, proxy) == [250]
    assert proxy.contents == [b""]


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


def test_bytes_in_flight_are_limited_and_given_back(tmp_path):
    async def main():
        proxy = ScriptedProxy(hold=asyncio.Event())
        async with serving(tmp_path, proxy, limits=DoorLimits(size_in_flight=1000)) as served:
            first, second, third = [await served.call() for _ in range(3)]
            await first.begin()
            first.send(b"x" * 500 + b"\r\n.\r\n")
            await proxy.holding.wait()
            await second.code()
            heard = await second.codes(
                b"EHLO me",
                b"MAIL FROM:<> SIZE=600",
                b"MAIL FROM:<> SIZE=400",
                b"RCPT TO:<b@c>",
                b"DATA",
            )
            heard += await second.codes(b"x" * 600 + b"\r\n.")
            proxy.hold.set()
            heard.append(await first.code())
            await third.begin()
            return heard + await third.codes(b"x" * 900 + b"\r\n.")

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == [
        250,
        452,
        250,
        250,
        354,
        452,
        250,
        250,
    ]


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


def test_at_the_limit_no_message_begins(tmp_path):
    async def main():
        proxy = ScriptedProxy(hold=asyncio.Event())
        async with serving(tmp_path, proxy, limits=DoorLimits(size_in_flight=502)) as served:
            first, second = [await served.call() for _ in range(2)]
            await second.code()
            heard = await second.codes(b"EHLO me", b"MAIL FROM:<>", b"RCPT TO:<b@c>")
            await first.begin()
            first.send(b"x" * 500 + b"\r\n.\r\n")
            await proxy.holding.wait()
            heard += await second.codes(b"DATA", b"RSET", b"MAIL FROM:<>")
            proxy.hold.set()
            await first.code()
            return heard + await second.codes(b"MAIL FROM:<>")

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == [250, 250, 250, 452, 250, 452, 250]


def test_a_large_message_waits_on_the_disk_and_leaves_no_file(tmp_path):
    proxy = ScriptedProxy()
    data = b"Subject: x\r\n\r\n" + b"".join(b"%078d\r\n" % number for number in range(100_000))
    assert run(tmp_path, sending(data), proxy)[0][0] == 250
    assert proxy.contents == [data + b"\r\n"]
    assert list(tmp_path.iterdir()) == []


def test_every_recipient_of_lmtp_hears_that_the_message_was_refused(tmp_path):
    async def talk(caller):
        await caller.begin(b"LHLO me", (b"b@c", b"d@e"))
        caller.send(b"x\ny\r\n.\r\nNOOP\r\n")
        return [await caller.code() for _ in range(3)]

    assert run(tmp_path, talk, ScriptedProxy(), protocol=Protocol.LMTP) == [554, 554, 250]


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
