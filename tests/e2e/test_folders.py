"""Moving mail teaches: by real IMAP clients in a real Dovecot, by renames, while the daemon is down, and while it is killed."""

from __future__ import annotations

import imaplib
import os
import random
import shutil
import signal
import smtplib
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spamguard import Filter
from spamguard.folders.sightings import FILE, Sightings
from spamguard.records import Vote
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import Daemon
from tests.e2e.dovecot import Dovecot
from tests.e2e.ports import free_port
from tests.e2e.test_positions import fields
from tests.unit.folders.maildirs import deliver, maildir

needs_dovecot = pytest.mark.skipif(shutil.which("dovecot") is None, reason="needs Dovecot: apt-get install dovecot-lmtpd dovecot-imapd")
SECONDS = 60.0  # generous
_FIRST = ("velvet", "umbrella", "harvest", "lantern", "glacier", "orchid", "saddle", "copper", "mosaic", "thimble")
_WORDS = (*_FIRST, "walnut", "ribbon", "canyon", "puzzle", "meadow", "trumpet", "cactus", "falcon", "pepper", "anchor")

MOVED = (11, 12, 13)  # of a campaign; enough to be sure of the next


def sibling(number: int) -> bytes:
    """One of a campaign that the filter has never heard of."""
    words = random.Random(number).sample(_WORDS, len(_WORDS))
    head = (
        f"Message-ID: <{number}@offers.example>\r\nFrom: Offers <news@offers.example>\r\nTo: anna@example.net\r\n"
        f"Date: Fri, 20 Nov 2026 10:{number // 60:02}:{number % 60:02} +0000\r\nSubject: {' '.join(words[:3])}\r\n\r\n"
    )
    return f"{head}{' '.join(words)}\r\n{' '.join(reversed(words))}\r\nnumber {number}\r\n".encode()


def eventually(check: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until, f"never so: {what}"
        time.sleep(0.05)


def seen(state: Path, mailbox: Path, folder: str = "") -> int:
    """How many messages of a folder the watcher knows."""
    if not (state / FILE).exists():
        return 0
    with Sightings.open(state / FILE) as sightings:
        return len(sightings.names(str(mailbox), folder)) if sightings.scanned(str(mailbox)) else 0


def all_seen(state: Path, mailbox: Path, count: int, folder: str = "") -> None:
    eventually(lambda: seen(state, mailbox, folder) == count, f"{count} messages of {mailbox} {folder} are known")


def votes(state: Path) -> list[Vote]:
    """Those in force that folders have cast, in the order in which they were."""
    with Filter.open(state) as spam_filter:
        last = {(vote.digest, vote.user): vote for vote in spam_filter.ledger.votes() if vote.origin.startswith("folder ")}
    return [vote for vote in last.values() if vote.label is not None]


def said(state: Path) -> dict[str, str]:
    """The labels of all votes, by user, sorted."""
    found: dict[str, list[str]] = {}
    for vote in votes(state):
        found.setdefault(vote.user, []).append(str(vote.label))
    return {user: " ".join(sorted(labels)) for user, labels in found.items()}


@contextmanager
def mail_program(server: Dovecot, user: str = "anna") -> Iterator[imaplib.IMAP4]:
    client = imaplib.IMAP4("127.0.0.1", server.imap_port)
    client.login(user, "anything")
    try:
        yield client
    finally:
        client.logout()


def move(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    ok(client.select(source))
    ok(client.uid("MOVE", uid(client, number), target))


def copy(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    ok(client.select(source))
    name = uid(client, number)
    ok(client.uid("COPY", name, target))
    ok(client.uid("STORE", name, "+FLAGS", r"(\Deleted)"))
    ok(client.expunge())


def append(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    """As between two accounts: it is fetched, stored anew, and removed."""
    ok(client.select(source))
    name = uid(client, number)
    raw = client.uid("FETCH", name, "(BODY.PEEK[])")[1][0]
    assert isinstance(raw, tuple)
    ok(client.append(target, r"(\Seen)", "", raw[1]))
    ok(client.uid("STORE", name, "+FLAGS", r"(\Deleted)"))
    ok(client.expunge())


def uid(client: imaplib.IMAP4, number: int) -> str:
    found = client.uid("SEARCH", "HEADER", "Message-ID", f"<{number}@offers.example>")[1][0].decode()
    assert found, f"no message {number}"
    return str(found)


def ok(answer: tuple[str, object]) -> None:
    assert answer[0] == "OK", answer


@contextmanager
def watching(state: Path, server: Dovecot, *arguments: str) -> Iterator[tuple[Daemon, int]]:
    """The daemon in front of Dovecot, its eye on everybody's Maildir; and its port."""
    port = free_port()
    hop = f"lmtp:{server.lmtp_socket}"
    line = ("--listen", f"smtp://127.0.0.1:{port}", "--next-hop", hop, "--watch", f"{server.root}/mail/*", *arguments)
    with daemon.running(state, *line, port=port) as running:
        yield running, port


def send(port: int, *messages: bytes, to: str = "anna@example.net") -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        for raw in messages:
            client.sendmail("news@offers.example", [to], raw)


@needs_dovecot
def test_a_move_changes_the_verdict_on_the_siblings(state: Path) -> None:
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, *map(sibling, MOVED))
        assert not any(fields(raw, "X-Spam-Flag") for raw in server.delivered("anna", len(MOVED)))
        all_seen(state, box, len(MOVED))
        with mail_program(server) as client:
            for number in MOVED:
                move(client, number, "INBOX", "Junk")
            (line, *_) = running.lines("lesson user=anna from='INBOX' to='Junk' class=spam", len(MOVED))
            assert "offers" not in line
            send(port, sibling(2))
            (second,) = server.delivered("anna")
            assert fields(second, "X-Spam-Flag") == ["YES"]
            all_seen(state, box, 1)
            ok(client.create("Archive"))
            for number in MOVED:
                move(client, number, "Junk", "INBOX")
            move(client, 2, "INBOX", "Archive")
            running.lines("class=ham", len(MOVED) + 1)
            send(port, sibling(3))
            running.lines("verdict=ham")
        assert said(state) == {"anna": "ham ham ham ham"}


@needs_dovecot
def test_however_a_mail_program_does_it(state: Path) -> None:
    """Moved, copied and expunged, stored anew: to Junk, out of it, and what is no move."""
    ways = (move, copy, append)
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, *(sibling(number) for number in range(6)))
        all_seen(state, box, 6)
        with mail_program(server) as client:
            for number, way in enumerate(ways):
                way(client, number, "INBOX", "Junk")
            running.lines("class=spam", 3)
            all_seen(state, box, 3, ".Junk")
            for folder in ("Archive", "Trash"):
                ok(client.create(folder))
            for number, way in enumerate(ways):
                way(client, number, "Junk", "INBOX")
                way(client, number + 3, "INBOX", "Trash")
            running.lines("class=ham", 3)
            ok(client.select("INBOX"))
            ok(client.uid("STORE", "1:*", "+FLAGS", r"(\Seen \Answered $Junk)"))
            ok(client.uid("STORE", uid(client, 0), "+FLAGS", r"(\Deleted)"))
            ok(client.expunge())
        all_seen(state, box, 2)
        all_seen(state, box, 3, ".Trash")
        assert said(state) == {"anna": "ham ham ham"}
        assert len(running.lines("lesson ")) == 6


@needs_dovecot
def test_compressed_mail_teaches_too(state: Path) -> None:
    extra = "mail_plugins = $mail_plugins zlib\nplugin {\n  zlib_save = gz\n}\n"
    with dovecot.running(extra) as server, watching(state, server) as (running, port):
        send(port, sibling(1))
        box = server.root / "mail" / "anna"
        all_seen(state, box, 1)
        assert next((box / "new").iterdir()).read_bytes().startswith(b"\x1f\x8b")
        with mail_program(server) as client:
            move(client, 1, "INBOX", "Junk")
        running.lines("class=spam")
        (vote,) = votes(state)
        with Filter.open(state) as spam_filter:
            assert vote.digest == spam_filter._preparer.digest(sibling(1))


@needs_dovecot
def test_users_may_disagree_and_what_happens_meanwhile_is_made_up_for(state: Path) -> None:
    with dovecot.running() as server:
        boxes = {user: server.root / "mail" / user for user in ("anna", "ben")}
        with watching(state, server) as (_, port):
            for user, box in boxes.items():
                send(port, sibling(1), sibling(2), to=f"{user}@example.net")
                all_seen(state, box, 2)
        with mail_program(server) as anna, mail_program(server, "ben") as ben:
            ok(ben.create("Archive"))
            move(anna, 1, "INBOX", "Junk")
            move(ben, 1, "INBOX", "Archive")
            move(ben, 2, "INBOX", "Junk")
        with watching(state, server) as (running, _):
            running.lines("lesson ", 3)
        assert said(state) == {"anna": "spam", "ben": "ham spam"}


def test_without_any_configuration_moving_teaches(state: Path) -> None:
    port = free_port()
    box = state / "Maildir"
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        send(port, *map(sibling, MOVED))
        all_seen(state, box, len(MOVED))
        (box / ".Junk" / "cur").mkdir(parents=True)
        for message in (box / "new").iterdir():
            message.rename(box / ".Junk" / "cur" / f"{message.name}:2,S")
        running.lines("class=spam", len(MOVED))
        send(port, sibling(2))
        running.lines("verdict=spam")
        all_seen(state, box, len(MOVED) + 1, ".Junk")
    assert [str(vote.label) for vote in votes(state)] == ["spam"] * len(MOVED)  # what we filed ourselves teaches nothing


def test_what_we_filed_and_a_person_took_back_at_once_is_ham(state: Path) -> None:
    """It is first seen where it was put back to, and our own signature says that it was filed as spam."""
    port = free_port()
    box = state / "Maildir"
    junk = box / ".Junk" / "new"
    with Filter.open(state) as spam_filter:
        for number in range(100, 110):
            spam_filter.learn(sibling(number), "spam")
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        send(port, sibling(1), sibling(2))
        running.lines("verdict=spam", 2)
        all_seen(state, box, 2, ".Junk")
    with Sightings.open(state / FILE) as sightings:
        sightings.forget(str(box))  # as if none had been seen
    taken = next(junk.iterdir())
    taken.rename(box / "new" / taken.name)
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        running.lines("class=ham")
        all_seen(state, box, 1, ".Junk")
    assert list(said(state).values()) == ["ham"]


# ---- moves by the thousand, and the daemon killed in between

USERS = ("anna", "ben")
MESSAGES = 1000  # the same ones for each, who do not always agree
SHARES = 3  # of each round of moves; in each the daemon is killed

# where a message goes, and what was said about it then; and where it goes after that, and what was said then
Plan = tuple[tuple[str, ...], str | None, tuple[str, ...], str | None]
PLANS: tuple[Plan, ...] = (
    ((".Junk",), "spam", ("",), "ham"),
    ((".Junk",), "spam", (".Trash",), "spam"),
    ((".Archive", ".Junk"), "spam", (".Archive",), "ham"),
    ((".Archive",), "ham", (".Junk",), "spam"),
    ((".Trash",), None, (), None),
    ((".Projects",), None, (".Junk",), "spam"),
    ((), None, (), None),
)


class Message:
    """A message of a mailbox, moved about as Dovecot would."""

    def __init__(self, box: Path, number: int) -> None:
        self.raw = sibling(number).replace(b"\r\n", b"\n")
        self.user = box.name
        self.plan = PLANS[(number + USERS.index(box.name)) % len(PLANS)]
        self._box = box
        self._chance = random.Random(f"{box.name}{number}")
        self._path = deliver(box, self.raw)

    def move(self, folder: str) -> None:
        """With the name it has, under a new one, or as a copy whose original then goes."""
        if self._chance.random() < 0.3:
            self._flag()
        way = self._chance.choice(("move", "move", "rename", "copy"))
        name = self._path.name if way == "move" else f"{number_of(self._path)}{self._chance.randrange(1 << 30)}.host:2,S"
        target = self._box / folder / ("cur" if ":2," in name else "new") / name
        if way == "copy":
            target.hardlink_to(self._path)
            time.sleep(self._chance.random() / 100)
            self._path.unlink()
        else:
            self._path.rename(target)
        self._path = target

    def _flag(self) -> None:
        seen = self._path.parents[1] / "cur" / f"{self._path.name.partition(':')[0]}:2,RS"
        self._path = self._path.rename(seen)


def number_of(path: Path) -> str:
    return path.name.partition(".")[0] + "."


class Killed:
    """The daemon, killed with or without its watcher, and started again."""

    def __init__(self, state: Path, pattern: str) -> None:
        file = state.with_name("spamguard.yaml")
        file.write_text(
            f"listeners: [{{listen: 'smtp://127.0.0.1:0', position: standalone, next_hop: 'maildir:{state}/Maildir'}}]\n"
            f"watch: [{{maildir: '{pattern}', lessons_per_day: 0}}]\n"
        )
        self._line = [*daemon.COMMAND, "--state", str(state), "run", "--config", str(file)]
        self.log = state.with_name("log")
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(self._line, stdout=stream, stderr=stream, env=daemon.ENVIRONMENT)

    def watcher(self) -> int | None:
        """The process that watches, once there is one."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with suppress(FileNotFoundError):
                if b"spamguard.daemon.watching" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def kill(self, everything: bool) -> None:
        """Without a warning."""
        eventually(self.watcher, "there is a watcher")
        if everything:
            self.process.kill()
            self.process.wait()
            self._start()
        else:
            os.kill(self.watcher() or 0, signal.SIGKILL)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log.read_text()[-4000:]


def rounds(messages: list[Message], phase: int) -> Iterator[list[tuple[Message, str]]]:
    """Moves, those of one list in any order and at once."""
    for step in range(2):
        moves = [(message, message.plan[phase][step]) for message in messages if len(message.plan[phase]) > step]
        random.Random(phase + step).shuffle(moves)
        yield from (moves[at::SHARES] for at in range(SHARES) if moves)


def test_killed_while_thousands_are_moved(state: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    boxes = [maildir(tmp_path / "mail" / user, ".Junk", ".Archive", ".Trash", ".Projects") for user in USERS]
    messages = [Message(box, number) for box in boxes for number in range(MESSAGES)]
    with Filter.open(state) as spam_filter:
        digests = {message.raw: spam_filter._preparer.digest(message.raw) for message in messages}
    running = Killed(state, f"{tmp_path}/mail/*")
    try:
        for box in boxes:
            all_seen(state, box, MESSAGES)
        for phase in (0, 2):
            for number, moves in enumerate(rounds(messages, phase)):
                with ThreadPoolExecutor(4) as pool:
                    done = [pool.submit(message.move, folder) for message, folder in moves]
                    time.sleep(2 * chance.random())
                    running.kill(everything=number % 2 == 0)
                for one in done:
                    one.result()
            truth = {(digests[message.raw], message.user): message.plan[phase + 1] for message in messages}
            truth = {key: label for key, label in truth.items() if label}
            eventually(
                lambda truth=truth: {(vote.digest, vote.user): vote.label for vote in votes(state)} == truth, "the truth is learnt", 120
            )
        time.sleep(2)
        assert {(vote.digest, vote.user): vote.label for vote in votes(state)} == truth
    finally:
        running.stop()
    there = sorted(path.read_bytes() for path in (tmp_path / "mail").rglob("*") if path.is_file())
    assert there == sorted(message.raw for message in messages)
    assert "Traceback" not in running.log.read_text()
