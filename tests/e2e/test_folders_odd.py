"""Moving mail teaches whatever servers, administrators and accidents do to a mailbox: with a real
Dovecot, and by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import Daemon
from tests.e2e.dovecot import Dovecot
from tests.e2e.moving import (
    all_seen,
    copy,
    eventually,
    mail_program,
    move,
    needs_dovecot,
    ok,
    said,
    seen,
    send,
    sibling,
    uid,
    votes,
    watching,
)
from tests.e2e.ports import free_port
from tests.unit.folders.maildirs import deliver, maildir
from tests.unit.folders.maildirs import move as rename

LARGE = 100 << 20  # bytes


def doveadm(server: Dovecot, *arguments: str) -> str:
    line = ["doveadm", "-c", f"{server.root}/dovecot.conf", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def configured(state: Path, watch: str) -> Iterator[tuple[Daemon, int]]:
    """The daemon with an entry of `watch:`, and its port; mail it takes goes into a Maildir that
    nobody watches.
    """
    port = free_port()
    file = state.with_name("spamguard.yaml")
    file.write_text(
        f"listeners: [{{listen: 'smtp://127.0.0.1:{port}', position: standalone, next_hop: "
        f"'maildir:{state}/elsewhere'}}]\n"
        f"watch: [{watch}]\n"
    )
    with daemon.running(state, "--config", str(file), port=port) as running:
        yield running, port


def weighed(state: Path, box: Path) -> bool:
    with Sightings.open(state / SIGHTINGS_FILE) as sightings:
        return sightings.evidence_rule(str(box)) != ""


@needs_dovecot
def test_an_administrator_moves_and_imports(state: Path, tmp_path: Path) -> None:
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, *(sibling(number) for number in range(4)))
        all_seen(state, box, 4)
        for number in (0, 1):
            doveadm(
                server,
                "move",
                "-u",
                "anna",
                "Junk",
                "mailbox",
                "INBOX",
                "header",
                "Message-ID",
                f"<{number}@offers.example>",
            )
        running.lines("class=spam", 2)
        doveadm(
            server,
            "copy",
            "-u",
            "anna",
            "INBOX",
            "mailbox",
            "Junk",
            "header",
            "Message-ID",
            "<0@offers.example>",
        )
        doveadm(
            server,
            "expunge",
            "-u",
            "anna",
            "mailbox",
            "Junk",
            "header",
            "Message-ID",
            "<0@offers.example>",
        )
        running.lines("class=ham")
        other = maildir(tmp_path / "old", ".Junk", ".Archive")
        deliver(other / ".Junk", sibling(30), "cur", "S")
        deliver(other / ".Archive", sibling(31), "cur", "S")
        other.parent.chmod(0o755)
        shutil.copytree(other, server.root / "old")
        for path in (server.root / "old", *(server.root / "old").rglob("*")):
            shutil.chown(path, *(("nobody", "nogroup") if os.getuid() == 0 else (os.getuid(),)))
        doveadm(server, "import", "-u", "anna", f"maildir:{server.root}/old", "", "ALL")
        all_seen(state, box, 2, ".Junk")
        all_seen(state, box, 1, ".Archive")
        assert said(state) == {"anna": "ham spam"}


@needs_dovecot
def test_folders_of_any_name_made_renamed_and_deleted_by_a_mail_program(state: Path) -> None:
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, *(sibling(number) for number in range(4)))
        all_seen(state, box, 4)
        with mail_program(server) as client:
            for folder in ("Courrier ind&AOk-sirable", "Projects", "Archive"):
                ok(client.create(f'"{folder}"'))
            move(client, 0, "INBOX", '"Courrier ind&AOk-sirable"')
            move(client, 1, "INBOX", "Projects")
            move(client, 2, "INBOX", "Projects")
            running.lines("class=spam")
            all_seen(state, box, 2, ".Projects")
            move(client, 1, "Projects", "Junk")
            running.lines("class=spam", 2)
            ok(
                client.rename("Projects", "Archive.Projects")
            )  # from a folder of no class into ham: says nothing
            all_seen(state, box, 1, ".Archive.Projects")
            move(client, 2, "Archive.Projects", "Junk")
            running.lines("class=spam", 3)
            ok(client.select("INBOX"))
            ok(client.delete("Junk"))
            eventually(lambda: not seen(state, box, ".Junk"), "the folder is gone")
            move(client, 0, '"Courrier ind&AOk-sirable"', "INBOX")
            running.lines("class=ham")
        assert said(state) == {"anna": "ham spam spam"}


@needs_dovecot
def test_people_of_several_domains_whatever_they_are_called(state: Path) -> None:
    people = (
        "anna@example.org",
        "carl o@example.org",
        "o'brien@b.example",
        "dörte@b.example",
        "e+f@b.example",
    )
    names = "auth_username_format = %Lu\nauth_username_chars =\n"
    with dovecot.running(
        lambda root: f"mail_location = maildir:{root}/mail/%d/%n/Maildir\n{names}"
    ) as server:
        with (
            configured(state, f"'{server.root}/mail/*/*/Maildir'") as (running, _),
            ExitStack() as stack,
        ):
            clients = [stack.enter_context(mail_program(server, user)) for user in people]
            for number, client in enumerate(clients):
                ok(client.append("INBOX", "", "", sibling(number)))
            for user in people:
                name, _, domain = user.partition("@")
                all_seen(state, server.root / "mail" / domain / name / "Maildir", 1)
            for number, client in enumerate(clients):
                move(client, number, "INBOX", "Junk")
            running.lines("class=spam", len(people))
        assert said(state) == dict.fromkeys(people, "spam")


@needs_dovecot
def test_unread_mail_lands_in_new_wherever_it_goes(state: Path) -> None:
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, sibling(0), sibling(1))
        all_seen(state, box, 2)
        with mail_program(server) as client:
            ok(client.select("INBOX", readonly=True))
            move(client, 0, "INBOX", "Junk")
            copy(client, 1, "INBOX", "Junk")
            running.lines("class=spam", 2)
            assert (
                len(list((box / ".Junk" / "new").iterdir()))
                + len(list((box / ".Junk" / "cur").iterdir()))
                == 2
            )
            move(client, 0, "Junk", "INBOX")
            running.lines("class=ham")
        assert said(state) == {"anna": "ham spam"}


@needs_dovecot
def test_a_copy_that_is_marked_as_deleted_teaches_nothing(state: Path) -> None:
    """A mail program that strikes through what it moves, and never expunges it."""
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"

        def do(number: int, folder: str, *command: str) -> None:
            ok(client.select(folder))
            ok(client.uid(command[0], uid(client, number), *command[1:]))

        strike = ("STORE", "+FLAGS", r"(\Deleted)")
        send(port, *(sibling(number) for number in range(3)))
        all_seen(state, box, 3)
        with mail_program(server) as client:
            do(0, "INBOX", "COPY", "Junk")
            do(0, "INBOX", *strike)
            running.lines("class=spam")
            do(0, "Junk", *strike)
            ok(client.append("Junk", r"(\Deleted)", "", sibling(1)))
            all_seen(state, box, 2, ".Junk")
            ok(client.create("Archive"))
            do(0, "Junk", "COPY", "Archive")
            do(0, "Archive", "STORE", "-FLAGS", r"(\Deleted)")
            running.lines("class=ham")
            move(client, 2, "INBOX", "Junk")
            running.lines("lesson ", 3)
    assert said(state) == {"anna": "ham spam"}


@needs_dovecot
def test_flags_teach_where_they_are_asked_for(state: Path) -> None:
    evidence = "answered_is_ham: true, flagged_is_ham: true"
    with (
        dovecot.running() as server,
        configured(state, f"{{maildir: '{server.root}/mail/*', {evidence}}}") as (running, _),
    ):
        box = server.root / "mail" / "anna"
        with mail_program(server) as client:
            for number in range(7):
                ok(client.append("INBOX", "", "", sibling(number)))
            eventually(lambda: weighed(state, box), "the mailbox was looked at for evidence")
            all_seen(state, box, 7)
            ok(client.select("INBOX"))
            for number, flags in enumerate((r"\Answered", r"\Flagged", r"\Seen", "$Junk")):
                ok(client.uid("STORE", uid(client, number), "+FLAGS", f"({flags})"))
            running.lines("lesson ", 2)
            assert sorted(f"{vote.origin}: {vote.label}" for vote in votes(state)) == [
                "evidence answered INBOX: ham",
                "evidence flagged INBOX: ham",
            ]
            move(client, 1, "INBOX", "Junk")
            move(client, 3, "INBOX", "Junk")
            running.lines("from='INBOX' to='Junk' class=spam")
            all_seen(state, box, 2, ".Junk")
            move(client, 3, "Junk", "INBOX")
            running.lines("from='Junk' to='INBOX' class=ham")
            ok(client.select("INBOX"))
            ok(client.uid("STORE", uid(client, 0), "-FLAGS", r"(\Answered)"))
            move(client, 6, "INBOX", "Junk")
            running.lines("lesson ", 6)
    assert sorted(f"{vote.origin}: {vote.label}" for vote in votes(state)) == [
        "evidence answered INBOX: ham",
        "folder INBOX: ham",
        "folder Junk: spam",
        "folder Junk: spam",
    ]


def test_a_mailbox_full_of_traps(state: Path, tmp_path: Path) -> None:
    """Links out of the tree, names that are no UTF-8, 100 MB, pipes, what is half written, and
    folders that go while they are read.
    """
    box = maildir(tmp_path / "home" / "anna", ".Junk", ".Archive")
    outside = maildir(tmp_path / "outside", ".Junk")
    secret = deliver(outside, sibling(50))
    messages = [deliver(box, sibling(number)) for number in range(3)]
    odd = os.fsdecode(b"1700000000.M1P1.h\xf6st")
    (box / "new" / odd).write_bytes(sibling(3))
    with configured(state, f"{tmp_path}/home/*") as (running, _):
        all_seen(state, box, 4)
        (box / ".Linked").symlink_to(outside)
        (box / ".Junk" / "cur" / "1.link:2,S").symlink_to(secret)
        os.mkfifo(box / ".Junk" / "cur" / "2.pipe:2,S")
        (box / ".Junk" / "cur" / "3.directory:2,S").mkdir()
        maildir(box, os.fsdecode(b".Tr\xf6del"), ".Junk.deep.er")
        half = box / ".Junk" / "new" / f"4.half,S={len(sibling(4))}"
        half.write_bytes(sibling(4)[:70])
        large = deliver(box, sibling(5) + b"x" * 76 + b"\r\n")
        with large.open("ab") as file:
            file.truncate(LARGE)
        large = large.rename(large.with_name(large.name.partition(",")[0]))
        all_seen(state, box, 5)
        rename(large, box / ".Junk")
        rename(messages[0], box / os.fsdecode(b".Tr\xf6del"))
        rename(messages[1], box / ".Junk.deep.er")
        rename(box / "new" / odd, box / ".Junk")
        running.lines("class=spam", 3)
        for number in range(20):
            there = maildir(box / f".Archive.{number}")
            message = deliver(there, sibling(60 + number))
            if number % 2:
                time.sleep(0.02)
            shutil.rmtree(there)
            assert not message.exists()
        (box / ".Archive").rename(box / ".Kept")
        half.write_bytes(sibling(4))
        rename(messages[2], box / ".Junk")
        running.lines("class=spam", 4)
        running.lines("is a symbolic link, which is not followed", 2)
        for _ in range(2):  # the mailbox is looked at again
            (box / "again").mkdir()
            (box / "again").rmdir()
            time.sleep(1.5)
        log = running.log()
    assert said(state) == {"anna": "spam spam spam spam"}
    assert "Traceback" not in log
    told = [
        line.partition(": ")[2]
        for line in log.splitlines()
        if "WARNING" in line or " warning " in line
    ]
    assert len(told) == len(set(told))
    assert sum("is a symbolic link, which is not followed" in line for line in told) == 2
    assert str(secret) not in log
