"""The teaching door: who speaks is what the kernel says, yes is said once it is on the disk, and nobody keeps others waiting."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from spamguard.doors import teach
from spamguard.doors.teach import Speakers, TeachingDoor
from spamguard.teaching import client
from spamguard.teaching.lesson import Header, Lesson
from spamguard.teaching.queue import Queue
from tests.support.waiting import PATIENCE

ME = pwd.getpwuid(os.getuid()).pw_name


class Nobody(Speakers):
    """As if we were an account that speaks for itself only."""

    def trusted(self, account: int) -> bool:
        return False


def served(
    tmp_path: Path, use: Callable[[str], Awaitable[None]], speakers: Speakers | None = None, queue: Queue | None = None
) -> list[Lesson]:
    """What is in the queue after a door was used."""
    where = queue or Queue(tmp_path / "teach")
    arrived: list[int] = []

    async def run() -> None:
        door = TeachingDoor(where, speakers or Speakers(()), tmp_path, lambda: arrived.append(1))
        async with await door.start(tmp_path / "sock", 0o666):
            await asyncio.wait_for(use(str(tmp_path / "sock")), PATIENCE)

    asyncio.run(run())
    found = [where.take(name) for name in where.names()]
    assert len(arrived) == len(found)
    return [one for one in found if one is not None]


def handing(*lessons: tuple[Header, bytes]) -> Callable[[str], Awaitable[None]]:
    async def use(path: str) -> None:
        for header, raw in lessons:
            await asyncio.to_thread(client.hand_over, path, header, raw)

    return use


async def said(path: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def test_a_lesson_is_kept_before_yes_is_said(tmp_path):
    large = os.urandom(3 << 20)
    found = served(tmp_path, handing((Header("spam", 5), b"hello"), (Header("ham", len(large), "ben"), large)))
    assert found == [Lesson("spam", ME, "teach-pipe", b"hello"), Lesson("ham", "ben", "teach-pipe", large)]


def test_who_is_not_listed_speaks_for_nobody_else_and_that_is_told_once(tmp_path, caplog):
    """Where all mail belongs to one account and for_others does not name it, all people were one, without a word."""
    found = served(tmp_path, handing((Header("spam", 5, "ben"), b"hello"), (Header("spam", 2, "carl"), b"yo")), Nobody(()))
    assert [one.user for one in found] == [ME, ME]
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        f"{ME} hands over lessons of others, such as 'ben': they count as its own, unless for_others names it"
    ]


def test_who_may_name_others():
    nobody = pwd.getpwnam("nobody").pw_uid
    assert Speakers(["nobody", "no-such-account"]).user(nobody, "anna") == "anna"
    assert Speakers(["nobody"]).user(nobody, "") == "nobody"
    assert Speakers([]).user(nobody, "anna") == "nobody"
    assert Speakers([]).user(0, "anna") == "anna"
    assert Speakers([]).user(os.getuid(), "anna") == "anna"
    assert Speakers([]).user(4_000_000, "anna") == "#4000000"


def test_an_account_whose_name_has_no_place_in_a_lesson_goes_by_its_number(tmp_path, monkeypatch):
    """The lesson was accepted, and dropped as none when it was to be learnt."""
    monkeypatch.setattr(pwd, "getpwuid", lambda account: SimpleNamespace(pw_name="DOMAIN\\anna\tb"))
    (found,) = served(tmp_path, handing((Header("spam", 5), b"hello")))
    assert found.user == f"#{os.getuid()}"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\n", b"TEACH spam 99999999999\n", b"TEACH SPAM 5\nhello", b"x" * 5000 + b"\n"])
def test_what_is_no_lesson_is_refused(tmp_path, data):
    async def use(path: str) -> None:
        assert (await said(path, data)).startswith(b"NO ")

    assert served(tmp_path, use) == []


def test_a_client_hears_why_it_is_refused(tmp_path):
    async def use(path: str) -> None:
        with pytest.raises(client.RefusedError, match="bytes"):
            await asyncio.to_thread(client.hand_over, path, Header("spam", 0), b"")

    assert served(tmp_path, use) == []


def test_half_a_lesson_is_none(tmp_path):
    async def use(path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"TEACH spam 500\nhello")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    assert served(tmp_path, use) == []


def test_who_dawdles_is_cut_off_and_others_are_served_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(teach, "SECONDS", 0.5)

    async def use(path: str) -> None:
        idle = [await asyncio.open_unix_connection(path) for _ in range(5)]
        await handing((Header("spam", 5), b"hello"))(path)
        for reader, writer in idle:
            assert await reader.read() == b""
            writer.close()

    assert len(served(tmp_path, use)) == 1


@pytest.mark.parametrize(("speakers", "limit"), [(Speakers(()), "CONNECTIONS"), (Nobody(()), "CONNECTIONS_OF_ONE")])
def test_too_many_connections_are_told_to_come_again(tmp_path, monkeypatch, speakers, limit):
    monkeypatch.setattr(teach, limit, 2)

    async def use(path: str) -> None:
        idle = [await asyncio.open_unix_connection(path) for _ in range(2)]
        with pytest.raises(OSError, match="too many"):
            await handing((Header("spam", 5), b"hello"))(path)
        for _, writer in idle:
            writer.close()
        async with asyncio.timeout(PATIENCE):
            while not await taken(path):  # until the others are seen to have gone
                await asyncio.sleep(0.01)

    async def taken(path: str) -> bool:
        with suppress(OSError):
            await handing((Header("spam", 5), b"hello"))(path)
            return True
        return False

    assert len(served(tmp_path, use, speakers)) == 1


@pytest.mark.parametrize(("speakers", "limit"), [(Speakers(()), "BYTES_IN_FLIGHT"), (Nobody(()), "BYTES_OF_ONE")])
def test_too_many_bytes_are_told_to_come_again(tmp_path, monkeypatch, speakers, limit):
    monkeypatch.setattr(teach, limit, 10)

    async def use(path: str) -> None:
        with pytest.raises(OSError, match="too much"):
            await handing((Header("spam", 11), b"hello world"))(path)
        await handing((Header("spam", 5), b"hello"))(path)

    assert len(served(tmp_path, use, speakers)) == 1


def test_a_full_disk_is_no_yes(tmp_path):
    async def use(path: str) -> None:
        with pytest.raises(OSError, match="kept"):
            await handing((Header("spam", 5), b"hello"))(path)

    assert served(tmp_path, use, queue=Queue(tmp_path / "teach", most_lessons=0)) == []
