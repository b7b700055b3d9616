"""Servers that want to hurt: they lie, flood, drip and keep silent. Every answer has an end, and
none takes more than its account down.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from spamguard.config.accounts import AccountTls, Mode
from spamguard.imap import account as imap_account
from spamguard.imap.connection import MAX_MESSAGE_BYTES, ImapError, connect
from spamguard.imap.hub import Hub
from tests.support import scripted_imap
from tests.support.certificates import needs_openssl, self_signed, server_context
from tests.support.scripted_imap import ScriptedImap, playing
from tests.support.waiting import eventually
from tests.unit.imap.stage import MEANT, account, cheap, fails, judge, letter, look, stage

FUZZ_SECONDS = float(os.environ.get("SPAMGUARD_FUZZ_SECONDS", "4"))
MAX_MEMORY_KB = 120_000
STEPS = (
    *("GREETING", "CAPABILITY", "LOGIN", "ID", "LIST", "EXAMINE", "SELECT", "NOOP", "IDLE"),
    *("UID SEARCH", "UID FETCH", "UID MOVE", "DONE", "LOGOUT"),
)


@dataclass
class Ended:
    """What a process with an account came to."""

    steps: int
    memory_kb: int
    log: list[str]


@contextmanager
def child(
    server: ScriptedImap, directory: Path, mode: Mode = Mode.MOVE, silence: float = 0.4
) -> Iterator[Ended]:
    ended = Ended(0, 0, [])
    script = [sys.executable, "-m", "tests.unit.imap.hostile_child"]
    process = subprocess.Popen(
        [*script, str(directory), str(server.port), mode, str(silence)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield ended
        output, errors = process.communicate("\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    ended.log = errors.splitlines()
    assert process.returncode == 0, errors[-2000:]
    ended.memory_kb, ended.steps = map(int, output.split())


def check(ended: Ended, server: ScriptedImap, mode: Mode = Mode.MOVE) -> None:
    assert ended.memory_kb < MAX_MEMORY_KB
    assert "Traceback" not in "\n".join(ended.log)
    assert len(ended.log) <= 3 * ended.steps
    assert max(map(len, ended.log), default=0) < 1000
    for command in server.commands:
        found = MEANT.fullmatch(command)
        assert found, command
        assert mode is not Mode.LOOK or not found["writes"], command


# ---- whatever it says


WORDS = (
    *(
        b"* BYE\r\n",
        b"NIL",
        b"(",
        b")",
        b'"',
        b"\\",
        b"\r\n",
        b"\n",
        b"{3}\r\n",
        b"{2147483648}\r\n",
    ),
    *(b"* 99999999999999999999 EXISTS\r\n", b"* ESEARCH UID ALL 1:*\r\n", b"* SEARCH 0 -1\r\n"),
    *(
        b"[THROTTLED]",
        b"\xff\x00",
        b"99999999999999999999",
        b" OK ",
        b" NO ",
        b"* ",
        b"+ \r\n",
        b"-",
    ),
    *(b"* 1 FETCH (UID 1 BODY[] {5}\r\nxxxxx)\r\n", b'* LIST () "/" "..\\\\"\r\n', b"* LIST\r\n"),
    *(b"* STATUS x ()\r\n", b"01-Jan-0001 00:00:00 -0000", b"31-Feb-9999 99:99:99 +9999"),
)


def mutate(chance: random.Random, answer: bytes) -> bytes | None:
    start = chance.randrange(len(answer) + 1)
    end = min(len(answer), start + chance.randrange(1, 40))
    piece, word = answer[start:end], chance.choice(WORDS)
    lines = answer.splitlines(True)
    ways: list[Callable[[], bytes | None]] = [
        lambda: answer[:start] + answer[end:],
        lambda: answer[:start] + word + answer[start:],
        lambda: answer[:start] + word + answer[end:],
        lambda: answer[:start] + piece * chance.choice((2, 100, 10_000)) + answer[end:],
        lambda: answer[:start] + bytes(chance.randrange(256) for _ in piece) + answer[end:],
        lambda: re.sub(rb"\d+", lambda found: b"%d" % chance.getrandbits(70), answer, count=2),
        lambda: b"".join(chance.sample(lines, len(lines))),
        lambda: word + answer,
        lambda: b"".join([*lines[:-1], *lines[:-1] * 50, *lines[-1:]]),
        lambda: lines[-1],
        lambda: answer[:start],
        lambda: None,
    ]
    return chance.choice(ways)()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.LOOK, Mode.MOVE])
@pytest.mark.parametrize("name", ["GMAIL", "PROTON", "OBJECTS"])
def test_damaged_answers_damage_nothing(name, mode, tmp_path):
    chance = random.Random(name)
    with playing(getattr(scripted_imap, name)) as server:
        server.change = lambda asked, answer: (
            mutate(chance, answer) if chance.random() < 0.03 else answer
        )
        sent = []
        with child(server, tmp_path, mode) as ended:
            until = time.monotonic() + FUZZ_SECONDS / 2
            while time.monotonic() < until:
                sent.append(server.deliver(chance.choice((cheap, letter))(len(sent))))
                time.sleep(0.05 if len(sent) < 500 else 1.0)
        check(ended, server, mode)
        assert ended.steps > 3
        assert all(server.lies(each) for each in sent)


def test_what_a_server_says_stays_in_one_line(tmp_path, caplog):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        server.change = lambda asked, answer: (
            answer.split()[0] + b" NO \x1b[2J\x07 " + b"no " * 2000 + b"\r\n"
            if asked == "LOGIN"
            else answer
        )
        watch.step()
        assert watch.status.trouble.isprintable()
        assert len(watch.status.trouble) < 500
        assert len(caplog.records) == 1


# ---- without end


def tagged(answer: bytes) -> bytes:
    return answer.rstrip().rpartition(b"\r\n")[2] + b"\r\n"


LINES = [b'* LIST () "/" "folder %d"\r\n' % number for number in range(1_000_000)]
FLOODS: dict[str, Callable[[str, bytes], bytes | None]] = {
    "folders": lambda asked, answer: b"".join(LINES) + answer if asked == "LIST" else answer,
    "fewer folders": lambda asked, answer: (
        b"".join(LINES[:230_000]) + answer if asked == "LIST" else answer
    ),
    "a literal": lambda asked, answer: (
        b"* 1 FETCH (UID 1 BODY[] {2147483648}\r\n" + bytes(1 << 26)
        if asked == "UID FETCH"
        else answer
    ),
    "a line": lambda asked, answer: b"* LIST " + b"x" * (1 << 26) if asked == "LIST" else answer,
    "lines": lambda asked, answer: b"* OK x\r\n" * 5_000_000 if asked == "NOOP" else answer,
    "UIDs": lambda asked, answer: (
        b'* ESEARCH (TAG "x") UID ALL 1:4294967295\r\n' + tagged(answer)
        if asked == "UID SEARCH"
        else answer
    ),
    "large messages": lambda asked, answer: answer,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
def test_flood_takes_no_memory(name, tmp_path):
    with playing(scripted_imap.OBJECTS) as server:
        server.change = FLOODS[name]
        with child(server, tmp_path, silence=20.0) as ended:
            time.sleep(1.0)
            for number in range(4):
                server.deliver(letter(number) + bytes(25_000_000))
            eventually(lambda: server.logins > 5 or len(server.commands) > 150)
        check(ended, server)


@pytest.mark.slow
@pytest.mark.parametrize("command", STEPS)
@pytest.mark.parametrize("drop", [b"", b"x"], ids=["silent", "dripping"])
def test_every_wait_ends(command, drop, tmp_path):
    over, met = threading.Event(), []

    def drip() -> Iterator[bytes]:
        while not over.wait(0.05):
            met.append(command)
            yield drop

    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        watch.silence = 2.0 if command == "LOGOUT" else 0.2  # a goodbye gets a tenth
        server.deliver(cheap(1), year=2000)
        server.change = lambda asked, answer: drip() if asked == command else answer
        for number in range(4):
            watch._poll_at = 0.0
            began = time.monotonic()
            watch.step()
            assert time.monotonic() - began < 2.5
            server.deliver(cheap(number))
        began = time.monotonic()
        watch._disconnect()
        assert time.monotonic() - began < 1.0
        assert met
        over.set()
        server.most = 0  # who keeps silent does not see who has gone


@needs_openssl
def test_certificate_of_another_is_refused(tmp_path):
    context = server_context(self_signed(tmp_path))
    with playing(tls=context) as server:
        asked = account(server, tmp_path, server="localhost", tls=AccountTls.TLS)
        with pytest.raises(ImapError, match="its certificate is not valid: self-signed") as error:
            connect(asked)
        assert error.value.lost
        assert server.commands == []


def test_other_accounts_go_on(tmp_path):
    """One server is silent, one floods, one hangs up: the fourth is served."""
    ways = [
        lambda asked, answer: b"" if asked == "LIST" else answer,
        lambda asked, answer: b"".join(LINES[:300_000]) if asked == "LIST" else answer,
        lambda asked, answer: None if asked == "IDLE" else answer,
        lambda asked, answer: answer,
    ]
    with ExitStack() as stack:
        servers = [stack.enter_context(playing()) for _ in ways]
        for server, way in zip(servers, ways, strict=True):
            server.change = way
        accounts = [
            account(server, tmp_path, name=f"account{number}")
            for number, server in enumerate(servers)
        ]
        hub = stack.enter_context(closing(Hub(tmp_path, accounts, judge)))
        thread = threading.Thread(target=hub.run, args=(lambda: None,))
        thread.start()
        try:
            eventually(lambda: hub.watches[3].is_listed)
            spam = servers[3].deliver(cheap(1))
            began = time.monotonic()
            eventually(lambda: servers[3].lies(spam) == ["Junk"])
            assert time.monotonic() - began < 3.0
            assert servers[2].logins <= 4
        finally:
            hub.stop()
            for server in servers:
                server.hang_up()
            thread.join()
        assert max(server.most for server in servers) <= 2


# ---- bounds


def test_what_is_longer_is_cut_and_judged(tmp_path):
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1) + bytes(MAX_MESSAGE_BYTES))
        look(watch)
        assert watch.status.judged == 1
        (inbox,) = (row for row in watch.folders() if row.is_inbox)
        ((name, _),) = watch.records.shown(inbox, hide_unread=False)
        assert MAX_MESSAGE_BYTES <= len(watch.read(inbox, name)) < MAX_MESSAGE_BYTES + 100


def test_message_that_cannot_be_had_holds_nothing_up(tmp_path):
    """The server sends more than it was asked for, each time."""
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1))
        server.deliver(cheap(2))
        server.change = lambda asked, answer: (
            answer.replace(b"BODY[]<0> {", b"BODY[] {9000000")
            if asked == "UID FETCH" and b"UID 1 " in answer
            else answer
        )
        for _ in range(5):
            assert "a literal of" in fails(watch) or watch.status.judged
        look(watch)
        assert watch.status.judged == 1
        assert server.folders["Junk"].messages


def test_no_more_is_fetched_on_a_day_than_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(imap_account, "_DAILY_BYTES", 1000)
    with stage(scripted_imap.OBJECTS, tmp_path) as (server, watch):
        look(watch)
        for number in range(5):
            server.deliver(letter(number) + b"x" * 400)
        assert "tomorrow" in fails(watch)
        assert watch.records.fact("judged") == "3"
        assert sum("BODY.PEEK[]" in each for each in server.commands) == 3
