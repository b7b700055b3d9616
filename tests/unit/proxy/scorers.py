"""Scorers that obey orders in a message, and a pool of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spamguard.config.options import Scoring
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.records import Scan
from spamguard.storage import Spool
from tests.support.waiting import PATIENCE

# A scorer that does as the message says, and else what a scorer does.
ODD = """
import dataclasses, os, re, signal, sys, time
from spamguard.engine.filter import Filter
from spamguard.proxy import scorer
honest = scorer.Scorer.answer
def answer(self, request):
    order = request.message[:20]
    if order.startswith(b"HANG"): re.match(r"(a|a)*b", "a" * 60)
    if order.startswith(b"SLEEP"): time.sleep(1.2)
    if order.startswith(b"CRASH"): os._exit(3)
    if order.startswith(b"FULL") and os.path.exists("full"): os.kill(os.getpid(), signal.SIGBUS)
    if order.startswith(b"MEMORY"): bytearray(8 << 30)
    if order.startswith(b"LIE"): return b"\\xff" * 100
    if order.startswith(b"TWICE"): return honest(self, request) * 2
    if order.startswith(b"SHORT"): return b"\\0\\0\\0\\4" + b"1, 2"
    if order.startswith(b"BINARY"): return b"\\0\\0\\1\\0" + bytes(range(256))
    if order.startswith(b"WHO"):
        return scorer.encode_answer(str(os.getpid()))
    if order.startswith(b"PEAK"):
        peak = re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]
        return scorer.encode_answer(peak)
    return honest(self, request)
scan = Filter.scan
def faulty(self, raw, words=8, on_top=b"", users=()):
    if raw.startswith(b"FAULT"): return 1 / 0
    found = scan(self, raw, words, on_top)
    if raw.startswith(b"STRANGER"): users = ("somebody",)
    return dataclasses.replace(found, personal=dict.fromkeys(users, found.verdict))
scorer.Scorer.answer, Filter.scan = answer, faulty
scorer.main(sys.argv[1:])
"""
ODD_COMMAND = ("-c", ODD)


def spooled(raw: bytes, directory: Path) -> Spool:
    spool = Spool(directory)
    spool.write(raw)
    return spool


@asynccontextmanager
async def pool(
    state: Path, *, seconds: float = 8.0, scorers: int = 1, command: tuple[str, ...] = ODD_COMMAND
) -> AsyncIterator[Any]:
    """A pool, as a function from bytes to what is answered; the pool itself is its attribute."""
    made = ScorerPool(state, Scoring(seconds, scorers), command=command)
    await made.start()

    async def judge(
        raw: bytes, on_top: bytes = b"", users: tuple[str, ...] = ()
    ) -> Scan | NotScanned:
        spool = spooled(raw, state)
        try:
            return await made.judge(spool, on_top, users)
        finally:
            spool.close()

    judge.pool = made
    try:
        yield judge
    finally:
        await made.close()
    assert not made._scorers


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))
