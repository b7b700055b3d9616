"""What every door promises, run on each: what the client hears is what the next hop said, and
nothing is taken that was not handed on.
"""

import asyncio

import pytest

from spamguard.config.options import DoorLimits, Position, Protocol
from spamguard.servers import listener
from tests.support.silent import silent_clients
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import LATER, MESSAGE, NO, OK, ScriptedProxy, serving

HELLOS = {Protocol.SMTP: b"EHLO me.example", Protocol.LMTP: b"LHLO me.example"}


@pytest.fixture(params=HELLOS)
def protocol(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["one reply", "a reply for each"])
def answers_each(request):
    return request.param


def proxy_for(protocol, answers_each, answers=None):
    return ScriptedProxy(answers, answers_each=answers_each)


def run(directory, proxy, protocol, talk, **options):
    async def main():
        async with serving(directory, proxy, protocol=protocol, **options) as served:
            return await asyncio.wait_for(talk(await served.call()), PATIENCE)

    return asyncio.run(main())


def test_a_message_arrives_as_it_was_sent(tmp_path, protocol, answers_each):
    proxy = proxy_for(protocol, answers_each)
    sent = b"Subject: x\r\n\r\n..dot\r\n" + b"long " * 5000 + b"\r\n\xff\x80\r\n.\r\n"

    async def talk(caller):
        await caller.begin(HELLOS[protocol])
        return await caller.say(sent + b".")

    assert run(tmp_path, proxy, protocol, talk) == (250, "2.1.5 fine by the next hop")
    (passed,) = proxy.passed
    assert passed.content == sent[: -len(b".\r\n")].replace(b"\r\n..", b"\r\n.")
    assert (passed.sender.address, passed.recipients[0].address, passed.ended) == (
        "a@x.example",
        "b@x.example",
        1,
    )


@pytest.mark.parametrize("reply", [NO, LATER])
def test_refusals_of_the_next_hop_come_back_as_they_are(tmp_path, protocol, answers_each, reply):
    text = b"\n".join(reply.lines).decode()

    async def talk(caller):
        await caller.code()
        heard = [await caller.say(HELLOS[protocol])]
        heard += [await caller.say(b"MAIL FROM:<refused@x.example>") for _ in range(2)]
        return heard[1:]

    proxy = proxy_for(protocol, answers_each, {"mail": reply})
    assert run(tmp_path, proxy, protocol, talk) == [(reply.code, text)] * 2
    assert [transaction.ended for transaction in proxy.passed] == [1, 1]

    async def talk_to_nobody(caller):
        assert await caller.code() == 220
        assert await caller.codes(HELLOS[protocol], b"MAIL FROM:<a@x.example>") == [250, 250]
        return [await caller.say(b"RCPT TO:<bad@x.example>"), (await caller.say(b"DATA"))[0]]

    heard = run(
        tmp_path,
        proxy_for(protocol, answers_each, {"bad@x.example": reply}),
        protocol,
        talk_to_nobody,
    )
    assert heard == [(reply.code, text), 503 if protocol is Protocol.LMTP else 554]


def test_the_reply_to_the_data_is_that_of_the_next_hop(tmp_path, protocol, answers_each):
    async def talk(caller):
        await caller.begin(HELLOS[protocol])
        return await caller.say(MESSAGE + b".")

    assert run(tmp_path, proxy_for(protocol, answers_each, {"data": [LATER]}), protocol, talk) == (
        451,
        "4.2.0 in a moment\n4.2.0 or two",
    )


@pytest.mark.parametrize("where", ["mail", "b@x.example", "data"])
def test_a_fault_behind_the_door_is_temporary_and_tells_nothing(
    tmp_path, protocol, answers_each, where, caplog
):
    proxy = proxy_for(protocol, answers_each, {where: RuntimeError("secret path /etc/x")})

    async def talk(caller):
        await caller.code()
        heard = [
            await caller.say(line)
            for line in (
                HELLOS[protocol],
                b"MAIL FROM:<a@x.example>",
                b"RCPT TO:<b@x.example>",
                b"DATA",
            )
        ]
        if heard[-1][0] == 354:
            heard.append(await caller.say(MESSAGE + b"."))
        return [*heard, await caller.say(b"MAIL FROM:<b@x.example>"), await caller.say(b"NOOP")]

    heard = run(tmp_path, proxy, protocol, talk)
    assert (451, "4.3.0 Local trouble, try again later") in heard
    assert [code for code, _ in heard[-2:]] == [451 if where == "mail" else 250, 250]
    assert "secret" not in str(heard)
    assert "secret path" in caplog.text
    assert [transaction.ended for transaction in proxy.passed] == [1, 1]


def test_a_message_that_is_too_big_is_read_to_its_end_and_refused(tmp_path, protocol, answers_each):
    proxy = proxy_for(protocol, answers_each)

    async def talk(caller):
        await caller.begin(HELLOS[protocol])
        heard = [await caller.say((b"x" * 998 + b"\r\n") * 400 + b".")]
        return [*heard, await caller.say(b"NOOP")]

    heard = run(tmp_path, proxy, protocol, talk, limits=DoorLimits(message_size=100_000))
    assert heard == [(552, "5.3.4 Message is too big"), (250, "2.0.0 Ok")]
    assert proxy.contents == []


@pytest.mark.parametrize("sent", [b"%s\n", b"NOOP\n%s\n", b"%s\nMAIL FROM:<a@x.example>\n", b"\n"])
def test_a_command_that_ends_in_a_bare_lf_is_answered_at_once_and_ends_the_session(
    tmp_path, protocol, sent
):
    proxy = ScriptedProxy()

    async def talk(caller):
        caller.send(sent.replace(b"%s", HELLOS[protocol]))
        heard = [await caller.code(), await caller.reply()]
        caller.send(b"MAIL FROM:<a@x.example>\r\n")
        return [*heard, await caller.at_end()]

    assert run(tmp_path, proxy, protocol, talk) == [
        220,
        (500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection"),
        True,
    ]
    assert proxy.passed == []


@pytest.mark.parametrize(
    "line", [b"NOOP\nNOOP", b"MAIL FROM:<a@x.example>\nRCPT TO:<b@x.example>", b"RSET\n\nRSET"]
)
def test_a_bare_lf_within_a_line_lets_no_second_command_through(tmp_path, protocol, line):
    """One line, one reply: the client would take a second one for that to its next command."""
    proxy = ScriptedProxy()

    async def talk(caller):
        await caller.code()
        caller.send(HELLOS[protocol] + b"\r\n" + line + b"\r\nVRFY x\r\nQUIT\r\n")
        return [await caller.code() for _ in range(4)], await caller.at_end()

    assert run(tmp_path, proxy, protocol, talk) == ([250, 500, 252, 221], True)
    assert proxy.passed == []


def test_silent_clients_make_room_for_others(tmp_path, protocol, answers_each):
    proxy = proxy_for(protocol, answers_each)

    async def main():
        limits = DoorLimits(connections=40, connections_per_client=13)
        async with (
            serving(tmp_path, proxy, protocol=protocol, limits=limits) as served,
            silent_clients(served.port, 52) as silent,
        ):
            evicted = [(await reader.read()).splitlines()[-1] for reader in silent[:12]]
            heard = []
            for _ in range(81):
                caller = await served.call()
                await caller.begin(HELLOS[protocol])
                heard += await caller.codes(MESSAGE + b".", b"QUIT")
            return evicted, heard

    evicted, heard = asyncio.run(asyncio.wait_for(main(), 60))
    assert evicted == [b"421 4.3.2 Idle while others wait to be served, closing connection"] * 12
    assert heard == [250, 221] * 81


@pytest.mark.parametrize("last", [b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@x.example>", b"DATA"])
def test_a_client_that_is_silent_in_a_transaction_makes_room(tmp_path, protocol, last, monkeypatch):
    """But not one whose message is being delivered, however long that takes."""
    monkeypatch.setattr(listener, "SILENT_SECONDS", 0.2)
    proxy = ScriptedProxy()
    lines = [b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@x.example>", b"DATA"]

    async def main():
        async with serving(
            tmp_path, proxy, protocol=protocol, limits=DoorLimits(connections=3)
        ) as served:
            proxy.hold = asyncio.Event()
            handing_on, *silent = [await served.call() for _ in range(3)]
            for caller in silent:
                await caller.code()
                await caller.codes(HELLOS[protocol], *lines[: lines.index(last) + 1])
            await handing_on.begin(HELLOS[protocol])
            handing_on.send(MESSAGE + b".\r\n")
            await proxy.holding.wait()
            await asyncio.sleep(0.5)
            newcomers = [await served.call() for _ in range(2)]
            heard = [await caller.code() for caller in newcomers + silent]
            proxy.hold.set()
            return heard, await handing_on.code()

    assert asyncio.run(asyncio.wait_for(main(), 30)) == ([220, 220, 421, 421], 250)


def test_a_client_in_a_transaction_is_not_evicted(tmp_path, protocol):
    proxy = ScriptedProxy(hold=asyncio.Event())

    async def talk(first, served):
        callers = [first, await served.call(), await served.call()]
        handing_on, sending, asking = callers
        await handing_on.begin(HELLOS[protocol])
        handing_on.send(MESSAGE + b".\r\n")
        await proxy.holding.wait()
        await sending.begin(HELLOS[protocol])
        sending.send(MESSAGE)
        assert await asking.code() == 220
        assert await asking.codes(HELLOS[protocol], b"MAIL FROM:<a@x.example>") == [250, 250]
        newcomers = [await (await served.call()).reply() for _ in range(5)]
        proxy.hold.set()
        heard = [
            await handing_on.code(),
            *await sending.codes(b"."),
            *await asking.codes(b"RCPT TO:<b@x.example>", b"DATA", MESSAGE + b"."),
        ]
        return newcomers, heard

    async def main():
        async with serving(
            tmp_path, proxy, protocol=protocol, limits=DoorLimits(connections=3)
        ) as served:
            return await asyncio.wait_for(talk(await served.call(), served), 30)

    newcomers, heard = asyncio.run(main())
    assert newcomers == [(421, "4.7.0 Too many connections, try again later")] * 5
    assert heard == [250, 250, 250, 354, 250]
    assert proxy.contents == [MESSAGE] * 3


def test_a_pipeline_is_answered_in_order(tmp_path, protocol, answers_each):
    proxy = proxy_for(protocol, answers_each)

    async def talk(caller):
        lines = [HELLOS[protocol], b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@x.example>", b"DATA"]
        caller.send(
            b"\r\n".join(lines) + b"\r\n" + MESSAGE + b".\r\nVRFY x\r\nMAIL FROM:<>\r\nQUIT\r\n"
        )
        return [await caller.code() for _ in range(9)]

    assert run(tmp_path, proxy, protocol, talk) == [220, 250, 250, 250, 354, 250, 252, 250, 221]
    assert proxy.contents == [MESSAGE]
    assert proxy.passed[1].sender.address == ""


def test_smtp_gets_one_reply_and_lmtp_one_for_each_recipient(tmp_path):
    recipients = (b"b@x.example", b"c@x.example", b"b@x.example")

    async def talk(caller):
        await caller.begin(b"LHLO me.example", recipients)
        caller.send(MESSAGE + b".\r\nNOOP\r\n")
        return [await caller.code() for _ in range(4)]

    each = ScriptedProxy({"data": [OK, NO, LATER]}, answers_each=True)
    assert run(tmp_path, each, Protocol.LMTP, talk) == [250, 550, 451, 250]
    assert run(tmp_path, ScriptedProxy({"data": [LATER]}), Protocol.LMTP, talk) == [
        451,
        451,
        451,
        250,
    ]
    assert run(tmp_path, ScriptedProxy({"data": RuntimeError()}), Protocol.LMTP, talk) == [
        451,
        451,
        451,
        250,
    ]

    async def talk_smtp(caller):
        await caller.begin(recipients=recipients)
        caller.send(MESSAGE + b".\r\nNOOP\r\n")
        return [await caller.code(), (await caller.reply())[1]]

    assert run(tmp_path, ScriptedProxy({"data": [LATER]}), Protocol.SMTP, talk_smtp) == [
        451,
        "2.0.0 Ok",
    ]


def test_recipients_that_were_refused_get_no_reply_to_the_data(tmp_path):
    async def talk(caller):
        assert await caller.code() == 220
        lines = [
            b"LHLO x",
            b"MAIL FROM:<>",
            b"RCPT TO:<bad@x.example>",
            b"RCPT TO:<b@x.example>",
            b"RCPT TO:<c@x.example>",
            b"DATA",
        ]
        assert await caller.codes(*lines) == [250, 250, 550, 250, 250, 354]
        caller.send(MESSAGE + b".\r\nNOOP\r\n")
        return [await caller.code() for _ in range(3)]

    proxy = ScriptedProxy({"data": [OK, LATER], "bad@x.example": NO}, answers_each=True)
    assert run(tmp_path, proxy, Protocol.LMTP, talk) == [250, 451, 250]


@pytest.mark.parametrize("position", Position)
def test_behind_a_queue_deferred_recipients_are_logged(tmp_path, caplog, position):
    async def talk(caller):
        await caller.codes(b"EHLO x", b"MAIL FROM:<>", *[b"RCPT TO:<b@x.example>"] * 4)

    run(tmp_path, ScriptedProxy(answers_each=True), Protocol.SMTP, talk, position=position)
    assert caplog.text.count("spamguard_destination_recipient_limit = 1") == (
        position is Position.AFTER_QUEUE
    )


def test_smtp_in_front_of_a_hop_that_answers_each_takes_one_recipient_at_a_time(tmp_path):
    async def talk(caller):
        await caller.begin(recipients=(b"b@x.example",))
        await caller.say(MESSAGE + b".")
        return await caller.codes(
            b"MAIL FROM:<>",
            b"RCPT TO:<bad@x.example>",
            b"RCPT TO:<b@x.example>",
            *[b"RCPT TO:<c@x.example>"] * 40,
        )

    proxy = ScriptedProxy({"bad@x.example": NO}, answers_each=True)
    assert run(tmp_path, proxy, Protocol.SMTP, talk, trusted=()) == [250, 550, 250, *[452] * 40]
    assert len(proxy.passed[1].recipients) == 2
