"""The teaching door: users by account, confirmation once on the disk, limits."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from spamguard.learning import client
from spamguard.learning.lessons import TrainingIntake
from spamguard.learning.queue import LessonQueue
from spamguard.servers import teach
from spamguard.servers.teach import TeachingDoor, TrainingAccounts
from spamguard.users import LessonHeader, QueuedLesson
from tests.support.waiting import PATIENCE

ME = pwd.getpwuid(os.getuid()).pw_name


class Nobody(TrainingAccounts):
    """As if we were an account that speaks for itself only."""

    def is_trusted(self, account: int) -> bool:
        return False


def served(
    tmp_path: Path,
    use: Callable[[str], Awaitable[None]],
    speakers: TrainingAccounts | None = None,
    queue: LessonQueue | None = None,
) -> list[QueuedLesson]:
    """What is in the queue after a door was used."""
    where = queue or LessonQueue(tmp_path / "teach")
    arrived: list[int] = []

    async def is_unknown(_label: str) -> bool:
        return False

    async def run() -> None:
        door = TeachingDoor(
            TrainingIntake(tmp_path, where),
            speakers or TrainingAccounts(()),
            tmp_path,
            lambda: arrived.append(1),
            is_unknown,
        )
        async with await door.start(tmp_path / "sock", 0o666):
            await asyncio.wait_for(use(str(tmp_path / "sock")), PATIENCE)

    asyncio.run(run())
    lessons = [where.take(name) for name in where.names()]
    assert len(arrived) == len(lessons)
    return [one for one in lessons if one is not None]


def handing(*lessons: tuple[LessonHeader, bytes]) -> Callable[[str], Awaitable[None]]:
    async def use(path: str) -> None:
        for header, raw in lessons:
            await asyncio.to_thread(client.send_lesson, path, header, raw)

    return use


async def said(path: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def test_a_lesson_is_on_the_disk_before_it_is_confirmed(tmp_path):
    large = os.urandom(3 << 20)
    lessons = served(
        tmp_path,
        handing(
            (LessonHeader("spam", 5), b"hello"), (LessonHeader("ham", len(large), "ben"), large)
        ),
    )
    assert lessons == [
        QueuedLesson("spam", ME, "teach-pipe", b"hello"),
        QueuedLesson("ham", "ben", "teach-pipe", large),
    ]


def test_an_unlisted_account_cannot_name_another_user_and_is_warned_about_once(tmp_path, caplog):
    """Where all mail belongs to one account and for_others does not name it, all people were one,
    without a word.
    """
    lessons = served(
        tmp_path,
        handing(
            (LessonHeader("spam", 5, "ben"), b"hello"), (LessonHeader("spam", 2, "carl"), b"yo")
        ),
        Nobody(()),
    )
    assert [lesson.user for lesson in lessons] == [ME, ME]
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert warnings == [
        f"{ME} hands over lessons of others, such as 'ben': "
        "they count as its own, unless for_others names it"
    ]


def test_accounts_that_may_name_another_user():
    nobody = pwd.getpwnam("nobody").pw_uid
    assert TrainingAccounts(["nobody", "no-such-account"]).resolve_user(nobody, "anna") == "anna"
    assert TrainingAccounts(["nobody"]).resolve_user(nobody, "") == "nobody"
    assert TrainingAccounts([]).resolve_user(nobody, "anna") == "nobody"
    assert TrainingAccounts([]).resolve_user(0, "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(os.getuid(), "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(4_000_000, "anna") == "#4000000"


def test_an_account_whose_name_has_no_place_in_a_lesson_goes_by_its_number(tmp_path, monkeypatch):
    """The lesson was accepted, and dropped as none when it was to be learnt."""
    monkeypatch.setattr(pwd, "getpwuid", lambda account: SimpleNamespace(pw_name="DOMAIN\\anna\tb"))
    (lesson,) = served(tmp_path, handing((LessonHeader("spam", 5), b"hello")))
    assert lesson.user == f"#{os.getuid()}"


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\n", b"TEACH spam 99999999999\n", b"TEACH SPAM 5\nhello", b"x" * 5000 + b"\n"],
)
def test_what_is_no_lesson_is_refused(tmp_path, data):
    async def use(path: str) -> None:
        assert (await said(path, data)).startswith(b"NO ")

    assert served(tmp_path, use) == []


def test_a_client_hears_why_it_is_refused(tmp_path):
    async def use(path: str) -> None:
        with pytest.raises(client.LessonRefusedError, match="bytes"):
            await asyncio.to_thread(client.send_lesson, path, LessonHeader("spam", 0), b"")

    assert served(tmp_path, use) == []


def test_half_a_lesson_is_none(tmp_path):
    async def use(path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"TEACH spam 500\nhello")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    assert served(tmp_path, use) == []


def test_a_slow_client_is_cut_off_and_others_are_served_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(teach, "LESSON_TIMEOUT", 0.5)

    async def use(path: str) -> None:
        idle = [await asyncio.open_unix_connection(path) for _ in range(5)]
        await handing((LessonHeader("spam", 5), b"hello"))(path)
        for reader, writer in idle:
            assert await reader.read() == b""
            writer.close()

    assert len(served(tmp_path, use)) == 1


@pytest.mark.parametrize(
    ("speakers", "limit"),
    [(TrainingAccounts(()), "MAX_CONNECTIONS"), (Nobody(()), "MAX_CONNECTIONS_PER_ACCOUNT")],
)
def test_too_many_connections_are_deferred(tmp_path, monkeypatch, speakers, limit):
    monkeypatch.setattr(teach, limit, 2)

    async def use(path: str) -> None:
        idle = [await asyncio.open_unix_connection(path) for _ in range(2)]
        with pytest.raises(OSError, match="too many"):
            await handing((LessonHeader("spam", 5), b"hello"))(path)
        for _, writer in idle:
            writer.close()
        async with asyncio.timeout(PATIENCE):
            while not await taken(path):  # until the others are seen to have gone
                await asyncio.sleep(0.01)

    async def taken(path: str) -> bool:
        with suppress(OSError):
            await handing((LessonHeader("spam", 5), b"hello"))(path)
            return True
        return False

    assert len(served(tmp_path, use, speakers)) == 1


@pytest.mark.parametrize(
    ("speakers", "limit"),
    [(TrainingAccounts(()), "MAX_BYTES_IN_FLIGHT"), (Nobody(()), "MAX_BYTES_PER_ACCOUNT")],
)
def test_too_many_bytes_are_deferred(tmp_path, monkeypatch, speakers, limit):
    monkeypatch.setattr(teach, limit, 10)

    async def use(path: str) -> None:
        with pytest.raises(OSError, match="too much"):
            await handing((LessonHeader("spam", 11), b"hello world"))(path)
        await handing((LessonHeader("spam", 5), b"hello"))(path)

    assert len(served(tmp_path, use, speakers)) == 1


def test_a_full_disk_is_no_yes(tmp_path):
    async def use(path: str) -> None:
        with pytest.raises(OSError, match="kept"):
            await handing((LessonHeader("spam", 5), b"hello"))(path)

    assert served(tmp_path, use, queue=LessonQueue(tmp_path / "teach", max_lessons=0)) == []
