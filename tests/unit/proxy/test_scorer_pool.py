"""Scorers may hang, crash and lie: every message still gets an answer soon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spamguard import process
from spamguard.engine.filter import Filter
from spamguard.proxy import scorer_pool
from spamguard.proxy.scorer import KEPT_WORDS, NotScanned
from spamguard.proxy.scorer_pool import SCORER_COMMAND
from spamguard.records import Scan
from spamguard.storage import MAX_MEMORY_BYTES
from tests.support.processes import alive
from tests.support.waiting import eventually, until
from tests.unit.filters import ROOT, mail, opened, teach
from tests.unit.proxy.scorers import ODD, pool, run

pytestmark = pytest.mark.slow

MAIL = mail(250)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scoring") / "state"
    with opened(directory) as spam_filter:
        teach(spam_filter, MAIL[:60])
        spam_filter.settle()
    return directory


def test_a_lesson_is_in_force_at_the_next_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with pool(tmp_path, command=SCORER_COMMAND) as judge:
            before = await judge(MAIL[0][1])
            with opened(tmp_path) as spam_filter:
                teach(spam_filter, MAIL[:20])
                after = await judge(MAIL[0][1])
                assert after == spam_filter.scan(MAIL[0][1], KEPT_WORDS)
            assert before != after

    opened(tmp_path).close()
    run(work())


def test_personal_verdicts_are_those_of_the_requested_users_only(state: Path) -> None:
    async def work() -> None:
        async with pool(state) as judge:
            large = MAIL[0][1] + b"and so on\n" * 100_000
            asked = [
                ("anna", "ben@example.org"),
                (),
                ("grüße",),
                tuple(f"user{number}" for number in range(150)),
            ]
            results = await asyncio.gather(
                *(judge(raw, b"X: y\r\n", users) for users in asked for raw in (MAIL[0][1], large))
            )
            assert [tuple(scan.personal) for scan in results] == [
                users for users in asked for _ in range(2)
            ]
            assert await judge(b"STRANGER", users=("anna",)) == NotScanned("crashed")

    run(work())


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("HANG", "timeout"),
        ("CRASH", "crashed"),
        ("MEMORY", "crashed"),
        ("LIE", "crashed"),
        ("TWICE", None),
        ("SHORT", "crashed"),
        ("BINARY", "crashed"),
    ],
)
def test_a_message_that_harms_a_scorer_costs_that_scorer_only(
    state: Path, order: str, reason: str | None
) -> None:
    async def work() -> None:
        async with pool(state, seconds=4.0) as judge:
            odd, *others = await asyncio.gather(
                judge(order.encode()), *(judge(raw) for _, raw in MAIL[:20])
            )
            if reason:
                assert odd == NotScanned(reason)
            assert all(isinstance(found, Scan) for found in others) or order == "TWICE"
            assert isinstance(await judge(MAIL[0][1]), Scan)

    run(work())


def test_a_message_that_harmed_twice_is_not_tried_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_pool, "_MAX_POISON_RECORDS", 3)

    async def work() -> None:
        async with pool(state) as judge:
            large = b"CRASH" + b"x" * MAX_MEMORY_BYTES
            for bad in (b"CRASH 1", large):
                assert [await judge(bad) for _ in range(3)] == [NotScanned("crashed")] + [
                    NotScanned("poison")
                ] * 2
            assert await judge(b"CRASH 2") == NotScanned("crashed")
            assert isinstance(await judge(MAIL[0][1]), Scan)
            for number in range(3, 6):
                await judge(b"CRASH %d" % number)
            assert len(judge.pool._poison_records) == 3
            assert await judge(b"CRASH 1") == NotScanned(
                "crashed"
            )  # so long ago that it is forgotten

    run(work())


def test_a_message_is_not_blamed_for_a_full_disk(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that are mapped and cannot be read end a scorer by SIGBUS: that once made each message
    poison, for an hour.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").touch()

    async def work() -> None:
        async with pool(state) as judge:
            assert [await judge(b"FULL") for _ in range(3)] == [NotScanned("no-model")] * 3
            (tmp_path / "full").unlink()
            assert isinstance(await judge(b"FULL"), Scan)

    run(work())


async def who(judge: Any) -> int:
    return int((await judge(b"WHO")).reason)


def test_a_scorer_killed_in_the_middle_of_a_message(state: Path) -> None:
    """Another has that message once, as if by accident: the first one to meet went on unjudged."""

    async def work() -> None:
        async with pool(state) as judge:
            number = await who(judge)
            task = asyncio.create_task(judge(b"SLEEP"))
            others = [asyncio.create_task(judge(raw)) for _, raw in MAIL[:20]]
            await until(lambda: any(scorer.job for scorer in judge.pool._scorers))
            os.kill(number, signal.SIGKILL)
            assert isinstance(await task, Scan)
            assert all(isinstance(scan, Scan) for scan in await asyncio.gather(*others))
            assert await who(judge) != number

    run(work())


def test_a_caller_that_goes_away_takes_nothing_with_it(state: Path) -> None:
    async def work() -> None:
        async with pool(state) as judge:
            await judge(MAIL[0][1])
            tasks = [asyncio.create_task(judge(raw)) for _, raw in MAIL[:40]]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            assert all(isinstance(scan, Scan) for scan in await asyncio.gather(*tasks[1::2]))

    run(work())


@pytest.mark.parametrize(
    "command", [("-c", "pass"), ("/nonexistent/program",), ("-c", "raise SystemExit(9)")]
)
def test_a_scorer_that_cannot_start_is_no_storm_of_processes(
    state: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = scorer_pool.ScorerHandle

    def counted(*arguments: Any) -> Any:
        started.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(scorer_pool, "ScorerHandle", counted)

    async def work() -> None:
        async with pool(state, command=command) as judge:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert await judge(MAIL[0][1]) == NotScanned("crashed")
                await asyncio.sleep(0.01)
        assert 2 <= len(started) <= 4

    run(work())


def test_what_was_given_to_the_last_scorer_waits_for_no_other_that_cannot_start(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with pool(state, seconds=1.0) as judge:
            await judge(MAIL[0][1])
            monkeypatch.setattr(
                process, "_STARTED_WITH", -1
            )  # as after an upgrade: from now on, for good
            results = await asyncio.gather(
                *(judge(raw) for raw in (b"HANG", MAIL[1][1], MAIL[2][1]))
            )
            assert results == [NotScanned("timeout"), NotScanned("crashed"), NotScanned("crashed")]

    run(work())


def test_a_message_does_not_wait_for_ever(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_pool, "_QUEUE_TIMEOUT", 0.3)

    async def work() -> None:
        async with pool(state, command=("-c", "import time; time.sleep(30)")) as judge:
            assert await judge(MAIL[0][1]) == NotScanned("busy")

    run(work())


def test_closing_answers_what_still_waits(state: Path) -> None:
    async def work() -> None:
        async with pool(state) as judge:
            number = await who(judge)
            tasks = [
                asyncio.create_task(judge(b"HANG" if at == 0 else MAIL[at][1])) for at in range(20)
            ]
            await asyncio.sleep(0.1)
            await judge.pool.close()
            assert {await task for task in tasks} == {NotScanned("stopping")}
            assert await judge(MAIL[0][1]) == NotScanned("stopping")
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)

    run(work())


PARENT = """
import asyncio, sys
from pathlib import Path
from spamguard.config.options import Scoring
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.storage import Spool
async def main():
    command = ("-c", sys.argv[2])
    pool = ScorerPool(Path(sys.argv[1]), Scoring(100.0), command=command)
    await pool.start()
    spool = Spool(Path(sys.argv[1]))
    spool.write(b"WHO")
    print((await pool.judge(spool, b"")).reason, flush=True)
    spool = Spool(Path(sys.argv[1]))
    spool.write(sys.argv[3].encode())
    await pool.judge(spool, b"")
asyncio.run(main())
"""


@pytest.mark.parametrize("busy_with", ["HANG", "SLEEP"])
def test_a_scorer_dies_with_its_worker(state: Path, busy_with: str) -> None:
    command = [sys.executable, "-c", PARENT, str(state), ODD, busy_with]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout
        number = int(parent.stdout.readline())
        time.sleep(0.2)
        os.kill(number, signal.SIGTERM)  # meant for the worker
        os.kill(number, 0)
        parent.kill()
    eventually(lambda: not alive(number), "the scorer has gone")


def test_a_large_message_takes_a_bounded_room(state: Path) -> None:
    async def work() -> None:
        async with pool(state) as judge:
            before = int((await judge(b"PEAK")).reason)
            assert await judge(large) == expected
            assert int((await judge(b"PEAK")).reason) - before < 6 * (20 << 10)  # kB

    large = MAIL[0][
        1
    ] + b"twenty megabytes of text in lines of an ordinary length, more or less\n" * (20 * 15_000)
    assert len(large) > 20 << 20
    with Filter.open(state) as spam_filter:
        expected = spam_filter.scan(large, KEPT_WORDS)
    run(work())
