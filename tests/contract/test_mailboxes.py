"""What every `Mailboxes` promises, run on every implementation: a new one comes into `WAYS`. Users'
Maildirs are found, listed and opened; no link is followed, nothing is written, and changes are
reported.
"""

from __future__ import annotations

import getpass
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from spamguard import process
from spamguard.config.accounts import Mode
from spamguard.config.options import Watch
from spamguard.folders import broker, changes
from spamguard.folders.broker import BrokerSession, Mailboxes, RemoteMailboxes
from spamguard.folders.maildir import (
    Changes,
    Folder,
    LocalMailboxes,
    Mailbox,
    MessageFile,
    iter_files,
    parse_file_name,
)
from spamguard.imap.hub import Hub
from spamguard.imap.judge import Answer
from spamguard.imap.mailboxes import ImapMailboxes
from tests.support import imap_server
from tests.support.disks import mounted, needs_disks
from tests.support.waiting import eventually
from tests.unit.folders.maildirs import deliver, forbid, maildir, move
from tests.unit.imap.stage import running

pytestmark = pytest.mark.slow  # waits for seconds

SECONDS = 20.0  # generous


Opened = Callable[..., AbstractContextManager[Mailboxes]]


@contextmanager
def local(*patterns: Watch | str | Path, notify: bool = True) -> Iterator[LocalMailboxes]:
    with closing(
        LocalMailboxes(
            [one if isinstance(one, Watch) else Watch(str(one)) for one in patterns], notify=notify
        )
    ) as found:
        yield found


@contextmanager
def served(*patterns: Watch | str | Path, notify: bool = True) -> Iterator[RemoteMailboxes]:
    """Mailboxes by way of a socket; a thread answers at its other end."""
    told = [one if isinstance(one, Watch) else Watch(str(one)) for one in patterns]
    with (
        TemporaryDirectory() as directory,
        local(*patterns, notify=notify) as mailboxes,
        ExitStack() as stack,
    ):
        path = Path(directory) / "socket"  # tmp_path is too long for one
        listening = stack.enter_context(process.listen_at(path, 0o600))

        def serve() -> None:
            with listening.accept()[0] as channel:
                BrokerSession(channel, mailboxes).run(broker.fingerprint_watches(told))

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        yield stack.enter_context(closing(RemoteMailboxes(path, told)))


@contextmanager
def by_imap(*patterns: Watch | str | Path) -> Iterator[ImapMailboxes]:
    """The same Maildirs, as accounts of an IMAP server; all that comes is ham."""
    with local(*patterns, notify=False) as found:
        boxes = {mailbox.user: Path(mailbox.path) for mailbox in found.find_mailboxes()}
    with imap_server.serving(boxes) as server, TemporaryDirectory() as state:
        accounts = [server.account(user, Mode.LOOK) for user in boxes]
        with closing(Hub(Path(state), accounts, lambda raw, user: Answer())) as hub, running(hub):
            mailboxes = hub.open_mailboxes()
            eventually(lambda: all(watch.is_listed for watch in hub.watches))
            yield mailboxes


WAYS: dict[str, Opened] = {"itself": local, "served": served}
ALL_WAYS = {**WAYS, "by IMAP": by_imap}


@pytest.fixture(params=WAYS)
def opened(request: pytest.FixtureRequest) -> Opened:
    """Maildirs of this machine: what is said of paths, links and files holds for these."""
    return WAYS[request.param]


@pytest.fixture(params=ALL_WAYS)
def anyhow(request: pytest.FixtureRequest) -> Opened:
    """Whatever the mailboxes are."""
    if request.param == "by IMAP" and shutil.which("dovecot") is None:
        pytest.skip("needs Dovecot: apt-get install dovecot-imapd")
    return ALL_WAYS[request.param]


def everything(mailboxes: Mailboxes) -> dict[str, list[str]]:
    """All users, and the folders of each."""
    return {
        mailbox.user: [place.directory for place in mailboxes.list_folders(mailbox)]
        for mailbox in mailboxes.find_mailboxes()
    }


def content(mailboxes: Mailboxes, place: Folder, file: MessageFile) -> bytes:
    with os.fdopen(mailboxes.open_file(place, file), "rb") as stream:
        return stream.read()


def test_users_are_what_the_wildcards_stand_for(opened, tmp_path):
    for name in ("anna", "ben", ".hidden"):
        maildir(tmp_path / "home" / name / "Maildir")
    (tmp_path / "home" / "nomail").mkdir()
    (tmp_path / "home" / "file").write_text("x")
    maildir(tmp_path / "vmail" / "example.org" / "carl" / "Maildir")
    with opened(
        tmp_path / "home/*/Maildir", tmp_path / "vmail/*/*/Maildir", tmp_path / "home/a*/Mail?ir"
    ) as mailboxes:
        assert mailboxes.find_mailboxes() == [
            Mailbox("anna", f"{tmp_path}/home/anna/Maildir", 0),
            Mailbox("ben", f"{tmp_path}/home/ben/Maildir", 0),
            Mailbox("carl@example.org", f"{tmp_path}/vmail/example.org/carl/Maildir", 1),
        ]


@pytest.mark.parametrize(
    ("pattern", "path", "user"),
    [
        ("*/*/*", "example.org/a/anna", "anna@example.org"),
        ("*/*/*", "disk1/example.org/anna", "anna@example.org"),
        ("*/*/*", "disk1/lan/anna", "anna@lan"),
        ("*/*/*/*", "example.org/a/n/anna", "anna@example.org"),
        ("*/?/*", "example.org/a/anna", "anna@example.org"),
        ("?/*", "a/anna", "anna"),
        ("disk?/*/*", "disk1/lan/anna.b", "anna.b@lan"),
        ("*/*", "example.org/anna@example.org", "anna@example.org"),
        ("ann?", "anna", "anna"),
    ],
)
def test_of_many_wildcards_the_user_is_an_address(opened, tmp_path, pattern, path, user):
    maildir(tmp_path / path)
    with opened(tmp_path / pattern) as mailboxes:
        assert [mailbox.user for mailbox in mailboxes.find_mailboxes()] == [user]


def test_users_without_wildcards(opened, tmp_path):
    one, other = maildir(tmp_path / "one"), maildir(tmp_path / "[other]")
    with opened(one, Watch(str(other), "anna"), tmp_path / "missing") as mailboxes:
        assert [mailbox.user for mailbox in mailboxes.find_mailboxes()] == [
            getpass.getuser(),
            "anna",
        ]


def test_brackets_of_a_pattern_are_letters(opened, tmp_path):
    maildir(tmp_path / "[a]b")
    with opened(tmp_path / "[a]*") as mailboxes:
        assert [mailbox.user for mailbox in mailboxes.find_mailboxes()] == ["[a]b"]


def test_what_comes_and_goes_is_told_listed_and_opened(anyhow, tmp_path):
    box = maildir(tmp_path / "anna", ".Junk")
    raw = b"Subject: one\n\nhello\n"
    with anyhow(tmp_path / "*") as mailboxes:
        assert everything(mailboxes) == {"anna": ["", ".Junk"]}
        (mailbox,) = mailboxes.find_mailboxes()
        inbox, junk = Folder(mailbox), Folder(mailbox, ".Junk")
        drained(mailboxes, True)
        message, listed = deliver(box, raw, "cur"), list[MessageFile]()
        while not listed:
            assert inbox in told(mailboxes).folders
            listed = list(iter_files(mailboxes.list_files(inbox)))
        assert content(mailboxes, inbox, listed[0]).replace(b"\r", b"") == raw
        assert list(iter_files(mailboxes.list_files(junk))) == []
        base = parse_file_name(listed[0].name)
        drained(mailboxes, True)
        move(message, box / ".Junk")
        found = set[Folder]()
        while found != {inbox, junk}:
            found |= told(mailboxes).folders
        assert list(iter_files(mailboxes.list_files(inbox))) == []
        (file,) = iter_files(mailboxes.list_files(junk))
        assert parse_file_name(file.name) == base
        assert content(mailboxes, junk, file).replace(b"\r", b"") == raw
        with pytest.raises(FileNotFoundError):
            mailboxes.open_file(inbox, listed[0])


def test_nobody_gets_to_what_is_not_served(anyhow, tmp_path):
    box = maildir(tmp_path / "mail" / "anna")
    file = MessageFile("cur", deliver(maildir(tmp_path / "other"), b"secret", "cur").name)
    with anyhow(tmp_path / "mail/*") as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        others = (mailbox._replace(path=str(tmp_path / "other")), mailbox._replace(watch=5))
        for folder in (*map(Folder, others), Folder(mailbox, "../other"), Folder(mailbox, "None")):
            for ask in (mailboxes.list_files, lambda each: mailboxes.open_file(each, file)):
                with pytest.raises(FileNotFoundError):
                    ask(folder)
        for name in (file.name, "../../../other/cur/" + file.name, ""):
            with pytest.raises(OSError, match=r"."):
                mailboxes.open_file(Folder(mailbox), MessageFile("cur", name))
        assert box.exists()


def test_folders_side_by_side_and_within_one_another(anyhow, tmp_path):
    maildir(tmp_path / "anna", ".Junk", ".Archive.2024")
    maildir(tmp_path / "ben", "Junk", "Lists", "Lists/Python", "Lists/cur/no")
    (tmp_path / "anna" / "sieve").mkdir()
    with anyhow(tmp_path / "*") as mailboxes:
        assert everything(mailboxes) == {
            "anna": ["", ".Archive.2024", ".Junk"],
            "ben": ["", "Junk", "Lists", "Lists/Python"],
        }


def test_names_are_those_of_new_and_cur(opened, tmp_path):
    box = maildir(tmp_path / "anna", ".Junk")
    deliver(box, b"one")
    seen = deliver(box, b"two", "cur", "S")
    (box / "new" / ".nfs1").write_text("x")
    odd = os.fsdecode(b"\xff\xfe odd")
    (box / "cur" / odd).write_bytes(b"odd")
    with opened(tmp_path / "*") as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        found = list(iter_files(mailboxes.list_files(Folder(mailbox))))
        assert [file.part for file in found] == ["new", "cur", "cur"]
        assert {file.name for file in found[1:]} == {seen.name, odd}
        assert {content(mailboxes, Folder(mailbox), file) for file in found} == {
            b"one",
            b"two",
            b"odd",
        }
        assert mailboxes.list_files(Folder(mailbox, ".Junk")) == {"new": [], "cur": []}
        for directory in (".None", "../anna", "new/../cur"):
            with pytest.raises(OSError, match=r".") as caught:
                mailboxes.list_files(Folder(mailbox, directory))
            assert isinstance(caught.value, FileNotFoundError)


def test_what_is_outside_of_the_patterns_is_not_opened(opened, tmp_path):
    box, secret = maildir(tmp_path / "mail" / "anna"), maildir(tmp_path / "secret")
    file = MessageFile("cur", deliver(secret, b"secret", "cur").name)
    deliver(box, b"mine", "cur")
    with opened(tmp_path / "mail/*") as mailboxes:
        for mailbox in (
            Mailbox("x", str(secret), 0),
            Mailbox("x", f"{tmp_path}/mail/anna/../../secret", 0),
            Mailbox("x", str(box), 5),
        ):
            with pytest.raises(FileNotFoundError):
                mailboxes.open_file(Folder(mailbox), file)
        (mailbox,) = mailboxes.find_mailboxes()
        for name in ("../../../secret/cur/" + file.name, "..", file.name):
            with pytest.raises(OSError, match=r"."):
                mailboxes.open_file(Folder(mailbox), MessageFile("cur", name))
        with pytest.raises(FileNotFoundError):
            mailboxes.open_file(Folder(mailbox), MessageFile("..", "anna"))


def test_no_symbolic_link_is_followed(opened, tmp_path, caplog):
    secret = maildir(tmp_path / "secret", ".Junk")
    file = deliver(secret, b"secret", "cur")
    home = tmp_path / "home"
    box = maildir(home / "anna" / "Maildir", ".Junk")
    (home / "ben").symlink_to(home / "anna")
    (home / "carl").mkdir()
    (home / "carl" / "Maildir").symlink_to(secret)
    maildir(home / "dora")
    (home / "dora" / "Maildir").symlink_to(box)
    (home / "emil").mkdir()
    (home / "emil" / "Maildir").symlink_to("/etc")
    (box / ".Linked").symlink_to(secret)
    (box / ".Half").mkdir()
    (box / ".Half" / "cur").symlink_to(secret / "cur")
    (box / "cur" / "link").symlink_to(file)
    with opened(home / "*/Maildir") as mailboxes:
        assert everything(mailboxes) == {"anna": ["", ".Junk"]}
        assert everything(mailboxes) == {"anna": ["", ".Junk"]}
        (mailbox,) = mailboxes.find_mailboxes()
        with pytest.raises(OSError, match="symbolic"):
            mailboxes.open_file(Folder(mailbox), MessageFile("cur", "link"))
        with pytest.raises(OSError, match=r"."):
            mailboxes.list_files(Folder(mailbox, ".Half"))
        assert list(mailboxes.unreadable_directories()) == [f"{home}/carl/Maildir"], (
            "`status` tells of a mailbox that is not watched, by no name"
        )
    told = [record.getMessage() for record in caplog.records]
    links = [f"{home}/{name}" for name in ("ben", "carl/Maildir", "dora/Maildir", "emil/Maildir")]
    assert [text.partition(":")[0] for text in told] == [
        *links,
        f"{box}/.Half/cur",
        f"{box}/.Linked",
    ]
    assert all("symbolic link, which is not followed" in text for text in told)


def test_the_fixed_part_of_a_pattern_may_be_a_link(opened, tmp_path):
    maildir(tmp_path / "real" / "anna")
    (tmp_path / "home").symlink_to(tmp_path / "real")
    with opened(tmp_path / "home/*") as mailboxes:
        assert everything(mailboxes) == {"anna": [""]}


def test_only_regular_files_are_opened_and_nothing_is_waited_for(opened, tmp_path):
    box = maildir(tmp_path / "anna")
    os.mkfifo(box / "cur" / "pipe")
    (box / "cur" / "directory").mkdir()
    with opened(box) as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        for name in ("pipe", "directory"):
            with pytest.raises(OSError, match="no regular file"):
                mailboxes.open_file(Folder(mailbox), MessageFile("cur", name))


def test_a_mailbox_of_another_format_is_told(opened, tmp_path, caplog):
    (tmp_path / "anna" / "mailboxes" / "INBOX" / "dbox-Mails").mkdir(parents=True)
    with opened(tmp_path / "*") as mailboxes:
        assert everything(mailboxes) == {"anna": []}
        assert everything(mailboxes) == {"anna": []}
    (told,) = [record.getMessage() for record in caplog.records]
    assert "mdbox" in told


def told(mailboxes: Mailboxes) -> Changes:
    """The next changes; AssertionError if none come."""
    found = mailboxes.wait_for_changes(SECONDS)
    assert found != Changes(), "nothing is told"
    return found


def drained(mailboxes: Mailboxes, notify: bool) -> None:
    """Wait until everything done so far was reported."""
    while mailboxes.wait_for_changes(0.05 if notify else 2.5 * changes.POLL_SECONDS) != Changes():
        pass


@pytest.fixture(params=[True, False], ids=["events", "polled"])
def notify(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(changes, "_COARSE_SECONDS", 0.1)
    return bool(request.param)


def test_changes_are_told(opened, tmp_path, notify):
    box = maildir(tmp_path / "home" / "anna", ".Junk")
    message = deliver(box, b"one")
    with opened(tmp_path / "home/*", notify=notify) as mailboxes:
        assert list(everything(mailboxes)) == ["anna"]
        (mailbox,) = mailboxes.find_mailboxes()
        drained(mailboxes, notify)
        assert mailboxes.wait_for_changes(0.3) == Changes()
        message = move(message, box / ".Junk")
        found = set(told(mailboxes).folders)
        while len(found) < 2:
            found |= told(mailboxes).folders
        assert found == {Folder(mailbox), Folder(mailbox, ".Junk")}
        drained(mailboxes, notify)
        message.rename(box / ".Junk" / "cur" / f"{message.name}:2,S")
        assert told(mailboxes).folders == {Folder(mailbox, ".Junk")}
        drained(mailboxes, notify)
        maildir(box, ".New")
        assert mailbox in told(mailboxes).mailboxes
        assert everything(mailboxes)["anna"] == ["", ".Junk", ".New"]
        drained(mailboxes, notify)
        deliver(box / ".New", b"two")
        assert told(mailboxes).folders == {Folder(mailbox, ".New")}
        drained(mailboxes, notify)
        maildir(tmp_path / "home" / "ben")
        assert told(mailboxes).users
        assert list(everything(mailboxes)) == ["anna", "ben"]
        drained(mailboxes, notify)
        deliver(tmp_path / "home" / "ben", b"three")
        assert {place.mailbox.user for place in told(mailboxes).folders} == {"ben"}


def test_a_folder_that_comes_in_pieces_is_told_when_it_is_one(opened, tmp_path, notify):
    box = maildir(tmp_path / "anna")
    with opened(box, notify=notify) as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        mailboxes.list_folders(mailbox)
        drained(mailboxes, notify)
        (box / ".New").mkdir()
        assert mailbox in told(mailboxes).mailboxes
        assert [place.directory for place in mailboxes.list_folders(mailbox)] == [""]
        drained(mailboxes, notify)
        (box / ".New" / "cur").mkdir()
        assert mailbox in told(mailboxes).mailboxes
        assert [place.directory for place in mailboxes.list_folders(mailbox)] == ["", ".New"]
        box.joinpath(".New").rename(box / ".Old")
        assert mailbox in told(mailboxes).mailboxes
        assert [place.directory for place in mailboxes.list_folders(mailbox)] == ["", ".Old"]


def test_a_maildir_that_is_yet_to_come(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    with opened(tmp_path / "state" / "Maildir") as mailboxes:
        assert mailboxes.find_mailboxes() == []
        maildir(tmp_path / "state" / "Maildir")
        assert told(mailboxes).users
        assert len(mailboxes.find_mailboxes()) == 1


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_a_disk_that_is_mounted_late(opened, tmp_path, monkeypatch, notify, pattern):
    """A disk appears where another directory was, and no event of that directory tells; here a link
    stands for it.
    """
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    (tmp_path / "bare" / "home").mkdir(parents=True)
    box = (
        maildir(tmp_path / "disk" / "home" / "anna")
        if pattern
        else maildir(tmp_path / "disk" / "home")
    )
    (tmp_path / "mail").symlink_to("bare")
    with opened(f"{tmp_path}/mail/home{pattern}", notify=notify) as mailboxes:
        assert [folder for folders in everything(mailboxes).values() for folder in folders] == []
        drained(mailboxes, notify)
        assert mailboxes.wait_for_changes(0.3) == Changes()
        (tmp_path / "new").symlink_to("disk")
        (tmp_path / "new").rename(tmp_path / "mail")
        assert told(mailboxes) != Changes()
        assert [folder for folders in everything(mailboxes).values() for folder in folders] == [""]
        drained(mailboxes, notify)
        deliver(box, b"one")
        assert len(told(mailboxes).folders) == 1


@pytest.mark.parametrize("there", [False, True])
def test_a_disk_that_is_mounted_late_behind_a_link(opened, tmp_path, monkeypatch, there):
    """The operator may have named a link to the disk, which gives no event when the disk is
    mounted.
    """
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    disk = tmp_path / "disk"
    (tmp_path / "mail").symlink_to(disk)
    if there:
        disk.mkdir()
    with opened(tmp_path / "mail" / "*") as mailboxes:
        assert mailboxes.find_mailboxes() == []
        assert mailboxes.wait_for_changes(0.3) == Changes()
        maildir(tmp_path / "new" / "anna")
        if there:
            disk.rename(tmp_path / "bare")
        (tmp_path / "new").rename(disk)
        assert told(mailboxes).users
        assert [mailbox.user for mailbox in mailboxes.find_mailboxes()] == ["anna"]


@needs_disks
@pytest.mark.parametrize(
    "place",
    [
        "",
        "example.org",
        "example.org/anna b",
        "example.org/anna b/Maildir",
        "example.org/anna b/Maildir/.Junk",
    ],
)
def test_a_disk_that_is_mounted_over_what_is_watched(opened, tmp_path, notify, place):
    """At any part of the pattern, and within a mailbox: the next look finds it. The path may have a
    link that the operator has named.
    """
    domain = Path("example.org", "anna b", "Maildir")
    bare, disk = (
        maildir(tmp_path / "real" / domain, ".Junk"),
        maildir(tmp_path / "disk" / domain, ".Junk", ".Junk.New"),
    )
    (tmp_path / "mail").symlink_to("real")
    maildir(tmp_path / "disk" / domain.parent.with_name("ben") / "Maildir")
    for path in (tmp_path / "real").rglob("*"):
        os.utime(path, (1e9, 1e9))  # not made at the same moment as that on the disk
    with opened(tmp_path / "mail/*/*/Maildir", notify=notify) as mailboxes:
        assert everything(mailboxes) == {"anna b@example.org": ["", ".Junk"]}
        (mailbox,) = mailboxes.find_mailboxes()
        drained(mailboxes, notify)
        with mounted(tmp_path / "disk" / place, tmp_path / "real" / place):
            if not notify:
                assert {mailbox} == told(mailboxes).mailboxes
            users = [mailbox.user for mailbox in mailboxes.find_mailboxes()]
            assert ("ben@example.org" in users) == (place in ("", "example.org"))
            assert (".Junk.New" in everything(mailboxes)[mailbox.user]) == (
                not place.endswith(".Junk")
            )
            drained(mailboxes, notify)
            deliver((bare if notify else disk) / ".Junk", b"one")
            assert told(mailboxes).folders == {Folder(mailbox, ".Junk")}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open(opened, tmp_path):
    box = maildir(tmp_path / "anna", ".Junk", "Lists/Python")
    message = deliver(box, b"one")
    before = descriptors()
    with opened(tmp_path / "*") as mailboxes:
        for _ in range(3):
            (mailbox,) = mailboxes.find_mailboxes()
            mailboxes.list_folders(mailbox)
            os.close(mailboxes.open_file(Folder(mailbox), MessageFile("new", message.name)))
    assert descriptors() == before


def test_nothing_in_the_mailbox_is_changed(opened, tmp_path):
    box = maildir(tmp_path / "anna", ".Junk")
    deliver(box, b"one")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with opened(tmp_path / "*") as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        for place in mailboxes.list_folders(mailbox):
            for file in iter_files(mailboxes.list_files(place)):
                content(mailboxes, place, file)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_a_directory_that_cannot_be_looked_at_is_told_once_and_what_lay_below_it_is_not_gone(
    opened, tmp_path, caplog, monkeypatch
):
    home = tmp_path / "home"
    maildir(home / "anna")
    maildir(home / "ben" / "below")
    with opened(home / "ben", home / "*") as mailboxes:
        before = list(mailboxes.find_mailboxes())
        assert not mailboxes.unreadable_directories()
        for directory in (home / "anna", home):
            with monkeypatch.context() as closed:
                forbid(closed, directory)
                maildir(directory / f"later{len(caplog.records)}")
                for _ in range(2):
                    assert sorted(mailboxes.find_mailboxes()) == sorted(before)
                    assert mailboxes.unreadable_directories() == {
                        str(directory): "Permission denied"
                    }
                with pytest.raises(PermissionError):
                    mailboxes.list_folders(next(one for one in before if one.user == "anna"))
        assert len(list(mailboxes.find_mailboxes())) == 3
        assert not mailboxes.unreadable_directories()
    assert [
        record.getMessage().partition(" (Permission denied)")[0] for record in caplog.records
    ] == [
        f"{home}/anna: cannot be looked at",
        f"{home}: cannot be looked at",
    ]


def test_a_folder_that_cannot_be_looked_at_is_one_all_the_same(opened, tmp_path, monkeypatch):
    box = maildir(tmp_path / "anna", ".Junk")
    forbid(monkeypatch, box / ".Junk")
    with opened(tmp_path / "*") as mailboxes:
        (anna,) = mailboxes.find_mailboxes()
        assert [place.directory for place in mailboxes.list_folders(anna)] == ["", ".Junk"]
        with pytest.raises(PermissionError):
            mailboxes.list_files(Folder(anna, ".Junk"))


def test_beyond_the_limit_of_watches_directories_are_polled(opened, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    box = maildir(tmp_path / "anna", ".Junk")

    class Full(changes.InotifyEvents):
        def add(self, directory: int, path: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(changes, "InotifyEvents", Full)
    with opened(box) as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        mailboxes.list_folders(mailbox)
        drained(mailboxes, False)
        deliver(box / ".Junk", b"x")
        assert told(mailboxes).folders == {Folder(mailbox, ".Junk")}
    (record,) = caplog.records
    assert "fs.inotify.max_user_watches" in record.getMessage()
