"""An account on a real Dovecot, step by step: what is judged and moved, shown and never touched."""

from __future__ import annotations

import re
import shutil

import pytest

from spamguard.config.accounts import Mode
from tests.support.waiting import eventually
from tests.unit.imap.desk import desk

pytestmark = [
    pytest.mark.skipif(
        shutil.which("dovecot") is None, reason="needs Dovecot: apt-get install dovecot-imapd"
    ),
]

NO_IDS = ("X-GUID",)
WAYS = {
    "everything": ("", ()),
    "no ids": ("", NO_IDS),
    "bare": ("IMAP4rev1 UIDPLUS", NO_IDS),
}
WRITING = re.compile(
    r" (SELECT|UID STORE|UID COPY|UID MOVE|APPEND|CREATE|DELETE|RENAME|EXPUNGE|UID EXPUNGE|CLOSE|"
    r"STORE|COPY|MOVE|SETMETADATA|SUBSCRIBE)\b"
)


@pytest.fixture(params=WAYS)
def server(request):
    return dict(zip(("capability", "refused"), WAYS[request.param], strict=True))


def test_spam_is_moved_once_and_what_a_person_puts_back_stays(server):
    with desk(**server) as here:
        here.deliver("old and cheap")
        here.step()
        here.deliver("cheap watches")
        here.deliver("a letter")
        here.step()
        assert (here.lying(), here.lying(".Junk")) == (
            ["a letter", "old and cheap"],
            ["cheap watches"],
        )
        assert here.shown(".Junk")["cheap watches"].startswith(b"X-Spamguard: spam;")
        assert here.shown()["a letter"].startswith(b"X-Spamguard: ham;")
        here.move("cheap watches", ".Junk", "")
        here.step()
        assert here.lying(".Junk") == []
        assert here.shown()["cheap watches"].startswith(b"X-Spamguard: spam;")
        for folder in (".Archive", ""):
            here.move("cheap watches", "" if folder else ".Archive", folder)
            here.step()
        assert (len(here.asked), here.lying(".Junk")) == (2, [])
        assert (here.watch.status.judged, here.watch.status.moved) == (2, 1)


def test_looking_writes_nothing(server):
    with desk(Mode.LOOK, **server) as here:
        here.deliver("old")
        here.step()
        here.deliver("cheap watches")
        here.step()
        here.move("cheap watches", "", ".Junk")
        here.step()
        assert list(here.shown(".Junk")) == ["cheap watches"]
        assert here.watch.status.spam == 1
        assert [line for line in here.server.commands if WRITING.search(line)] == []
        assert not list(here.box.glob("cur/*:2,*S*"))


def test_flags_are_set_where_the_server_keeps_them():
    with desk(Mode.FLAG) as here:
        here.step()
        here.deliver("cheap watches")
        here.deliver("a letter")
        here.step()
        stored = [line.split("STORE")[1] for line in here.server.commands if "STORE" in line]
        assert stored == [" 1 +FLAGS.SILENT ($Junk)", " 2 +FLAGS.SILENT ($NotJunk)"]
        assert here.lying() == ["a letter", "cheap watches"]


def test_without_a_way_to_move_one_message_nothing_is_moved():
    with desk(capability="IMAP4rev1") as here:
        here.step()
        here.deliver("cheap watches")
        here.step()
        assert here.lying() == ["cheap watches"]
        assert here.watch.status.disagreed == 1
        assert not here.shown()["cheap watches"].startswith(b"X-Spamguard"), "nobody put it back"
        assert not [line for line in here.server.commands if re.search("STORE|COPY|MOVE", line)]


def test_a_refused_move_is_told_and_looks_like_none(caplog):
    with desk(refused=("UID MOVE",)) as here:
        here.step()
        here.deliver("cheap watches")
        here.step()
        assert here.lying() == ["cheap watches"]
        assert not here.shown()["cheap watches"].startswith(b"X-Spamguard")
        assert "cannot be moved to Junk" in caplog.text
        here.step(3)
        assert sum("UID MOVE" in line for line in here.server.commands) == 1


def test_where_a_copy_cannot_be_removed_it_is_told(caplog):
    with desk(capability="IMAP4rev1 UIDPLUS", refused=("UID EXPUNGE",)) as here:
        here.step()
        here.deliver("cheap watches")
        here.step(3)
        assert (here.lying(), here.lying(".Junk")) == (["cheap watches"], ["cheap watches"])
        assert "stays in INBOX" in caplog.text
        assert here.watch.records.intents() == []


def test_other_numbers_make_no_message_new(server):
    with desk(**server) as here:
        for number in range(3):
            here.deliver(f"old cheap {number}")
        here.step()
        here.deliver("cheap watches")
        here.deliver("a letter")
        here.step()
        before = (here.lying(), here.lying(".Junk"), len(here.asked))
        here.watch.close()
        here.uncertain()
        here.start()
        here.deliver("another letter")
        here.step()
        assert here.lying() == sorted([*before[0], "another letter"])
        assert (here.lying(".Junk"), len(here.asked)) == (before[1], 3)
        assert set(here.shown()) == {"a letter", "another letter"}
        assert set(here.shown(".Junk")) == {"cheap watches"}


def test_old_mail_is_read_only_when_it_moves_to_where_that_teaches(server):
    with desk(**server) as here:
        here.deliver("old one")
        here.deliver("old two")
        here.step()
        assert here.counts() == 0
        here.move("old one", "", ".Junk")
        here.move("old two", "", ".Trash")
        here.step()
        assert (here.counts(), here.counts(".Junk"), here.counts(".Trash")) == (1, 0, 0)
        assert set(here.shown()) == {"old one"}
        assert (here.counts(), here.counts(".Junk"), here.counts(".Trash")) == (0, 1, 0)
        assert set(here.shown(".Junk")) == {"old one"}
        fetched = [line for line in here.server.commands if "BODY.PEEK[]" in line]
        assert len(fetched) == 1
        assert here.asked == []


def test_mail_that_another_filter_files_is_not_judged(server):
    with desk(**server) as here:
        here.step()
        here.deliver("cheap filed", ".Junk")
        here.step()
        assert set(here.shown(".Junk")) == {"cheap filed"}
        here.move("cheap filed", ".Junk", "")
        here.step()
        assert here.lying() == ["cheap filed"]
        assert here.asked == []


def test_unread_mail_in_junk_is_not_shown_where_the_provider_may_have_put_it_there():
    with desk(preset="microsoft") as here:
        here.step()
        here.deliver("a letter")
        here.step()
        (file,) = [*here.box.glob("new/*"), *here.box.glob("cur/*")]
        file = file.rename(here.box / ".Junk" / "cur" / f"{file.name.partition(':')[0]}:2,")
        here.step()
        assert (here.counts(), here.counts(".Junk")) == (0, 0)
        file.rename(f"{file}S")
        here.step()
        assert set(here.shown(".Junk")) == {"a letter"}


def test_a_folder_that_goes_while_it_is_open():
    with desk() as here:
        here.step()
        shutil.rmtree(here.box / ".Archive")
        here.step()
        here.deliver("a letter")
        here.step()
        assert set(here.shown()) == {"a letter"}
        (mailbox,) = here.mailboxes.find_mailboxes()

        def has_gone() -> bool:
            here.step()
            return ".Archive" not in [
                each.directory for each in here.mailboxes.list_folders(mailbox)
            ]

        eventually(has_gone)


def test_so_much_a_day(monkeypatch):
    monkeypatch.setattr("spamguard.imap.line._DAILY_BYTES", 10)
    with desk() as here:
        here.step()
        here.deliver("a letter")
        here.deliver("cheap watches")
        here.step()
        assert len(here.asked) == 1
        assert "fetched today" in here.watch.status.trouble


class Cut:
    """Ends a connection after the command of this number."""

    def __init__(self, position: int) -> None:
        self.position, self.seen, self.begun = position, 0, False

    def __call__(self, line: str) -> bool:
        self.seen += self.begun
        return self.begun and self.seen == self.position


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["", "IMAP4rev1 UIDPLUS IDLE"])
def test_cut_after_any_command(capability):
    """Whatever the server has done by then, it is done once, and looks like what it is."""
    position, number, outcomes = 0, 1, set()
    while position < number:
        position += 1
        cut = Cut(position)
        with desk(capability=capability, cuts=cut) as here:
            here.step()
            here.deliver("cheap watches")
            here.deliver("a letter")
            cut.begun = True
            here.step(4)
            cut.begun, number = False, cut.seen
            here.step()
            inbox, junk = here.lying(), here.lying(".Junk")
            outcomes.add((*inbox, "|", *junk))
            assert here.watch.records.intents() == []
            assert (sorted(here.shown()), sorted(here.shown(".Junk"))) == (inbox, junk)
            for text, raw in {**here.shown(), **here.shown(".Junk")}.items():
                assert raw.startswith(b"X-Spamguard: spam") == (text in junk)
            assert len(here.asked) <= 3
    stays = ("a letter", "cheap watches", "|")  # nobody can tell who has put it there
    assert outcomes - {stays} == {("a letter", "|", "cheap watches")}
    assert position > 8
