"""What servers were seen to do otherwise: each is met once, by a server that does it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spamguard.config.accounts import Mode, providers
from tests.support.scripted_imap import EXCHANGE, GMAIL, ICLOUD, NETEASE, OBJECTS, PROTON, Ways
from tests.support.waiting import eventually
from tests.unit.imap.stage import cheap, fails, letter, look, on, read, stage, tagged

DISABLED = Ways(refuses=(("LOGIN", "LOGIN failed: Basic authentication is disabled."),))
FULL = Ways(refuses=(("UID MOVE", "[OVERQUOTA] Quota exceeded (mailbox for user is full)"),))
SHUT = replace(EXCHANGE, refuses=(("EXAMINE Calendar", "cannot be opened"),))
MOVING = replace(PROTON, refuses=())
NAMES = ['a]b"c', "back\\slash", "Gr&APwA3w-e", "(x) {3}", "1234", "NIL", "a MESSAGES 5"]
ODD = ["b\xe4r", "a\r\nX1 EXPUNGE", "tab\t"]  # nobody may send these


@pytest.fixture(params=[GMAIL, ICLOUD, EXCHANGE, NETEASE, OBJECTS, Ways(literals=True)])
def ways(request):
    return request.param


def test_spam_is_moved_once_and_what_comes_back_stays(ways, tmp_path):
    with stage(tmp_path, ways) as (server, watch):
        junk = next(name for name in server.folders if "Junk" in name or "Spam" in name)
        old = server.deliver(cheap(1), year=2000)
        look(watch)
        spam, ham = server.deliver(cheap(2)), server.deliver(letter(3))
        look(watch)
        assert server.lies(spam) == [junk]
        assert server.lies(old) == server.lies(ham) != [junk]
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (2, 1, 1)
        server.move(spam, junk, "INBOX")
        look(watch)
        assert server.lies(spam) == ["INBOX"]
        assert watch.status.judged == 2


def test_a_mode_that_looks_writes_nothing(ways, tmp_path):
    with stage(tmp_path, ways, mode=Mode.LOOK) as (server, watch):
        look(watch)
        spam = server.deliver(cheap(1))
        look(watch)
        assert "INBOX" in server.lies(spam)
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (1, 1, 0)


def test_a_gmail_message_is_one_in_all_its_folders(tmp_path):
    with stage(tmp_path, GMAIL) as (server, watch):
        look(watch)
        both = server.deliver(letter(1), "INBOX", "Work", "[Gmail]/All Mail")
        look(watch)
        assert watch.status.judged == 1
        server.move(both, "INBOX", "[Gmail]/All Mail")  # it is archived
        server.deliver(letter(2), "Work")
        look(watch)
        assert watch.status.judged == 1
        assert not any("All Mail" in each for each in server.commands)


def test_refused_login_is_told_with_the_remedy_and_tried_thrice_an_hour(tmp_path):
    with stage(tmp_path, DISABLED, preset="microsoft") as (server, watch):
        watch.step()
        assert watch.status.trouble == (
            f"127.0.0.1:{server.port} refuses the login: {DISABLED.refuses[0][1]}: "
            f"{providers()['microsoft'].refusal}"
        )
        assert 1199.0 < watch.due - time.monotonic() <= 1200.0


@pytest.mark.parametrize("answer", [None, b" NO [UNAVAILABLE] Temporary failure\r\n"])
def test_login_that_fails_by_chance_is_tried_again_soon(answer, tmp_path):
    with stage(tmp_path) as (server, watch):
        server.change = on("LOGIN", lambda it: answer and it.split()[0] + answer)
        assert "check the user" not in fails(watch)
        assert watch.due - time.monotonic() <= 60.0
        server.change = on("", bytes)
        look(watch)


def test_who_waits_for_a_message_does_not_hurry_the_next_try(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1))
        look(watch)
        server.ways = DISABLED
        server.hang_up()
        fails(watch)
        due, (inbox, *_) = watch.due, watch.folders()
        ((name, _),) = watch.records.shown(inbox, hide_unread=False)
        assert read(watch, inbox, name).endswith(letter(1))
        with pytest.raises(OSError, match="not connected"):
            watch.read(inbox, name)
        assert watch.due == due > time.monotonic() + 1000.0


@pytest.mark.parametrize(
    ("ways", "first", "second"),
    [
        (MOVING, ["Junk"], ["Junk"]),  # with answers about other messages between ours
        (PROTON, ["INBOX", "Junk"], ["INBOX"]),  # no copy is made in vain again
        (FULL, ["INBOX"], ["INBOX"]),
        (SHUT, ["Junk Email"], ["Junk Email"]),  # a folder that cannot be opened is left out
    ],
)
def test_what_is_refused_is_left_as_it_is(ways, first, second, tmp_path):
    with stage(tmp_path, ways) as (server, watch):
        old = [server.deliver(cheap(number), year=2000) for number in range(5)]
        look(watch)
        sent = []
        for number in range(5, 8):
            sent.append(server.deliver((cheap, letter)[number == 7](number)))
            look(watch)
        assert watch.is_listed
        assert [server.lies(each) for each in sent] == [first, second, ["INBOX"]]
        assert {*map(tuple, map(server.lies, old))} == {("INBOX",)}
        assert (watch.status.judged, watch.records.intents()) == (3, [])


def test_messages_are_the_same_when_uids_are_others(tmp_path):
    with stage(tmp_path, MOVING) as (server, watch):
        look(watch)
        found = [server.deliver(cheap(1)), *(server.deliver(letter(n)) for n in range(2, 9))]
        look(watch)
        server.move(found[0], "Junk", "INBOX")
        look(watch)
        for _ in range(3):
            server.restart()
            watch.step()
            look(watch)
        assert [server.lies(each) for each in found] == [["INBOX"]] * 8
        assert (watch.status.judged, watch.status.moved) == (8, 1)


@pytest.mark.parametrize("command", ["UID SEARCH", "UID FETCH", "UID MOVE", "NOOP", "IDLE", "LIST"])
@pytest.mark.parametrize("answer", [b"* BYE too much\r\n", b"* 1 EXI", None])
def test_connection_that_ends_at_any_time_costs_nothing(command, answer, tmp_path):
    with stage(tmp_path) as (server, watch):
        watch.line.silence = 0.3
        look(watch)
        left = [answer]
        server.change = on(command, lambda usual: left.pop() if left else usual)
        spam = server.deliver(cheap(1))
        fails(watch)
        look(watch)
        look(watch)
        assert server.lies(spam) == ["Junk"] or command == "UID MOVE"
        assert watch.status.judged == 1


@pytest.mark.parametrize("command", ["UID SEARCH", "UID FETCH"])
def test_throttled_answers_do_not_count(command, tmp_path):
    with stage(tmp_path) as (server, watch):
        kept = server.deliver(letter(1), year=2000)
        look(watch)
        server.deliver(cheap(2))
        server.change = on(command, lambda it: tagged(it).replace(b"OK ", b"OK [THROTTLED] "))
        assert "THROTTLED" in fails(watch)
        eventually(lambda: server.open == 0)
        server.change = on("", bytes)
        look(watch)
        assert server.lies(kept) == ["INBOX"]
        assert watch.status.judged == 1


@pytest.mark.parametrize("more", ["", " LIST-STATUS"])
@pytest.mark.parametrize("literals", [False, True])
def test_names_of_folders_may_be_anything(literals, more, tmp_path):
    folders = (("INBOX", ""), ('Sp"am] \\here', r"\Junk"), *((name, "") for name in NAMES))
    odd = tuple((name, "") for name in ODD if literals)
    ways = Ways(
        f"{OBJECTS.capabilities} UTF8=ACCEPT{more}", literals=literals, folders=folders + odd
    )
    with stage(tmp_path, ways) as (server, watch):
        look(watch)
        assert {row.raw for row in watch.folders()} == dict(folders).keys()
        spam = server.deliver(cheap(1))
        look(watch)
        assert server.lies(spam) == ['Sp"am] \\here']
        asked = {each for each in server.commands if each.startswith("STATUS")}
        assert len(asked) == (0 if more else len(folders))


def test_folder_that_goes_while_it_is_open_is_forgotten(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        del server.folders["Archive"], server.folders["Junk"]
        spam = server.deliver(cheap(1))
        watch._dirty.update({row.id: "" for row in watch.folders()})
        look(watch)
        assert {row.raw for row in watch.folders()} == {"INBOX"}
        assert server.lies(spam) == ["INBOX"]
        assert watch.status.judged == 1


def test_what_was_left_out_is_asked_for_again(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        for number in (1, 2):
            server.deliver(letter(number))
        server.change = on("UID FETCH", lambda it: it if b"BODY" in it else tagged(it))
        look(watch)
        assert watch.status.judged == 0
        server.change = on("", bytes)
        look(watch)
        assert watch.status.judged == 2


def test_who_hangs_up_at_once_is_asked_seldom(tmp_path):
    with stage(tmp_path) as (server, watch):
        pauses = []
        for _ in range(4):
            watch.step()
            server.hang_up()
            watch.step()
            pauses.append(round(watch.due - time.monotonic()))
        assert pauses == [1, 60, 120, 300]
        assert "lost" in watch.status.trouble


def test_what_is_told_before_idle_begins_is_heard(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.change = on("IDLE", lambda it: b"* 1 EXISTS\r\n* 1 FETCH (FLAGS ())\r\n" + it)
        look(watch)
        assert watch.due <= time.monotonic() + 1.0


@pytest.mark.parametrize("end", [b'""', b"NIL", b"{0}\r\n"])
def test_message_in_pieces_ends_as_the_server_says(end, tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.change = on("UID FETCH", lambda it: it.replace(b"{0}\r\n", end))
        sent = [letter(n) + bytes((n << 20) - len(letter(n))) for n in (1, 2)]
        for raw in [*sent, letter(3) + bytes(3 << 20)]:
            server.deliver(raw)
        look(watch)
        (inbox,) = (row for row in watch.folders() if row.is_inbox)
        names = [name for name, _ in watch.records.shown(inbox, hide_unread=False)]
        found = {read(watch, inbox, name).partition(b"\r\n")[2] for name in names}
        assert found == {*sent, letter(3) + bytes(3 << 20)}


def test_empty_message_is_one(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.deliver(b"")
        look(watch)
        assert watch.status.judged == 1
        (inbox,) = (row for row in watch.folders() if row.is_inbox)
        ((name, _),) = watch.records.shown(inbox, hide_unread=False)
        watch._recent.take(watch.account.name, name)
        assert read(watch, inbox, name).startswith(b"X-Spamguard: ham;")
        server.change = on("UID FETCH", lambda it: it.replace(b"{0}\r\n", b"NIL"))
        with pytest.raises(FileNotFoundError):
            read(watch, inbox, name)


def test_message_that_goes_between_two_pieces_is_none(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        spam = server.deliver(cheap(1) + bytes(3 << 20))
        server.change = on("UID FETCH", lambda it: tagged(it) if b"BODY[]<1048576>" in it else it)
        look(watch)
        assert watch.status.judged == 0
        server.change = on("", bytes)
        look(watch)
        assert server.lies(spam) == ["Junk"]
