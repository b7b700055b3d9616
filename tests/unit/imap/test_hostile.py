"""Servers that want to hurt: they lie, flood, drip and keep silent. Every answer has an end, and
none takes more than its account down.
"""

from __future__ import annotations

import os
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from spamguard.config.accounts import AccountTls, Mode
from spamguard.imap import connection, line
from spamguard.imap.connection import MAX_MESSAGE_BYTES, ImapError, connect
from spamguard.imap.hub import Hub
from tests.support.certificates import needs_openssl, self_signed, server_context
from tests.support.scripted_imap import GMAIL, OBJECTS, PROTON, ScriptedImap, playing
from tests.support.waiting import eventually
from tests.unit.imap.stage import (
    account,
    cheap,
    check_commands,
    fails,
    judge,
    letter,
    look,
    on,
    read,
    running,
    stage,
    tagged,
)

FUZZ_SECONDS = float(os.environ.get("SPAMGUARD_FUZZ_SECONDS", "9"))
COMMANDS = (
    *("GREETING", "CAPABILITY", "LOGIN", "ID", "LIST", "EXAMINE", "SELECT", "NOOP", "IDLE"),
    *("UID SEARCH", "UID FETCH", "UID MOVE", "DONE"),
)
WORDS = (
    b'* BYE\r\n|NIL|(|)|"|\\|\r\n|\n|{3}\r\n|{2147483648}\r\n|[THROTTLED]|-|* |+ \r\n| OK | NO |'
    b"99999999999999999999|* 99999999999999999999 EXISTS\r\n|* SEARCH 0 -1\r\n|* LIST\r\n|\xff\x00|"
    b"* ESEARCH UID ALL 1:*\r\n|* 1 FETCH (UID 1 BODY[] {5}\r\nxxxxx)\r\n|* STATUS x ()\r\n|"
    b'* LIST () "/" "..\\"\r\n|01-Jan-0001 00:00:00 -0000|31-Feb-9999 99:99:99 +9999'
).split(b"|")


@contextmanager
def process(server: ScriptedImap, directory: Path, mode: Mode, silence: float) -> Iterator[None]:
    """One with this account: it stays small, logs a line for each trouble, asks what it may."""
    words = [sys.executable, "-m", "tests.unit.imap.stage", str(directory), str(server.port)]
    pipe = subprocess.PIPE
    started = subprocess.Popen([*words, mode, str(silence)], stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield
        output, errors = started.communicate(b"\n", timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 0, errors[-2000:]
    steps, memory_kb = map(int, output.split())
    assert memory_kb < 120_000
    assert b"Traceback" not in errors, errors[errors.index(b"Traceback") :][:2000]
    lines = errors.splitlines()
    assert len(lines) <= 3 * steps
    assert max(map(len, lines), default=0) < 1000
    check_commands(server, mode)


def mutate(chance: random.Random, answer: bytes) -> bytes | None:
    start = chance.randrange(len(answer) + 1)
    end = min(len(answer), start + chance.randrange(1, 40))
    head, piece, tail = answer[:start], answer[start:end], answer[end:]
    word, lines = chance.choice(WORDS), answer.splitlines(True)
    ways: list[Callable[[], bytes | None]] = [
        *(lambda: head + tail, lambda: head + word + piece + tail, lambda: head + word + tail),
        lambda: head + piece * chance.choice((2, 100, 10_000)) + tail,
        lambda: head + chance.randbytes(len(piece)) + tail,
        lambda: re.sub(rb"\d+", lambda found: b"%d" % chance.getrandbits(70), answer, count=2),
        lambda: b"".join(chance.sample(lines, len(lines))),
        lambda: word + answer,
        *(lambda: b"".join([*lines[:-1] * 50, *lines[-1:]]), lambda: lines[-1]),
        *(lambda: head, lambda: None),
    ]
    return chance.choice(ways)()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "ways"), [(Mode.LOOK, GMAIL), (Mode.MOVE, OBJECTS), (Mode.MOVE, PROTON)]
)
def test_damaged_answers_damage_nothing(mode, ways, tmp_path):
    chance = random.Random(FUZZ_SECONDS)
    with playing(ways) as server:
        server.change = lambda _, it: mutate(chance, it) if chance.random() < 0.03 else it
        sent, until = [], time.monotonic() + FUZZ_SECONDS / 3
        with process(server, tmp_path, mode, 0.4):
            while time.monotonic() < until:
                sent.append(server.deliver(chance.choice((cheap, letter))(len(sent))))
                time.sleep(0.05 if len(sent) < 500 else 1.0)
        assert all(server.lies(each) for each in sent)


def folders(count: int) -> bytes:
    return b"".join(b'* LIST () "/" "folder %d"\r\n' % number for number in range(count))


FLOODS = {
    "folders": on("LIST", lambda answer: folders(1_000_000) + answer),
    "fewer folders": on("LIST", lambda answer: folders(230_000) + answer),
    "a literal": on("UID FETCH", lambda _: b"* 1 FETCH (UID 1 BODY[] {2147483648}\r\nxxx"),
    "a line": on("LIST", lambda _: b"* LIST " + b"x" * (1 << 26)),
    "words": on("LIST", lambda answer: (b"* LIST " + b"ab " * 2_600_000 + b"\r\n") * 4 + answer),
    "lines": on("NOOP", lambda answer: b"* OK x\r\n" * 5_000_000),
    "UIDs": on("UID SEARCH", lambda it: b"* ESEARCH UID ALL 1:4294967295\r\n" + tagged(it)),
    "large messages": on("", bytes),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
def test_flood_takes_no_memory(name, tmp_path):
    with playing() as server, process(server, tmp_path, Mode.MOVE, 20.0):
        server.change = FLOODS[name]
        time.sleep(1.0)
        for number in range(4):
            server.deliver(letter(number) + bytes(25_000_000))
        eventually(lambda: server.logins > 5 or len(server.commands) > 150)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("drop", [b"", b"x"], ids=["silent", "dripping"])
def test_every_wait_ends(command, drop, tmp_path):
    over, met = threading.Event(), []

    def drip() -> Iterator[bytes]:
        while not over.wait(0.05):
            met.append(command)
            yield drop

    with stage(tmp_path) as (server, watch):
        watch.line.silence = 0.2
        server.deliver(cheap(1), year=2000)
        server.change = on(command, lambda _: drip())
        for number in range(4):
            watch._poll_at, began = 0.0, time.monotonic()
            watch.step()
            assert time.monotonic() - began < 2.5
            server.deliver(cheap(number))
        began = time.monotonic()
        watch.line.close()
        assert time.monotonic() - began < 1.0
        assert met
        over.set()
        server.most = 0  # who keeps silent does not see who has gone


@needs_openssl
def test_certificate_of_another_is_refused(tmp_path):
    with playing(tls=server_context(self_signed(tmp_path))) as server:
        asked = account(server.port, tmp_path, server="localhost", tls=AccountTls.TLS)
        with pytest.raises(ImapError, match="its certificate is not valid: self-signed") as error:
            connect(asked)
        assert error.value.lost
        assert server.commands == []


@pytest.mark.parametrize("greeting", [b"* OK hi\r\n", b"* PREAUTH hi\r\n"])
def test_password_is_not_sent_in_clear(greeting, tmp_path):
    with playing() as server:
        server.change = on("GREETING", lambda _: greeting)
        with pytest.raises(ImapError):
            connect(account(server.port, tmp_path, tls=AccountTls.STARTTLS))
        assert {each.split()[0] for each in server.commands} <= {"CAPABILITY"}


@needs_openssl
def test_what_is_said_before_tls_begins_does_not_count(tmp_path, monkeypatch):
    pem = self_signed(tmp_path)
    monkeypatch.setattr(connection, "_tls_context", lambda: ssl.create_default_context(cafile=pem))

    def serve() -> None:
        stream, _ = listening.accept()
        stream.sendall(b"* OK hi\r\n")
        for number in range(5):  # CAPABILITY, STARTTLS, CAPABILITY, LOGIN, CAPABILITY
            tag = stream.recv(1000).split()[0]
            said = b"* CAPABILITY IMAP4rev1 STARTTLS\r\n" if number % 2 == 0 else b""
            more = b"* BYE not by the server\r\n" if number == 1 else b""
            stream.sendall(said + tag + b" OK done\r\n" + more)
            if number == 1:
                stream = server_context(pem).wrap_socket(stream, server_side=True)
        stream.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        asked = account(port, tmp_path, server="localhost", tls=AccountTls.STARTTLS)
        connect(asked).close()
        thread.join()


def test_other_accounts_go_on(tmp_path):
    """One server is silent, one floods, one hangs up: the fourth is served."""
    ways = [
        *(on("LIST", lambda _: b""), on("LIST", lambda _: folders(300_000))),
        *(on("IDLE", lambda _: None), on("", bytes)),
    ]
    with ExitStack() as stack:
        servers = [stack.enter_context(playing()) for _ in ways]
        for server, way in zip(servers, ways, strict=True):
            server.change = way
        accounts = [account(each.port, tmp_path, name=f"a{each.port}") for each in servers]
        hub = stack.enter_context(closing(Hub(tmp_path, accounts, judge)))
        with running(hub):
            eventually(lambda: hub.watches[3].is_listed)
            spam = servers[3].deliver(cheap(1))
            eventually(lambda: servers[3].lies(spam) == ["Junk"], seconds=3.0)
            assert servers[2].logins <= 4
        for server in servers:
            server.hang_up()


def test_what_a_server_says_stays_in_one_line(tmp_path, caplog):
    with stage(tmp_path) as (server, watch):
        server.change = on(
            "LOGIN", lambda it: it.split()[0] + b" NO \x1b[2J\x07" + b"no" * 2000 + b"\r\n"
        )
        watch.step()
        assert watch.status.trouble.isprintable()
        assert len(watch.status.trouble) < 500
        assert len(caplog.records) == 1


def test_what_is_longer_is_cut_and_judged(tmp_path):
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1) + bytes(MAX_MESSAGE_BYTES))
        look(watch)
        assert watch.status.judged == 1
        (inbox,) = (row for row in watch.folders() if row.is_inbox)
        ((name, _),) = watch.records.shown(inbox, hide_unread=False)
        assert MAX_MESSAGE_BYTES <= len(read(watch, inbox, name)) < MAX_MESSAGE_BYTES + 100


def test_what_was_judged_is_not_fetched_again_to_be_read(tmp_path):
    """As long as all that is kept has room; more is never kept, and what was is given back."""
    with stage(tmp_path) as (server, watch):
        look(watch)
        sent = [letter(number) + bytes(number % 2 * 20_000_000) for number in range(6)]
        for raw in sent:
            server.deliver(raw)
        look(watch)
        fetched = [each for each in server.commands if "BODY.PEEK[]" in each]
        (inbox,) = (row for row in watch.folders() if row.is_inbox)
        names = [name for name, _ in watch.records.shown(inbox, hide_unread=False)]
        found = {read(watch, inbox, name).partition(b"\r\n")[2] for name in names}
        assert found == set(sent)
        assert [each for each in server.commands if "BODY.PEEK[]" in each] == fetched
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(130):
            server.deliver(letter(100 + number) + bytes(number // 127 * 20_000_000))
        for _ in range(4):
            look(watch)
        assert watch.status.judged == 136
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= 128
        kept = [each.size for each in watch._recent._bodies.values()]
        assert 50_000_000 < sum(kept) <= 64 << 20


def test_message_that_cannot_be_had_holds_nothing_up(tmp_path):
    """The server sends more than it was asked for, each time."""
    with stage(tmp_path) as (server, watch):
        look(watch)
        server.deliver(letter(1))
        spam = server.deliver(cheap(2))
        more = (b"UID 1 ", b"BODY[]<0> {", b"BODY[] {9000000")
        server.change = on("UID FETCH", lambda it: it.replace(*more[1:]) if more[0] in it else it)
        assert "a literal of" in fails(watch)
        for _ in range(3):
            fails(watch)
        look(watch)
        assert watch.status.judged == 1
        assert server.lies(spam) == ["Junk"]


def test_no_more_is_fetched_on_a_day_than_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(line, "_DAILY_BYTES", 1000)
    with stage(tmp_path) as (server, watch):
        look(watch)
        for number in range(5):
            server.deliver(letter(number) + b"x" * 400)
        assert "tomorrow" in fails(watch)
        assert sum("BODY.PEEK[]" in each for each in server.commands) == 3
