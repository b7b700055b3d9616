"""What a mail server hears of the milter door, and what is made of what it says."""

import asyncio
import socket
import struct
from contextlib import suppress

import pytest

from spamguard.doors.milter import connection, session
from spamguard.doors.milter.dialogue import NEXT, State
from spamguard.proxy.asking import Judged
from spamguard.settings import Action, ScannerLimits
from spamguard.wire.milter import Command
from tests.unit.doors.milter.mta import ALL, OLD
from tests.unit.doors.milter.support import FIELDS, ScriptedAsking, serving

RAW = b"Received: from x\r\n\tby y; date\r\nSubject:no blank\r\nX-Empty:\r\nFrom:  two blanks\r\n\r\nbody\xff\r\n\r\n.\r\nend"


def run(directory, asking, talk, **options):
    async def main():
        async with serving(directory, asking, **options) as served:
            return await asyncio.wait_for(talk(served), 60)

    return asyncio.run(main())


def names(fields):
    return [name for name, _ in fields]


@pytest.mark.parametrize("offer", [ALL, OLD], ids=["version 6", "version 2"])
def test_a_message_is_judged_as_it_is_and_our_fields_are_put_on_top(tmp_path, offer):
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.ready(offer=offer)
        return await server.message(RAW)

    answer, fields = run(tmp_path, asking, talk)
    assert answer.reply == b"c"
    assert names(fields) == [b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard", b"Received", b"Subject", b"X-Empty", b"From"]
    assert [value.strip() for _, value in fields[:3]] == [field.partition(b": ")[2] for field in FIELDS]
    expected = RAW if offer == ALL else RAW.replace(b"Subject:no", b"Subject: no").replace(b"X-Empty:", b"X-Empty: ")
    assert asking.raws == [expected]


def test_with_leading_blanks_fields_look_as_they_should(tmp_path):
    async def talk(served):
        values = []
        for offer in (ALL, OLD):
            server = await served.ready(offer=offer)
            values.append((await server.message(RAW))[1][0][1])
        return values

    assert run(tmp_path, ScriptedAsking(), talk) == [b" YES", b"YES"]  # the server puts the blank there itself


def test_forged_fields_go_before_ours_come(tmp_path):
    forged = b"x-spam-STATUS: No,\r\n score=-9\r\nX-Spam-Flag: NO\r\nSubject: x\r\nX-Spam-Status: No\r\nX-Bogosity: Ham\r\n\r\nbody\r\n"

    async def talk(served):
        server = await served.ready()
        return await server.message(forged)

    _, fields = run(tmp_path, ScriptedAsking(), talk)
    assert fields == [(b"X-Spam-Flag", b" YES"), *[tuple(one.split(b":", 1)) for one in FIELDS[1:]], (b"Subject", b" x")]


@pytest.mark.parametrize(
    ("judged", "reply", "letters"),
    [
        (Judged("1", FIELDS, Action.TAG), (b"c", b""), b"iii"),
        (Judged("1", FIELDS, Action.REJECT), (b"y", b"550 5.7.1 Message refused as unsolicited\0"), b""),
        (Judged("1", FIELDS, Action.DEFER), (b"y", b"451 4.7.1 Message deferred, try again later\0"), b""),
        (Judged("1", FIELDS[2:], Action.DEFER, "timeout"), (b"y", b"451 4.3.0 Message cannot be judged now, try again later\0"), b""),
        (Judged("1", FIELDS[2:], Action.TAG, "timeout"), (b"c", b""), b"i"),
    ],
)
def test_what_the_server_is_told(tmp_path, judged, reply, letters):
    async def talk(served):
        answer, _ = await (await served.ready()).message(RAW)
        return (answer.reply, answer.text), answer.letters()

    assert run(tmp_path, ScriptedAsking(judged), talk) == (reply, letters)


@pytest.mark.parametrize(("offer", "letters"), [(ALL, b"iiiq"), (OLD.replace(b"\x3f", b"\x1f"), b"iii")])
def test_held_back_where_the_server_can(tmp_path, offer, letters, caplog):
    async def talk(served):
        server = await served.connect()
        _, actions, _ = await server.agree(offer)
        await server.client()
        return actions, (await server.message(RAW))[0].letters()

    asking = ScriptedAsking(Judged("1", FIELDS, Action.QUARANTINE), quarantine_from=0.9)
    actions, told = run(tmp_path, asking, talk)
    assert told == letters
    assert bool(actions & 0x20) == (b"q" in letters)
    assert ("cannot hold messages back" in caplog.text) == (b"q" not in letters)


def test_we_ask_for_no_more_than_is_needed(tmp_path):
    async def talk(served):
        return await (await served.connect()).agree()

    version, actions, steps = run(tmp_path, ScriptedAsking(), talk)
    assert (version, actions) == (6, 0x11)
    assert steps & 0x300 == 0x300  # no DATA, no unknown commands
    assert not steps & 0x7F  # but everything of a message


def test_several_messages_clients_and_what_belongs_to_each(tmp_path):
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.ready()
        server.send(Command.MACROS, b"H{tls_version}\0TLSv1.3\0")
        await server.envelope(b"b@example.net", b"c@example.net", sender=b"", queue=b"Q1", login=b"anna")
        await server.content(RAW)
        await server.end()
        await server.envelope(sender=b"second@example.org", queue=b"Q2")
        await server.content(b"Subject: 2\r\n\r\n")
        await server.end(b"all in the last packet\r\n")
        server.send(Command.NEXT_CLIENT)
        server.send(Command.MACROS, b"Cj\0mx.example.com\0")
        await server.client(b"other.example.org", b"192.0.2.2", b"other")
        await server.message(b"Subject: 3\r\n\r\n")

    run(tmp_path, asking, talk)
    first, second, third = asking.questions
    assert (first.sender, first.recipients, first.queue) == ("", ["b@example.net", "c@example.net"], "Q1")
    client = first.client
    assert (client.address, client.name, client.port, client.helo) == ("192.0.2.1", "mail.example.org", "4711", "helo.example.org")
    assert (client.login, client.protocol, client.peer, first.peer) == ("anna", "ESMTPSA", "127.0.0.1", "127.0.0.1")
    assert (second.sender, second.recipients, second.queue) == ("second@example.org", ["b@example.net"], "Q2")
    assert (second.client.login, second.client.protocol, second.client.address) == ("", "ESMTPS", "192.0.2.1")
    assert (third.client.address, third.client.helo, third.client.protocol) == ("192.0.2.2", "other", "ESMTP")
    assert third.received_by == "mx.example.com"
    assert asking.raws == [RAW, b"Subject: 2\r\n\r\nall in the last packet\r\n", b"Subject: 3\r\n\r\n"]


@pytest.mark.parametrize("after", ["envelope", "content"])
def test_a_message_that_is_given_up_leaves_nothing_behind(tmp_path, after):
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.ready()
        await server.envelope(b"gone@example.net", queue=b"GONE", login=b"gone")
        if after == "content":
            await server.content(b"X-Spam-Flag: YES\r\nSubject: gone\r\n\r\n" + b"gone\r\n" * 200_000)
        server.send(Command.ABORT)
        return await server.message(b"Subject: next\r\n\r\nnext\r\n", b"next@example.net")

    answer, _ = run(tmp_path, asking, talk)
    (question,) = asking.questions
    assert (question.recipients, question.client.login, asking.raws) == (["next@example.net"], "", [b"Subject: next\r\n\r\nnext\r\n"])
    assert answer.letters() == b"iii"


@pytest.mark.parametrize("said", [b"", b"Mi\0NEXT\0"], ids=["no macros", "macros"])
@pytest.mark.parametrize("hello", [False, True])
@pytest.mark.parametrize("after", ["envelope", "content"])
def test_sendmail_gives_a_message_up_without_a_word(tmp_path, after, hello, said):
    """At RSET it says ABORT only to filters that have answered MAIL, which we have agreed not to do (8.17)."""
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.ready()
        await server.envelope(b"gone@example.net", sender=b"gone@example.org", queue=b"GONE", login=b"gone")
        if after == "content":
            await server.content(b"X-Spam-Flag: YES\r\nSubject: gone\r\n\r\ngone\r\n")
        if hello:
            await server.say(Command.HELLO, b"again.example\0", 0x2000)
        if said:
            server.send(Command.MACROS, said)
            await asyncio.sleep(0.05)  # what they belong to comes by itself
        await server.say(Command.SENDER, b"<>\0", 0x4000)
        await server.say(Command.RECIPIENT, b"<next@example.net>\0", 0x8000)
        fields = await server.content(b"Subject: next\r\n\r\nnext\r\n")
        return names((await server.end()).applied(fields))

    assert run(tmp_path, asking, talk) == [b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard", b"Subject"]
    (question,) = asking.questions
    assert (question.sender, question.recipients, question.client.login) == ("", ["next@example.net"], "")
    assert question.queue == ("NEXT" if said else "")
    assert question.client.helo == ("again.example" if hello else "helo.example.org")
    assert asking.raws == [b"Subject: next\r\n\r\nnext\r\n"]


def test_a_large_message_in_small_pieces(tmp_path):
    asking = ScriptedAsking()
    raw = b"Subject: big\r\n\r\n" + bytes(range(256)) * 20_000

    async def talk(served):
        server = await served.ready()
        await server.envelope()
        await server.content(raw, chunk=7777)
        return await server.end()

    assert run(tmp_path, asking, talk).reply == b"c"
    assert asking.raws == [raw]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [(ScannerLimits(message_bytes=100_000), "too-large"), (ScannerLimits(bytes_in_flight=100_000), "no-room")],
)
def test_what_is_too_much_is_not_judged_and_not_lost(tmp_path, limits, problem):
    asking = ScriptedAsking(Judged("1", FIELDS[2:], Action.TAG, problem), limits=limits)

    async def talk(served):
        server = await served.ready()
        await server.envelope()
        fields = await server.content(b"X-Spam-Flag: NO\r\n\r\n" + b"x" * 200_000)
        answer = await server.end()
        return answer.applied(fields), await server.message(RAW)

    fields, (again, _) = run(tmp_path, asking, talk)
    assert [question.problem for question in asking.questions] == [problem, ""]
    assert names(fields) == [b"X-Spamguard"]
    assert again.reply == b"c"


def test_while_a_message_is_judged_the_server_hears_that_we_are_at_it(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_PROGRESS_SECONDS", 0.05)

    async def talk(served):
        hold = asking.hold = asyncio.Event()
        server = await served.ready()
        await server.envelope()
        await server.content(RAW)
        asyncio.get_running_loop().call_later(0.4, hold.set)
        return await server.end()

    asking = ScriptedAsking()
    answer = run(tmp_path, asking, talk)
    assert answer.progress > 1
    assert answer.letters() == b"iii"


def test_a_fault_of_ours_ends_the_connection_and_tells_nothing(tmp_path, caplog):
    async def talk(served):
        server = await served.ready()
        await server.envelope()
        await server.content(RAW)
        server.send(Command.END_OF_MESSAGE)
        return await server.hung_up()

    assert run(tmp_path, ScriptedAsking(RuntimeError("secret")), talk)
    assert "secret" in caplog.text


# ---- servers from hell


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0\0\0\1C",  # a client before anything is agreed on
        b"\0\0\0\5O\0\0\0\6",  # an offer cut short
        b"\0\0\0\x0dO\0\0\0\1\0\0\0\xff\0\0\0\xff",  # version 1
        b"\0\0\0\x0dO\0\0\0\6\0\0\0\x20\0\0\0\xff",  # no header field can be added
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
    ],
)
def test_who_is_no_mail_server_is_left_alone(tmp_path, said, caplog):
    async def talk(served):
        server = await served.connect()
        server.writer.write(said + b"more of it")
        return await server.hung_up()

    assert run(tmp_path, ScriptedAsking(), talk)
    assert "hanging up" in caplog.text


@pytest.mark.parametrize(
    "commands",
    [
        [(Command.OFFER, ALL)],
        [(Command.FIELD, b"a\0b\0")],
        [(Command.END_OF_MESSAGE, b"")],
        [(Command.SENDER, b"no end")],
        [(Command.MACROS, b"Ci\0x")],
        [(Command.SENDER, b"<a@b>\0"), (Command.FIELD, b"no end")],
        [(Command.SENDER, b"<a@b>\0"), (Command.BODY, b"x")],
    ],
)
def test_what_is_out_of_order_or_makes_no_sense_ends_the_connection(tmp_path, commands):
    async def talk(served):
        server = await served.ready()
        for command, data in commands:
            server.send(command, data)
        return await server.hung_up()

    asking = ScriptedAsking()
    assert run(tmp_path, asking, talk)
    assert asking.questions == []


STEPS = {
    State.NEW: [],
    State.READY: [(Command.OFFER, ALL)],
    State.CLIENT: [(Command.CONNECT, b"x\0U")],
    State.ENVELOPE: [(Command.SENDER, b"<a@b>\0")],
    State.HEADER: [(Command.FIELD, b"a\0b\0")],
    State.BODY: [(Command.END_OF_HEADER, b"")],
}


def test_whatever_is_not_in_the_table_ends_the_connection(tmp_path):
    asking = ScriptedAsking()
    illegal = [(state, command) for state in State for command in Command if (state, command) not in NEXT]

    async def talk(served):
        for state, command in illegal:
            server = await served.connect()
            for step in list(STEPS)[: list(STEPS).index(state) + 1]:
                for said in STEPS[step]:
                    server.send(*said)
            server.send(command, b"x\0")
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert (await server.heard())[0] == b"O", (state, command)
                assert await server.hung_up(), (state, command)

    run(tmp_path, asking, talk)
    assert len(illegal) > 30
    assert asking.questions == []


def test_odd_words_do_no_harm(tmp_path):
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.connect()
        await server.agree()
        await server.say(Command.CONNECT, b"\xff\0U", 0x1000)
        await server.say(Command.HELLO, b"\0", 0x2000)
        await server.say(Command.UNKNOWN, b"XYZZY\0", 0x20000)
        await server.say(Command.SENDER, b"\0", 0x4000)
        for number in range(6000):
            await server.say(Command.RECIPIENT, b"<" + b"r" * 600 + b"%d>\0" % number, 0x8000)
        await server.say(Command.FIELD, b"\0\0", 0x80)
        await server.say(Command.END_OF_HEADER, b"ignored", 0x40000)
        return await server.end()

    assert run(tmp_path, asking, talk).reply == b"c"
    (question,) = asking.questions
    assert (question.sender, question.client.helo, question.client.address) == ("", "", "")
    assert len(question.recipients) == 5000
    assert {len(one) for one in question.recipients} == {512}
    assert asking.raws == [b":\r\n\r\n"]


def test_a_packet_that_begins_must_come_to_its_end(tmp_path, caplog):
    limits = ScannerLimits(data_seconds=0.3)

    async def talk(served):
        server = await served.ready()
        hung_up = asyncio.create_task(server.hung_up())
        for letter in b"\0\0\1\0" + b"M" * 250:
            server.writer.write(bytes([letter]))
            await asyncio.sleep(0.01)
            if hung_up.done():
                break
        return await hung_up

    assert run(tmp_path, ScriptedAsking(limits=limits), talk)
    assert "silent for too long" in caplog.text


@pytest.mark.parametrize("limits", [ScannerLimits(data_seconds=0.8), ScannerLimits(message_seconds=0.8)])
def test_content_must_come_in_time_but_before_it_the_server_may_wait(tmp_path, limits):
    async def talk(served):
        server = await served.ready()
        await asyncio.sleep(1)
        await server.envelope()
        await asyncio.sleep(1)
        await server.content(RAW)
        assert (await server.end()).reply == b"c"
        await server.envelope()
        server.send(Command.FIELD, b"a\0b\0")
        return await server.hung_up()

    assert run(tmp_path, ScriptedAsking(limits=limits), talk)


def test_a_server_that_does_not_read_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_TURN", 10_000_000)

    async def talk(served):
        server = await served.ready(offer=OLD)
        await server.envelope()
        server.writer.transport.pause_reading()
        try:
            for _ in range(3000):
                server.writer.write(b"\0\0\0\4La\0\0" * 2000)
                await asyncio.wait_for(server.writer.drain(), 30)
        except ConnectionError:
            return True
        return False

    assert run(tmp_path, ScriptedAsking(limits=ScannerLimits(data_seconds=0.5)), talk, path=tmp_path / "m.sock")


def test_only_listed_servers_and_only_so_many(tmp_path, caplog):
    async def talk(served):
        server = await served.connect()
        return await server.hung_up()

    assert run(tmp_path, ScriptedAsking(clients=("192.0.2.0/24",)), talk)
    assert "not a listed client" in caplog.text

    async def talk_much(served):
        servers = [await served.ready() for _ in range(2)]
        third = await served.connect()
        gone = await third.hung_up()
        await servers[0].close()
        while served.door.connections > 1:
            await asyncio.sleep(0.01)
        await served.ready()
        return gone

    assert run(tmp_path, ScriptedAsking(limits=ScannerLimits(connections_per_client=2)), talk_much)


def test_a_socket_in_the_file_system(tmp_path):
    asking = ScriptedAsking(clients=())

    async def talk(served):
        return (await (await served.ready()).message(RAW))[0].letters()

    assert run(tmp_path, asking, talk, path=tmp_path / "m.sock") == b"iii"
    assert asking.questions[0].peer == ""


# ---- the end of a door


def test_a_door_that_closes_serves_its_connections_to_their_end(tmp_path):
    asking = ScriptedAsking()

    async def talk(served):
        server = await served.ready()
        draining = asyncio.create_task(served.door.drain(asyncio.get_running_loop().time() + 30))
        await asyncio.sleep(0.05)
        replies = [(await server.message(RAW))[0].letters() for _ in range(2)]
        assert not draining.done()
        server.send(Command.QUIT)
        await draining
        return replies

    assert run(tmp_path, asking, talk) == [b"iii", b"iii"]


def test_at_the_deadline_who_is_left_is_cut_off(tmp_path):
    async def talk(served):
        asking.hold = asyncio.Event()
        idle, busy = await served.ready(), await served.ready()
        await busy.envelope()
        await busy.content(RAW)
        busy.send(Command.END_OF_MESSAGE)
        await asking.holding.wait()
        await served.door.drain(asyncio.get_running_loop().time() + 0.1)
        return served.door.connections, await idle.hung_up(), await busy.hung_up()

    asking = ScriptedAsking()
    assert run(tmp_path, asking, talk) == (0, True, True)


def test_a_reset_is_no_fault(tmp_path, caplog):
    async def talk(served):
        asking.hold = asyncio.Event()
        for end in (Command.MACROS, Command.END_OF_MESSAGE):
            server = await served.ready()
            await server.envelope()
            await server.content(RAW)
            server.send(end, b"E")
            await (asking.holding.wait() if end is Command.END_OF_MESSAGE else asyncio.sleep(0.05))
            server.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.writer.transport.abort()
        await asyncio.sleep(0.05)
        asking.hold.set()
        while served.door.connections:
            await asyncio.sleep(0.01)

    asking = ScriptedAsking()
    with caplog.at_level("INFO"):
        run(tmp_path, asking, talk)
    assert "connection lost" in caplog.text
    assert "fault" not in caplog.text


def test_a_server_that_goes_in_the_middle_takes_nothing_with_it(tmp_path):
    asking = ScriptedAsking()

    async def talk(served):
        for length in range(1, 40, 3):
            server = await served.ready()
            await server.envelope()
            server.writer.write(b"\0\0\0\x24LSubject\0" + b"x" * length)
            await server.close()
        while served.door.connections:
            await asyncio.sleep(0.01)
        return (await (await served.ready()).message(RAW))[0].reply

    assert run(tmp_path, asking, talk) == b"c"
    assert len(asking.questions) == 1
