"""Ways to teach besides watched folders: Dovecot's IMAPSieve with the shipped snippets, and
forwarded mail.
"""

from __future__ import annotations

import imaplib
import os
import pwd
import re
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.records import Vote
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import Daemon
from tests.e2e.dovecot import Dovecot
from tests.e2e.moving import append, copy, mail_program, move, ok, sibling, uid
from tests.e2e.ports import free_port
from tests.support.waiting import eventually

SNIPPETS = daemon.ROOT / "config" / "dovecot"
PYTHON = shutil.which("python3", path="/usr/bin:/bin")
CLIENT_FILES = (
    "__init__.py",
    "__main__.py",
    "users.py",
    "learning/__init__.py",
    "learning/client.py",
)
_FOLDERS = """
auth_username_chars =  # any, blanks too
namespace inbox {
  mailbox Trash {
    special_use = \\Trash
    auto = create
  }
  mailbox Keep {
    auto = create
  }
}
"""

needs_sieve = pytest.mark.skipif(
    not all(map(shutil.which, ("dovecot", "sievec", "doveconf"))) or PYTHON is None,
    reason="needs Dovecot with Sieve: apt-get install dovecot-lmtpd dovecot-imapd dovecot-sieve",
)


def moved(text: str, root: Path) -> str:
    """A snippet with the paths of this test."""
    paths = {
        "/etc/dovecot/spamguard": f"{root}/sieve",
        "/opt/spamguard/bin/spamguard": f"{root}/bin/spamguard",
        "/var/spool/spamguard/teach": f"{root}/left",
        "user = spamguard": f"user = {pwd.getpwuid(os.getuid()).pw_name}",
    }
    for old, new in paths.items():
        text = text.replace(old, new)
    return text


class SieveSite:
    """A Dovecot with the shipped snippets, and where spamguard and it meet."""

    def __init__(self, server: Dovecot, state: Path) -> None:
        self.server = server
        self.state = state
        self.port = free_port()

    @contextmanager
    def spamguard(self, more: str = "", listener: str = "") -> Iterator[Daemon]:
        root = self.server.root
        file = self.state.with_name("spamguard.yaml")
        file.write_text(f"""
listeners:
  - listen: smtp://127.0.0.1:{self.port}
    position: standalone
    next_hop: lmtp:{root}/run/lmtp-spamguard
{listener}teach: {{spool: {root}/left, for_others: [nobody]}}
{more}""")
        with daemon.running(self.state, "--config", str(file), port=self.port) as running:
            yield running

    def votes(self) -> list[tuple[str, str | None]]:
        """User and label of all votes of programs in force, in the order of casting."""
        with Filter.open(self.state) as spam_filter:
            return [
                (vote.user, vote.label)
                for vote in in_force(spam_filter)
                if vote.origin == "teach-pipe"
            ]

    def come(self, *wanted: tuple[str, str]) -> None:
        eventually(
            lambda: sorted(map(str, self.votes())) == sorted(map(str, wanted)),
            f"{wanted}, not {self.votes()}\n{self.log()}",
        )

    def log(self) -> str:
        return self.server.log()[-4000:]


def in_force(spam_filter: Filter) -> list[Vote]:
    last = {(vote.digest, vote.user): vote for vote in spam_filter.ledger.all_votes()}
    return [vote for vote in last.values() if vote.label is not None]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[SieveSite]:
    extra = _FOLDERS + "".join(
        (SNIPPETS / name).read_text() for name in ("lmtp.conf", "imapsieve-2.3.conf")
    )
    with dovecot.running(lambda root: prepare(root, extra)) as server:
        compile_scripts(server)
        yield SieveSite(server, daemon.taught(tmp_path / "state"))


def prepare(root: Path, extra: str) -> str:
    """Put the scripts and the client where the snippets look for them, as an administrator would;
    the settings to be added.
    """
    for name, mode in (
        ("sieve", 0o755),
        ("bin", 0o755),
        ("left", 0o3733),
        ("package", 0o755),
    ):
        (root / name).mkdir()
        (root / name).chmod(mode)
    for (
        name
    ) in CLIENT_FILES:  # the whole of the client: Dovecot's user cannot read what else there is
        copy_of = root / "package" / "spamguard" / name
        copy_of.parent.mkdir(mode=0o755, exist_ok=True)
        shutil.copy(daemon.ROOT / "spamguard" / name, copy_of)
    program = root / "bin" / "spamguard"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={root}/package exec {PYTHON} -m spamguard "$@"\n')
    program.chmod(0o755)
    settings = moved(extra, root)
    for name in (
        "report-spam.sieve",
        "report-ham.sieve",
        "file-by-header.sieve",
        "spamguard-learn.sh",
    ):
        script = root / "sieve" / name
        script.write_text(moved((SNIPPETS / name).read_text(), root))
        script.chmod(0o755 if name.endswith(".sh") else 0o644)
    return settings


def compile_scripts(server: Dovecot) -> None:
    for name in ("report-spam", "report-ham", "file-by-header"):
        line = ["sievec", "-c", str(server.root / "dovecot.conf")]
        done = subprocess.run(
            [*line, server.root / "sieve" / f"{name}.sieve"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def store(client: imaplib.IMAP4, *numbers: int, folder: str = "INBOX") -> None:
    for number in numbers:
        ok(client.append(folder, "", "", sibling(number)))


@needs_sieve
def test_people_teach_with_their_mail_program(place):
    with place.spamguard() as running, mail_program(place.server) as client:
        store(client, 1, 2, 3, 4, 5)
        ok(client.select("INBOX"))
        ok(client.uid("STORE", uid(client, 5), "+FLAGS", r"(\Deleted)"))
        ok(client.uid("COPY", uid(client, 5), "Junk"))  # with its flags: teaches nothing
        move(client, 1, "INBOX", "Junk")
        copy(client, 2, "INBOX", "Junk")
        append(client, 3, "INBOX", "Junk")
        place.come(*[("anna", "spam")] * 3)
        move(client, 1, "Junk", "INBOX")
        place.come(*[("anna", "spam")] * 2, ("anna", "ham"))
        move(client, 2, "Junk", "Trash")  # teaches nothing
        for folder in (
            "Kosz",
            "INBOX.Corbeille",
            "Archive.Spam",
        ):  # nor do these, whatever they are called
            ok(client.create(folder))
            move(client, 2, "Trash", "Junk")
            move(client, 2, "Junk", folder)
            move(client, 2, folder, "Trash")
        ok(client.create("Archive.2026"))
        move(client, 3, "Junk", "Archive.2026")
        place.come(("anna", "spam"), *[("anna", "ham")] * 2)
        move(client, 3, "Archive.2026", "Junk")
        move(client, 4, "INBOX", "Keep")  # neither from Junk nor into it
        with mail_program(place.server, "ben") as other:
            store(other, 1)
            move(other, 1, "INBOX", "Junk")
        place.come(*[("anna", "spam")] * 2, ("anna", "ham"), ("ben", "spam"))
        assert "not taken" not in running.log()


@needs_sieve
def test_lessons_wait_in_the_spool_while_the_daemon_is_down(place):
    name = "carl van  b"  # with blanks
    with mail_program(place.server, name) as client:
        store(client, 1, 2)
        move(client, 1, "INBOX", "Junk")
        move(client, 2, "INBOX", "Junk")
        move(client, 2, "Junk", "INBOX")
    assert place.votes() == []
    eventually(
        lambda: len(list((place.server.root / "left").iterdir())) == 3,
        f"three lessons are left\n{place.log()}",
    )
    with place.spamguard():
        place.come((name, "spam"), (name, "ham"))
        eventually(lambda: not list((place.server.root / "left").iterdir()), "nothing is left")


@needs_sieve
def test_tagged_mail_is_filed_and_moving_it_back_teaches(place):
    spam = daemon.unseen("spam", 1)[0]
    with place.spamguard() as running, mail_program(place.server) as client:
        with smtplib.SMTP("127.0.0.1", place.port) as sender:
            sender.sendmail("x@offers.example", "anna@example.net", spam)
        running.lines("verdict=spam")
        ok(client.select("Junk"))
        (name,) = client.uid("SEARCH", "ALL")[1][0].split()
        assert place.votes() == []  # what a script files is no person's word
        ok(client.uid("MOVE", name, "INBOX"))
        place.come(("anna", "ham"))


@needs_sieve
def test_what_is_released_is_not_filed_as_spam_again(place):
    """By the script that files by our verdict: a person has said that it is ham."""
    rule = "    rules: [{when: spam, action: quarantine}]\n"
    with place.spamguard(listener=rule) as running, mail_program(place.server) as client:
        with smtplib.SMTP("127.0.0.1", place.port) as sender:
            sender.sendmail("x@offers.example", "anna@example.net", daemon.unseen("spam", 1)[0])
        (name,) = re.findall(r"id=(\w+)", running.lines("action=quarantine")[0])[:1]
        hop = f"lmtp:{place.server.lmtp_socket}"
        daemon.command(place.state, "quarantine", "release", name, "--next-hop", hop)
        ok(client.select("INBOX"))
        assert len(client.uid("SEARCH", "HEADER", "X-Spamguard", name)[1][0].split()) == 1


# ---- mail to addresses that teach

FORWARD = """
    teach:
      addresses: {spam@example.net: spam, ham@example.net: ham}
      senders: ["*@example.net"]
      user: local-part
"""


def report(*originals: bytes) -> bytes:
    message = EmailMessage(SMTP)
    message["From"], message["To"], message["Subject"] = (
        "anna@example.net",
        "spam@example.net",
        "Fwd: this one",
    )
    message.set_content("See there.\n")
    for original in originals:
        message.add_attachment(original, maintype="application", subtype="octet-stream")
    return message.as_bytes().replace(b"application/octet-stream", b"message/rfc822")


@contextmanager
def forwarding(state: Path) -> Iterator[tuple[Daemon, int]]:
    port, file = free_port(), state.with_name("spamguard.yaml")
    file.write_text(f"""
listeners:
  - listen: smtp://127.0.0.1:{port}
    position: standalone
    next_hop: maildir:{state}/Maildir
{FORWARD}""")
    with daemon.running(state, "--config", str(file), port=port) as running:
        yield running, port


def forwarded(state: Path) -> list[tuple[str, str | None]]:
    with Filter.open(state) as spam_filter:
        return sorted(
            (vote.user, vote.label) for vote in in_force(spam_filter) if vote.origin == "mail"
        )


def test_forwarded_mail_teaches_its_attachments(tmp_path):
    state = daemon.taught(tmp_path / "state")
    with forwarding(state) as (_, port), smtplib.SMTP("127.0.0.1", port) as client:
        client.sendmail("Anna@example.net", "SPAM@example.net", report(sibling(1), sibling(2)))
        as_file = report(sibling(3)).replace(
            b"message/rfc822", b'application/octet-stream; name="prize.eml"'
        )
        client.sendmail("anna@example.net", "ham@example.net", as_file)
        with pytest.raises(smtplib.SMTPDataError, match="attachment") as refused:
            client.sendmail("anna@example.net", "spam@example.net", sibling(4))
        assert refused.value.smtp_code == 550
        client.sendmail(
            "anna@elsewhere.example", "spam@example.net", report(sibling(5))
        )  # of somebody unknown: mail as any other
        wanted = [("anna", "ham"), ("anna", "spam"), ("anna", "spam")]
        eventually(lambda: forwarded(state) == wanted, f"{wanted}, not {forwarded(state)}")
        (delivered,) = [
            file for part in ("new", "cur") for file in (state / "Maildir").rglob(f"{part}/*")
        ]
        assert b"Subject: Fwd: this one" in delivered.read_bytes()
