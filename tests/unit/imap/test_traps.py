"""What servers were seen to do otherwise: each is met once, by a server that does it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spamguard.config.accounts import Mode, providers
from tests.support import scripted_imap
from tests.support.scripted_imap import Ways
from tests.support.waiting import eventually
from tests.unit.imap.stage import cheap, fails, letter, look, once, stage

DISABLED = Ways(refuses=(("LOGIN", "LOGIN failed: Basic authentication is disabled."),))
PROVIDERS = {
    "Gmail": scripted_imap.GMAIL,
    "iCloud": scripted_imap.ICLOUD,
    "Exchange": scripted_imap.EXCHANGE,
    "NetEase": scripted_imap.NETEASE,
    "with EMAILID": scripted_imap.OBJECTS,
    "names as literals": Ways(literals=True),
}


@pytest.fixture(params=PROVIDERS)
def ways(request):
    return PROVIDERS[request.param]


def junk(server):
    return next(name for name in server.folders if "Junk" in name or "Spam" in name)


def test_spam_is_moved_once_and_what_comes_back_stays(ways, tmp_path):
    with stage(ways, tmp_path) as (server, watch):
        old = server.deliver(cheap(1), year=2000)
        look(watch)
        spam, ham = server.deliver(cheap(2)), server.deliver(letter(3))
        look(watch)
        moved = [junk(server)]
        assert server.lies(spam) == moved
        assert server.lies(old) == server.lies(ham) != moved
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (2, 1, 1)
        server.move(spam, junk(server), "INBOX")
        look(watch)
        assert server.lies(spam) == ["INBOX"]
        assert watch.status.judged == 2


def test_a_mode_that_looks_writes_nothing(ways, tmp_path):
    with stage(ways, tmp_path, mode=Mode.LOOK) as (server, watch):
        look(watch)
        spam = server.deliver(cheap(1))
        look(watch)
        assert "INBOX" in server.lies(spam)
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (1, 1, 0)


def test_a_gmail_message_is_one_in_all_its_folders(tmp_path):
    with stage(scripted_imap.GMAIL, tmp_path) as (server, watch):
        look(watch)
        both = server.deliver(letter(1), "INBOX", "Work", "[Gmail]/All Mail")
        look(watch)
        assert watch.status.judged == 1
        server.move(both, "INBOX", "[Gmail]/All Mail")  # it is archived
        look(watch)
        server.deliver(letter(2), "Work")
        look(watch)
        assert watch.status.judged == 1
        assert not any("All Mail" in each for each in server.commands)


def test_refused_login_is_told_with_the_remedy_and_tried_thrice_an_hour(tmp_path):
    with stage(DISABLED, tmp_path, preset="microsoft") as (server, watch):
        watch.step()
        assert watch.status.trouble == (
            f"127.0.0.1:{server.port} refuses the login: LOGIN failed: Basic authentication is "
            f"disabled.: {providers()['microsoft'].refusal}"
        )
        assert 1199.0 < watch.due - time.monotonic() <= 1200.0


def test_who_waits_for_a_message_does_not_hurry_the_next_try(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1))
        look(watch)
        server.ways = DISABLED
        server.hang_up()
        fails(watch)
        due, (inbox, *_) = watch.due, watch.folders()
        ((name, _),) = watch.records.shown(inbox, hide_unread=False)
        assert watch.read(inbox, name).endswith(letter(1))
        with pytest.raises(OSError, match="not connected"):
            watch.read(inbox, name)
        assert watch.due == due > time.monotonic() + 1000.0


def test_server_that_asks_for_a_name_gets_one(tmp_path):
    with stage(scripted_imap.NETEASE, tmp_path) as (server, watch):
        look(watch)
        assert sum(each.startswith("ID (") for each in server.commands) == 2


def test_answers_about_other_messages_are_not_ours(tmp_path):
    ways = replace(scripted_imap.PROTON, refuses=())
    with stage(ways, tmp_path) as (server, watch):
        for number in range(5):
            server.deliver(letter(number), year=2000)
        look(watch)
        spam, ham = server.deliver(cheap(6)), server.deliver(letter(7))
        look(watch)
        assert (server.lies(spam), server.lies(ham)) == (["Junk"], ["INBOX"])
        assert watch.status.judged == 2


def test_messages_are_the_same_when_uids_are_others(tmp_path):
    with stage(replace(scripted_imap.PROTON, refuses=()), tmp_path) as (server, watch):
        look(watch)
        found = [server.deliver(cheap(1)), *(server.deliver(letter(n)) for n in range(2, 9))]
        look(watch)
        server.move(found[0], "Junk", "INBOX")
        look(watch)
        for _ in range(3):
            server.restart()
            watch.step()
            look(watch)
        assert {*map(tuple, map(server.lies, found))} == {("INBOX",)}
        assert (watch.status.judged, watch.status.moved) == (8, 1)


def test_who_refuses_to_expunge_gets_no_second_copy(tmp_path):
    with stage(scripted_imap.PROTON, tmp_path) as (server, watch):
        look(watch)
        first = server.deliver(cheap(1))
        look(watch)
        second = server.deliver(cheap(2))
        look(watch)
        assert (server.lies(first), server.lies(second)) == (["INBOX", "Junk"], ["INBOX"])
        assert watch.status.judged == 2


def test_move_that_is_refused_leaves_the_message_where_it_is(tmp_path):
    full = (("UID MOVE", "[OVERQUOTA] Quota exceeded (mailbox for user is full)"),)
    with stage(Ways(refuses=full), tmp_path) as (server, watch):
        look(watch)
        spam = server.deliver(cheap(1))
        look(watch)
        assert server.lies(spam) == ["INBOX"]
        assert (watch.status.judged, watch.status.moved) == (1, 0)
        assert watch.records.intents() == []


@pytest.mark.parametrize("command", ["UID SEARCH", "UID FETCH", "UID MOVE", "NOOP", "IDLE", "LIST"])
@pytest.mark.parametrize(
    "answer",
    [b"* OK [THROTTLED]\r\n* BYE too much\r\n", b"* 1 EXI", None],
    ids=["bye", "half", "cut"],
)
def test_connection_that_ends_at_any_time_costs_nothing(command, answer, tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        watch.silence = 0.3
        look(watch)
        server.change = once(command, answer)
        spam = server.deliver(cheap(1))
        fails(watch)
        look(watch)
        look(watch)
        assert server.lies(spam) == ["Junk"] or command == "UID MOVE"
        assert watch.status.judged == 1


@pytest.mark.parametrize("command", ["UID SEARCH", "UID FETCH"])
def test_throttled_answers_do_not_count(command, tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        kept = server.deliver(letter(1), year=2000)
        look(watch)
        server.deliver(cheap(2))

        def throttle(asked: str, answer: bytes) -> bytes:
            tag = answer.rstrip().rpartition(b"\r\n")[2].split()[0]
            return tag + b" OK [THROTTLED] Success\r\n" if asked == command else answer

        server.change = throttle
        assert "THROTTLED" in fails(watch)
        eventually(lambda: server.open == 0)
        server.change = lambda asked, answer: answer
        look(watch)
        assert server.lies(kept) == ["INBOX"]
        assert watch.status.judged == 1


@pytest.mark.parametrize("literals", [False, True])
def test_names_of_folders_may_be_anything(literals, tmp_path):
    names = ['a]b"c', "back\\slash", "Gr&APwA3w-e", "(x) {3}", "1234", "NIL", "a MESSAGES 5"]
    folders = (("INBOX", ""), ('Sp"am] \\here', r"\Junk"), *((name, "") for name in names))
    ways = Ways(literals=literals, folders=folders)
    with stage(ways, tmp_path) as (server, watch):
        look(watch)
        assert sorted(row.raw for row in watch.folders()) == sorted(dict(folders))
        spam = server.deliver(cheap(1))
        look(watch)
        assert server.lies(spam) == ['Sp"am] \\here']


def test_names_that_nobody_may_send_are_left_out(tmp_path):
    odd = (("b\xe4r", ""), ("a\r\nX1 EXPUNGE", ""), ("tab\t", ""))
    ways = replace(scripted_imap.OBJECTS, literals=True)
    ways = replace(
        ways, folders=(*ways.folders, *odd), capabilities=ways.capabilities + " UTF8=ACCEPT"
    )
    with stage(ways, tmp_path) as (_, watch):
        look(watch)
        assert {row.raw for row in watch.folders()} == {"INBOX", "Junk", "Archive"}


def test_folder_that_goes_while_it_is_open_is_forgotten(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        del server.folders["Archive"], server.folders["Junk"]
        spam = server.deliver(cheap(1))
        watch._dirty.update(watch._folders)
        look(watch)
        watch._relist_at = 0.0
        look(watch)
        assert {row.raw for row in watch.folders()} == {"INBOX"}
        assert server.lies(spam) == ["INBOX"]
        assert watch.status.judged == 1


def test_folder_that_cannot_be_opened_holds_nothing_up(tmp_path):
    shut = (("EXAMINE Calendar", "cannot be opened"),)
    ways = replace(scripted_imap.EXCHANGE, refuses=shut)
    with stage(ways, tmp_path) as (server, watch):
        look(watch)
        assert watch.is_listed
        spam = server.deliver(cheap(1))
        look(watch)
        assert server.lies(spam) == ["Junk Email"]


def test_what_was_left_out_is_asked_for_again(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1)), server.deliver(letter(2))
        whole = server.change
        server.change = lambda asked, answer: (
            b"".join(each for each in answer.splitlines(True) if b"UID 2 " not in each)
            if asked == "UID FETCH" and b"BODY" not in answer
            else answer
        )
        look(watch)
        assert watch.status.judged == 1
        server.change = whole
        look(watch)
        assert watch.status.judged == 2


def test_who_hangs_up_at_once_is_asked_seldom(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        pauses = []
        for _ in range(4):
            watch.step()
            server.hang_up()
            watch.step()
            pauses.append(round(watch.due - time.monotonic()))
        assert pauses == [1, 60, 120, 300]
        assert "lost" in watch.status.trouble


def test_what_is_told_before_idle_begins_is_heard(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        server.change = lambda asked, answer: (
            b"* 1 EXISTS\r\n* 1 FETCH (FLAGS ())\r\n" + answer if asked == "IDLE" else answer
        )
        watch._poll_at = 0.0
        watch.step()
        assert watch.status.trouble == ""
        assert watch.due <= time.monotonic() + 1.0
