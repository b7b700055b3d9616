"""Whoever may open everything opens messages of its own mailboxes alone, and outlives whatever it is told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.folders import packets, serve
from spamguard.folders.contract import Changes, File, Mailbox, Place
from spamguard.folders.opener import LocalMailboxes, Pattern
from spamguard.folders.packets import PacketError
from spamguard.folders.serve import Session
from tests.unit.folders.maildirs import deliver, maildir

SECONDS = 20.0  # generous


class Client:
    """Says anything."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        channel.settimeout(SECONDS)

    def hear(self) -> tuple[bytes, int]:
        """A whole answer with its last mark, and how many descriptors came with it, which are closed."""
        data, count, mark = b"", 0, packets.MORE
        while mark == packets.MORE:
            packet, descriptors, _, _ = socket.recv_fds(self.channel, packets.LONGEST_ANSWER, 4)
            count += len(descriptors)
            for one in descriptors:
                os.close(one)
            assert packet, "it has hung up"
            mark, data = packet[:1], data + packet[1:]
        return mark + data, count

    def ask(self, *values: str) -> tuple[bytes, int]:
        self.channel.send(packets.pack(values))
        return self.hear()


@contextmanager
def served(pattern: Path | str) -> Iterator[tuple[Client, list[Exception]]]:
    """A client, greeted, and what has ended its session."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended: list[Exception] = []

    def run() -> None:
        with theirs, closing(LocalMailboxes([Pattern(str(pattern))])) as mailboxes:
            try:
                Session(theirs, mailboxes).run("greeting")
            except (PacketError, OSError) as error:
                ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with ours:
        client = Client(ours)
        assert client.hear() == (packets.LAST + b"greeting\0", 0)
        yield client, ended
        ours.shutdown(socket.SHUT_WR)
        thread.join(SECONDS)
        assert not thread.is_alive()


def says_no(answer: tuple[bytes, int]) -> bool:
    return answer[0][:1] == packets.ERROR and answer[1] == 0


def test_only_messages_of_mailboxes_that_it_found_itself(tmp_path):
    """Whatever lies as deep below the fixed part as a mailbox would is not one for that."""
    box = maildir(tmp_path / "home" / "anna" / "Maildir")
    secret = maildir(tmp_path / "home" / "anna" / "secret")
    mine, theirs = deliver(box, b"mine", "cur"), deliver(secret, b"secret", "cur")
    (box / "private").write_text("x")
    with served(tmp_path / "home/*/Maildir") as (client, ended):
        named = "anna", str(box)
        assert client.ask("open", "0", *named, "", "cur", mine.name) == (packets.LAST, 1)
        for user, path in (("anna", str(secret)), ("anna", f"{box}/../secret"), ("ben", str(box)), ("anna", f"{box}/")):
            assert says_no(client.ask("open", "0", user, path, "", "cur", theirs.name))
            for verb in ("names", "keywords"):
                assert says_no(client.ask(verb, "0", user, path, ""))
            assert says_no(client.ask("folders", "0", user, path))
        assert says_no(client.ask("open", "1", *named, "", "cur", mine.name))
        assert says_no(client.ask("open", "0", *named, "../secret", "cur", theirs.name))
        for part, name in (("", "private"), (".", "private"), ("cur/..", "private"), ("cur", "../private"), ("..", "secret")):
            assert says_no(client.ask("open", "0", *named, "", part, name))
    assert ended == []


def test_what_is_handed_over_can_only_be_read(tmp_path):
    box = maildir(tmp_path / "anna")
    message = deliver(box, b"mine")
    with served(box) as (client, _):
        client.channel.send(packets.pack(["users"]))
        (mailbox,) = packets.mailboxes(packets.unpack(client.hear()[0][1:]))
        client.channel.send(packets.pack(["open", *packets.of_message(Place(mailbox), File("new", message.name))]))
        _, (descriptor,), _, _ = socket.recv_fds(client.channel, 100, 4)
        with os.fdopen(descriptor, "rb") as file:
            assert file.read() == b"mine"
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(descriptor, b"x")


@pytest.mark.parametrize(
    "question",
    [
        b"users",
        b"\0",
        b"nonsense\0",
        b"users\0more\0",
        b"changes\0",
        b"changes\0-1\0",
        b"changes\0nan\0",
        b"changes\0" + b"9" * 5000 + b"\0",
        b"open\0x\0anna\0/\0\0cur\0name\0",
        b"open\0",
        b"names\x000\0",
        b"x" * (packets.LONGEST_QUESTION + 1),
        b"folders\0" + "１".encode() + b"\0anna\0/\0",
    ],
    ids=lambda one: repr(one[:20]),
)
def test_who_says_what_makes_no_sense_is_sent_away(tmp_path, question):
    with served(maildir(tmp_path / "anna")) as (client, ended):
        client.channel.send(question)
        assert client.channel.recv(100) == b""
    assert isinstance(ended[0], PacketError)


def test_descriptors_that_a_client_sends_are_not_taken(tmp_path):
    with served(maildir(tmp_path / "anna")) as (client, _), (tmp_path / "file").open("w") as file:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            socket.send_fds(client.channel, [packets.pack(["users"])], [file.fileno()])
            client.hear()
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_client_that_goes_while_it_waits_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_SLICE", 0.05)
    with served(maildir(tmp_path / "anna")) as (client, ended):
        client.channel.send(packets.pack(["changes", "3600000"]))
    assert isinstance(ended[0], ConnectionError)


def test_an_answer_of_any_size(tmp_path):
    """More than a packet, more than the kernel holds."""
    box = maildir(tmp_path / "anna")
    names = {f"{number:0200}" for number in range(5000)}
    for name in names:
        (box / "cur" / name).touch()
    with served(box) as (client, _):
        client.channel.send(packets.pack(["users"]))
        (mailbox,) = packets.mailboxes(packets.unpack(client.hear()[0][1:]))
        found = packets.names(packets.unpack(client.ask("names", *packets.of_place(Place(mailbox)))[0][1:]))
        assert {part: set(some) for part, some in found.items()} == {"new": set(), "cur": names}


# ---- packets

quick = settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
MAILBOXES = st.builds(Mailbox, NAMES, NAMES, st.integers(0, 999_999))
PLACES = st.builds(Place, MAILBOXES, NAMES)


@quick
@given(st.builds(Changes, st.frozensets(PLACES), st.frozensets(MAILBOXES), st.booleans(), st.booleans()))
def test_changes_come_through(changes):
    assert packets.changes(packets.unpack(packets.pack(packets.of_changes(changes)))) == changes


@quick
@given(st.dictionaries(NAMES, st.lists(NAMES)), st.dictionaries(NAMES, NAMES), st.lists(MAILBOXES))
def test_names_come_through(names, keywords, mailboxes):
    assert packets.names(packets.unpack(packets.pack(packets.of_names(names.items())))) == names
    assert packets.pairs(packets.unpack(packets.pack(packets.of_pairs(keywords)))) == keywords
    assert packets.mailboxes(packets.unpack(packets.pack(packets.of_mailboxes(mailboxes)))) == mailboxes


@quick
@given(st.binary(), st.sampled_from([packets.changes, packets.names, packets.pairs, packets.mailboxes, packets.refused]))
def test_nonsense_is_an_error_and_nothing_else(data: bytes, understand: Callable[[Sequence[str]], object]):
    with suppress(PacketError):
        understand(packets.unpack(data))


def test_both_sides_must_mean_the_same_patterns():
    one = [("/home/*/Maildir", ""), ("/var/vmail", "anna")]
    assert packets.fingerprint(one) == packets.fingerprint(list(one))
    others = [one[::-1], one[:1], [("/home/*/Maildir", "/var/vmail"), ("", "anna")], [("/home/*/Maildir", "anna"), ("/var/vmail", "")], []]
    assert packets.fingerprint(one) not in map(packets.fingerprint, others)
