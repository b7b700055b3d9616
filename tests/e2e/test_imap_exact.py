"""Accounts in which several mail programs move, copy, flag and expunge at once, while our own
connections are cut and our processes killed: what lies where is what people did and our moves, byte
for byte, and what was learnt is the truth.

SPAMGUARD_CHAOS_ACCOUNTS says how many messages each account has; the full size is 600, since a
user teaches at most 1,000 on a day.
"""

from __future__ import annotations

import imaplib
import os
import random
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import pytest

from spamguard.config.options import ACCOUNTS_DIRECTORY
from spamguard.engine.filter import Filter
from spamguard.imap.status import read_status
from tests.e2e import imap_accounts
from tests.e2e.daemon import Daemon, unseen
from tests.e2e.dovecot import Dovecot
from tests.e2e.imap_accounts import BARE, append
from tests.e2e.moving import mail_program, needs_dovecot, ok, votes
from tests.support import imap_proxy
from tests.support.imap_proxy import ImapProxy
from tests.support.processes import children
from tests.support.waiting import eventually

pytestmark = [needs_dovecot, pytest.mark.slow]

USERS = ("anna", "ben", "carl")
MESSAGES = int(os.environ.get("SPAMGUARD_CHAOS_ACCOUNTS", "24"))  # of each account
CUTS = 1 + MESSAGES // 50  # of each account and phase
KILLS = 1 + MESSAGES // 150  # of each process and phase
PACE = min(2.0, MESSAGES / 40)  # seconds between two kills, about
SECONDS = 60.0 + MESSAGES
CLASSES = {"INBOX": "ham", "Archive": "ham", "Junk": "spam", "Trash": ""}
TARGETS = {  # where a message goes from each folder; "": it is expunged
    "INBOX": ("Junk", "Archive", "Junk", "Trash", "INBOX", ""),
    "Junk": ("INBOX", "INBOX", "Archive", "Junk", "Trash", ""),
    "Archive": ("Junk", "INBOX", "Archive"),
    "Trash": ("Trash",),
}


@dataclass(eq=False)
class Message:
    """A message of an account. folder: "" once it was expunged. said: what its user's moves mean.
    fresh: it may yet be judged and moved by us. raced: whether we saw it in INBOX nobody knows.
    """

    raw: bytes
    folder: str
    said: str = ""
    fresh: bool = False
    raced: bool = False

    @property
    def id(self) -> str:
        found = re.search(rb"(?im)^Message-ID:\s*(\S+)", self.raw)
        assert found is not None
        return found[1].decode()

    def moved(self, folder: str) -> None:
        label, before = CLASSES.get(folder, ""), CLASSES[self.folder]
        if label and folder != self.folder and (label != before or label == "ham"):
            self.said, self.raced = label, False
        self.folder = folder


@dataclass
class Person:
    """An account and its messages, and what several programs do there at once."""

    name: str
    server: Dovecot
    messages: list[Message] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.name}@example.net"

    def deliver(self, messages: Sequence[Message]) -> None:
        with mail_program(self.server, self.name) as client:
            for message in messages:
                append(client, message.raw, folder=message.folder)
                self.messages.append(message)

    def race(self, messages: Sequence[Message]) -> None:
        """Move messages away as soon as they have come, or even before: our own move may win."""
        with mail_program(self.server, self.name) as client:
            for message in messages:
                append(client, message.raw)
                self.messages.append(message)
                uid = _uids(client, "INBOX").get(message.id, "4294967295")
                ok(client.uid("MOVE", uid, "Archive"))
                if client.response("COPYUID")[1] != [None]:
                    message.folder, message.raced = "Archive", True

    def work(self, seed: int, messages: Sequence[Message]) -> None:
        """Do one thing with each message, as one mail program."""
        chance = random.Random(f"{self.name}{seed}")
        with mail_program(self.server, self.name) as client:
            lying = {name: [each for each in messages if each.folder == name] for name in CLASSES}
            for folder, here in lying.items():
                uids = _uids(client, folder)
                for message in chance.sample(here, len(here)):
                    self._act(client, chance, message, uids[message.id])
                    time.sleep(chance.random() * 0.02)

    def _act(
        self, client: imaplib.IMAP4, chance: random.Random, message: Message, uid: str
    ) -> None:
        folder = chance.choice(TARGETS[message.folder])
        if chance.random() < 0.4:
            flag = chance.choice([r"\Seen", r"\Flagged", r"\Answered", "$Label1"])
            ok(client.uid("STORE", uid, "+FLAGS", f"({flag})"))
        if folder == message.folder:
            return
        if folder and chance.random() < 0.6:
            ok(client.uid("MOVE", uid, folder))
        else:
            if folder:
                ok(client.uid("COPY", uid, folder))
            ok(client.uid("STORE", uid, "+FLAGS", r"(\Deleted)"))
            ok(client.uid("EXPUNGE", uid))
        message.moved(folder) if folder else setattr(message, "folder", "")

    def mailboxes(self) -> dict[str, Counter[bytes]]:
        """What lies where, from Dovecot's own files."""
        found = {}
        for folder in CLASSES:
            directory = "" if folder == "INBOX" else f".{folder}"
            box = self.server.root / "mail" / self.name / directory
            files = [path for part in ("new", "cur") for path in (box / part).glob("*")]
            found[folder] = Counter(path.read_bytes() for path in files)
        return found

    def expected(self) -> dict[str, Counter[bytes]]:
        return {
            folder: Counter(each.raw for each in self.messages if each.folder == folder)
            for folder in CLASSES
        }

    def renumber(self, value: int) -> None:
        """Give all folders a new UIDVALIDITY."""
        for folder in CLASSES:
            line = ("doveadm", "-c", str(self.server.root / "dovecot.conf"), "mailbox", "update")
            subprocess.run(
                [*line, "-u", self.name, "--uid-validity", str(value), folder], check=True
            )


def _uids(client: imaplib.IMAP4, folder: str) -> dict[str, str]:
    """The UIDs in a folder, which is opened, by Message-ID."""
    ok(client.select(folder))
    lines = client.uid("FETCH", "1:*", "(UID BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)])")[1]
    found = {}
    for piece in lines:
        if isinstance(piece, tuple):
            number = re.search(rb"UID (\d+)", piece[0])
            assert number is not None
            found[piece[1].split(b":", 1)[1].strip().decode()] = number[1].decode()
    return found


class Trouble:
    """Kills our processes and cuts our connections."""

    def __init__(self, running: Daemon, proxy: ImapProxy, seed: int) -> None:
        self._running, self._proxy = running, proxy
        self._chance, self._stop, self.kills = random.Random(seed), threading.Event(), 0
        self._threads = [threading.Thread(target=self._kill)]
        self._threads += [threading.Thread(target=self._cut, args=(user,)) for user in USERS]

    def __enter__(self) -> Trouble:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join()

    def _kill(self) -> None:
        for number in range(2 * KILLS):
            time.sleep(PACE * (0.5 + self._chance.random()))
            module = ("spamguard.daemon.imap", "spamguard.daemon.learner")[number % 2]
            for process in children(self._running.process.pid, module):
                os.kill(process, signal.SIGKILL)
                self.kills += 1

    def _cut(self, user: str) -> None:
        """After the first command from now on, then after the second, and so on; each time once
        the account is in step again, since a connection is made anew at once only then.
        """
        for number in range(1, CUTS + 1):
            _wait(lambda: self._proxy.is_idle(user), 20.0)
            self._proxy.cut_after(user, number if self._proxy.is_idle(user) else 0)
            _wait(lambda: not self._proxy.is_armed(user), 5.0)
            self._proxy.cut_after(user, 0)


def _wait(check: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not (is_so := check()) and time.monotonic() < until:
        time.sleep(0.02)
    return is_so


@dataclass
class Scene:
    """The daemon with all accounts, and what is true of them."""

    state: Path
    running: Daemon
    proxy: ImapProxy
    people: list[Person]
    digest: Callable[[bytes], bytes]

    def rest(self, what: str) -> None:
        """Wait until all accounts are in step, all is judged and the truth is learnt."""
        if not _wait(lambda: not (self._open() or self._wrong()), 3.0):
            # A new process asks for the state of every folder; the old one may rest after cuts.
            for process in children(self.running.process.pid, "spamguard.daemon.imap"):
                os.kill(process, signal.SIGKILL)
        eventually(lambda: not self._open(), f"{what}: all is judged", SECONDS)
        for person in self.people:
            self._take_moves(person)
            assert person.mailboxes() == person.expected(), what
        until = time.monotonic() + SECONDS
        while wrong := self._wrong():
            assert time.monotonic() < until, f"{what}: {len(wrong)} wrong: {wrong[:10]}"
            time.sleep(0.2)
        time.sleep(2)
        assert not self._wrong(), what

    def _open(self) -> int:
        """What is not judged, or about to be moved; as the files of the accounts say."""
        count = 0
        for person in self.people:
            with closing(self._records(person)) as file:
                count += file.execute("SELECT count(*) FROM intents").fetchone()[0]
                count += file.execute("SELECT count(*) FROM messages WHERE state = 1").fetchone()[0]
                known = "SELECT count(DISTINCT p.name) FROM places p JOIN messages m USING (name)"
                count += abs(
                    file.execute(known).fetchone()[0]
                    - sum(each.folder != "" for each in person.messages)
                )
        return count

    def _records(self, person: Person) -> sqlite3.Connection:
        path = self.state / ACCOUNTS_DIRECTORY / f"{person.key}.sqlite"
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)

    def _take_moves(self, person: Person) -> None:
        """Messages that came are in INBOX, or in Junk if we called them spam; no others are."""
        with closing(self._records(person)) as file:
            spam = {row[0] for row in file.execute("SELECT hash FROM messages WHERE spam")}
        junk = person.mailboxes()["Junk"]
        for message in person.messages:
            if message.fresh and message.folder == "INBOX" and message.raw in junk:
                assert _hash(message.raw) in spam
                message.folder = "Junk"
            message.fresh = False

    def _wrong(self) -> list[str]:
        """Where what was learnt is not what people said."""
        learnt = {(vote.digest, vote.user): str(vote.label) for vote in votes(self.state)}
        wrong = []
        for person in self.people:
            for each in person.messages:
                label = learnt.pop((self.digest(each.raw), person.key), "")
                if label != each.said and not (each.raced and (label, each.said) == ("ham", "")):
                    text = f"{each.id} in {each.folder}: {each.said!r} is {label!r} to us"
                    wrong.append(f"{person.name}'s {text}")
        return wrong + [f"{user}: {label}, nobody knows why" for (_, user), label in learnt.items()]


def _hash(raw: bytes) -> bytes:
    return blake2b(raw.replace(b"\n", b"\r\n"), digest_size=16).digest()


def _mail(count: int) -> list[bytes]:
    """Mail of both kinds, as Dovecot stores it."""
    found = unseen("spam", count // 2) + unseen("ham", count - count // 2)
    random.Random(1).shuffle(found)
    return [raw.replace(b"\r\n", b"\n") for raw in found]


@contextmanager
def scene(state: Path, extra: str = "", unknown: Sequence[str] = ()) -> Iterator[Scene]:
    """Accounts with old mail in several folders, known to us."""
    raws = _mail(MESSAGES)
    with ExitStack() as stack:
        server = stack.enter_context(imap_accounts.server(extra))
        proxy = stack.enter_context(imap_proxy.before(server.imap_port, unknown))
        people = [Person(name, server) for name in USERS]
        folders = ("INBOX", "INBOX", "Junk", "Archive")
        for person in people:
            old = raws[: MESSAGES // 3]
            person.deliver([Message(raw, folders[at % 4]) for at, raw in enumerate(old)])
        reader = stack.enter_context(Filter.open(state))._reader
        through = replace(server, imap_port=proxy.port)
        with imap_accounts.running(state, through, *USERS) as running:
            running.lines("seen for the first time", len(USERS))
            eventually(lambda: all(map(proxy.is_idle, USERS)), "all are connected")
            yield Scene(state, running, proxy, people, reader.digest)
            assert "Traceback" not in running.log(), running.log()[-6000:]


VARIANTS = [
    ("all", "", ()),
    pytest.param(
        "few",
        BARE.format("IMAP4rev1 IDLE UIDPLUS SPECIAL-USE"),
        ("X-GUID", "UID MOVE"),
        marks=pytest.mark.nightly,
    ),
]


@pytest.mark.parametrize(("name", "extra", "unknown"), VARIANTS)
def test_exact(state: Path, name: str, extra: str, unknown: Sequence[str]) -> None:
    raws = _mail(MESSAGES)[MESSAGES // 3 :]
    with scene(state, extra, unknown) as here:
        for phase in range(2):
            some = raws[phase::2]
            with Trouble(here.running, here.proxy, phase), ThreadPoolExecutor(16) as pool:
                jobs = []
                for person in here.people:
                    known = list(person.messages)
                    fresh = [Message(raw, "INBOX", fresh=True) for raw in some]
                    jobs.append(pool.submit(person.deliver, fresh[1:]))
                    jobs.append(pool.submit(person.race, fresh[:1]))
                    for program in range(2):
                        mine = known[program::2]
                        jobs.append(pool.submit(person.work, 10 * phase + program, mine))
                for job in jobs:
                    job.result()
            here.rest(f"{name} {phase}")
            for person in here.people:
                person.renumber(1000 + phase)
        for person in here.people:
            person.work(99, person.messages)
        here.rest(f"{name} at last")
        print(f"{name}: {here.proxy.cuts} cuts, {len(votes(state))} lessons")


READING = re.compile(
    r"CAPABILITY|LOGIN|ID .*|NOOP|IDLE|DONE|LOGOUT|(LIST|STATUS|EXAMINE|UID SEARCH) .*|"
    r"UID FETCH [\d,]+ \((?!.*BODY\[).*\)"
)


def test_look_leaves_no_trace(state: Path) -> None:
    raws = _mail(MESSAGES)
    with ExitStack() as stack:
        server = stack.enter_context(imap_accounts.server())
        proxy = stack.enter_context(imap_proxy.before(server.imap_port))
        person = Person("anna", server)
        person.deliver([Message(raw, "INBOX") for raw in raws[::2]])
        through = replace(server, imap_port=proxy.port)
        with imap_accounts.running(state, through, "anna", mode="look") as running:
            running.lines("seen for the first time")
            person.deliver([Message(raw, "INBOX") for raw in raws[1::2]])
            with mail_program(server) as client:
                before = _traces(client)
                eventually(lambda: read_status(state)[person.key].judged == len(raws[1::2]))
                assert _traces(client) == before
            person.work(1, person.messages)
            with mail_program(server) as client:
                before = _traces(client)
            taught = sum(each.said == "spam" for each in person.messages)
            running.lines("class=spam", taught)  # other folders than Junk are polled
            with mail_program(server) as client:
                assert _traces(client) == before
        assert person.mailboxes() == person.expected()
        others = [command for _, command in proxy.commands if not READING.fullmatch(command)]
        assert others == []
        assert any("BODY.PEEK[]" in command for _, command in proxy.commands)


def _traces(client: imaplib.IMAP4) -> list[object]:
    items = "(MESSAGES RECENT UNSEEN UIDNEXT UIDVALIDITY HIGHESTMODSEQ)"
    return [client.status(folder, items) for folder in CLASSES]
