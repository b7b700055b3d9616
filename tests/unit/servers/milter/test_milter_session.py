"""Sessions of the milter door: scan requests, replies, and changes to messages."""

import asyncio

import pytest

from spamguard.config.options import Action, Rule
from spamguard.servers import milter
from spamguard.servers.milter import MilterCommand
from spamguard.servers.scanner import ScanResult
from tests.support.waiting import drain
from tests.unit.servers.milter.mta import ALL, OLD
from tests.unit.servers.milter.support import FIELDS, RAW, ScriptedService, run


def names(fields):
    return [name for name, _ in fields]


HOLDS = (Rule("spam", Action.QUARANTINE, 0.9),)


@pytest.mark.parametrize(
    ("offer", "letters"), [(ALL, b"iiiq"), (OLD.replace(b"\x3f", b"\x1f"), b"iii")]
)
def test_held_back_where_the_server_can(tmp_path, offer, letters, caplog):
    async def talk(served):
        server = await served.connect()
        _, actions, _ = await server.agree(offer)
        await server.client()
        return actions, (await server.message(RAW))[0].letters()

    service = ScriptedService(ScanResult("1", FIELDS, Action.QUARANTINE), rules=HOLDS)
    actions, told = run(tmp_path, service, talk)
    assert told == letters
    assert bool(actions & 0x20) == (b"q" in letters)
    assert ("cannot hold messages back" in caplog.text) == (b"q" not in letters)


def test_several_messages_clients_and_what_belongs_to_each(tmp_path):
    service = ScriptedService()

    async def talk(served):
        server = await served.ready()
        server.send(MilterCommand.MACROS, b"H{tls_version}\0TLSv1.3\0")
        await server.envelope(
            b"b@example.net", b"c@example.net", sender=b"", queue=b"Q1", login=b"anna"
        )
        await server.content(RAW)
        await server.end()
        await server.envelope(sender=b"second@example.org", queue=b"Q2")
        await server.content(b"Subject: 2\r\n\r\n")
        await server.end(b"all in the last packet\r\n")
        server.send(MilterCommand.NEXT_CLIENT)
        server.send(MilterCommand.MACROS, b"Cj\0mx.example.com\0")
        await server.client(b"other.example.org", b"192.0.2.2", b"other")
        await server.message(b"Subject: 3\r\n\r\n")

    run(tmp_path, service, talk)
    first, second, third = service.questions
    assert (first.sender, first.recipients, first.queue_id) == (
        "",
        ["b@example.net", "c@example.net"],
        "Q1",
    )
    client = first.client
    assert (client.address, client.name, client.port, client.helo) == (
        "192.0.2.1",
        "mail.example.org",
        "4711",
        "helo.example.org",
    )
    assert (client.login, client.protocol, client.peer, first.peer) == (
        "anna",
        "ESMTPSA",
        "127.0.0.1",
        "127.0.0.1",
    )
    assert (second.sender, second.recipients, second.queue_id) == (
        "second@example.org",
        ["b@example.net"],
        "Q2",
    )
    assert (second.client.login, second.client.protocol, second.client.address) == (
        "",
        "ESMTPS",
        "192.0.2.1",
    )
    assert (third.client.address, third.client.helo, third.client.protocol) == (
        "192.0.2.2",
        "other",
        "ESMTP",
    )
    assert third.received_by == "mx.example.com"
    assert service.raws == [
        RAW,
        b"Subject: 2\r\n\r\nall in the last packet\r\n",
        b"Subject: 3\r\n\r\n",
    ]


@pytest.mark.parametrize("after", ["envelope", "content"])
def test_a_message_that_is_given_up_leaves_nothing_behind(tmp_path, after):
    service = ScriptedService()

    async def talk(served):
        server = await served.ready()
        await server.envelope(b"gone@example.net", queue=b"GONE", login=b"gone")
        if after == "content":
            await server.content(
                b"X-Spam-Flag: YES\r\nSubject: gone\r\n\r\n" + b"gone\r\n" * 200_000
            )
        server.send(MilterCommand.ABORT)
        return await server.message(b"Subject: next\r\n\r\nnext\r\n", b"next@example.net")

    answer, _ = run(tmp_path, service, talk)
    (question,) = service.questions
    assert (question.recipients, question.client.login, service.raws) == (
        ["next@example.net"],
        "",
        [b"Subject: next\r\n\r\nnext\r\n"],
    )
    assert answer.letters() == b"iii"


@pytest.mark.parametrize("said", [b"", b"Mi\0NEXT\0"], ids=["no macros", "macros"])
@pytest.mark.parametrize("hello", [False, True])
@pytest.mark.parametrize("after", ["envelope", "content"])
def test_sendmail_gives_a_message_up_without_a_word(tmp_path, after, hello, said):
    """At RSET it says ABORT only to filters that have answered MAIL, which we have agreed not to do
    (8.17).
    """
    service = ScriptedService()

    async def talk(served):
        server = await served.ready()
        await server.envelope(
            b"gone@example.net", sender=b"gone@example.org", queue=b"GONE", login=b"gone"
        )
        if after == "content":
            await server.content(b"X-Spam-Flag: YES\r\nSubject: gone\r\n\r\ngone\r\n")
        if hello:
            await server.say(MilterCommand.HELLO, b"again.example\0", 0x2000)
        if said:
            server.send(MilterCommand.MACROS, said)
            await asyncio.sleep(0.05)  # what they belong to comes by itself
        await server.say(MilterCommand.SENDER, b"<>\0", 0x4000)
        await server.say(MilterCommand.RECIPIENT, b"<next@example.net>\0", 0x8000)
        fields = await server.content(b"Subject: next\r\n\r\nnext\r\n")
        return names((await server.end()).applied(fields))

    assert run(tmp_path, service, talk) == [
        b"X-Spam-Flag",
        b"X-Spam-Status",
        b"X-Spamguard",
        b"Subject",
    ]
    (question,) = service.questions
    assert (question.sender, question.recipients, question.client.login) == (
        "",
        ["next@example.net"],
        "",
    )
    assert question.queue_id == ("NEXT" if said else "")
    assert question.client.helo == ("again.example" if hello else "helo.example.org")
    assert service.raws == [b"Subject: next\r\n\r\nnext\r\n"]


def test_while_a_message_is_judged_the_server_hears_that_we_are_at_it(tmp_path, monkeypatch):
    monkeypatch.setattr(milter, "_PROGRESS_SECONDS", 0.05)

    async def talk(served):
        hold = service.hold = asyncio.Event()
        server = await served.ready()
        await server.envelope()
        await server.content(RAW)
        asyncio.get_running_loop().call_later(0.4, hold.set)
        return await server.end()

    service = ScriptedService()
    answer = run(tmp_path, service, talk)
    assert answer.progress > 1
    assert answer.letters() == b"iii"


def test_a_fault_of_ours_ends_the_connection_and_tells_nothing(tmp_path, caplog):
    async def talk(served):
        server = await served.ready()
        await server.envelope()
        await server.content(RAW)
        server.send(MilterCommand.END_OF_MESSAGE)
        return await server.hung_up()

    assert run(tmp_path, ScriptedService(RuntimeError("secret")), talk)
    assert "secret" in caplog.text


# ---- the end


def test_a_door_that_closes_serves_its_connections_to_their_end(tmp_path):
    service = ScriptedService()

    async def talk(served):
        server = await served.ready()
        draining = asyncio.create_task(drain(served.door, 30))
        await asyncio.sleep(0.05)
        replies = [(await server.message(RAW))[0].letters() for _ in range(2)]
        assert not draining.done()
        server.send(MilterCommand.QUIT)
        await draining
        return replies

    assert run(tmp_path, service, talk) == [b"iii", b"iii"]
