"""Much mail made ready for teaching, on all cores and in its order.

Must never hold more than a bounded number of bytes of mail, and never hand a ledger to another process: the processes of the
pool know the key and nothing else. They come from a fork server, which has no file of ours open and loads numpy once for all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import forkserver, resource_tracker

from spamguard.errors import SpamguardError
from spamguard.prepare import Preparer, Teaching, chunks
from spamguard.sources import Message

# When is a pool worth it? Two busy cores, made-up mail of 3 kB: starting one takes 0.2 s, in which one core makes 600
# messages ready (64 messages: 0.03 s here, 0.20 s in a pool; 512: 0.17 and 0.35). Beyond that teaching gains the whole
# time of extraction, which goes on beside the teacher's own work.
FEW = 512
_FEW_BYTES = 16 << 20
_MOST = 8  # processes; one teacher keeps no more busy (it takes 0.7 ms per message, extraction 0.3)
_IN_FLIGHT_BYTES = 64 << 20  # of mail under way; one message may exceed it


@dataclass(frozen=True, slots=True)
class Ready:
    """A message that can be taught: as what, if its source says so, and its features."""

    label: str | None
    teaching: Teaching


def by_class(batch: Iterable[Ready]) -> dict[str, list[Teaching]]:
    """What each class is to be taught, in the order of their names. All must be of some class."""
    found: dict[str, list[Teaching]] = {}
    for one in sorted(batch, key=lambda one: str(one.label)):
        found.setdefault(str(one.label), []).append(one.teaching)
    return found


def ready(key: bytes, messages: Iterable[Message], cores: int | None = None) -> Iterator[Ready]:
    """Each message ready for teaching, in order. key: the installation's. cores: processes to use, default: all we may.

    SpamguardError when a process of the pool is killed.
    """
    pending = iter(messages)
    first = _first(pending)
    found = chain(_emptying(first), pending)
    processes = min(cores or len(os.sched_getaffinity(0)), _MOST)
    if processes < 2 or (len(first) < FEW and sum(len(message.raw) for message in first) < _FEW_BYTES):
        yield from _prepared(Preparer(key), found)
    else:
        yield from _in_pool(key, found, processes)


def _first(pending: Iterator[Message]) -> deque[Message]:
    """Messages enough to see whether a pool is worth starting."""
    first: deque[Message] = deque()
    size = 0
    while len(first) < FEW and size < _FEW_BYTES and (message := next(pending, None)) is not None:
        first.append(message)
        size += len(message.raw)
    return first


def _emptying(held: deque[Message]) -> Iterator[Message]:
    while held:
        yield held.popleft()


def _prepared(preparer: Preparer, messages: Iterable[Message]) -> Iterator[Ready]:
    for chunk in chunks(messages, _raw):
        yield from _prepare_with(preparer, chunk)


def _prepare_with(preparer: Preparer, chunk: list[Message]) -> list[Ready]:
    lessons = preparer.all_ready([message.raw for message in chunk])
    return [Ready(message.label, teaching) for message, teaching in zip(chunk, lessons, strict=True)]


def _raw(message: Message) -> bytes:
    return message.raw


# ---- the pool


def _in_pool(key: bytes, messages: Iterable[Message], processes: int) -> Iterator[Ready]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with _interrupts_wait():
        _start_fork_server()
        pool = ProcessPoolExecutor(processes, context, _begin, (key,))
    try:
        yield from _ordered(pool, messages, 2 * processes)
    except BrokenProcessPool as error:
        raise SpamguardError(
            "a process that reads mail was killed (is memory short?): what was taught so far is kept, run it again"
        ) from error
    finally:
        with _interrupts_wait():
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """An interrupt inside is taken up at the end: the pool's own code would lose processes if it were interrupted half-way."""
    if threading.current_thread() is not threading.main_thread():  # others never see one
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _start_fork_server() -> None:
    """Start it with interrupts blocked, which it inherits: while it loads it would answer one with a traceback of its own."""
    resource_tracker.ensure_running()  # else the fork server starts it, which ends the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ordered(pool: ProcessPoolExecutor, messages: Iterable[Message], most: int) -> Iterator[Ready]:
    """Results in the order of the messages; at most so many chunks, and so many bytes, are under way."""
    under_way: deque[tuple[Future[list[Ready]], int]] = deque()
    weight = 0
    for chunk in chunks(messages, _raw):
        size = sum(len(message.raw) for message in chunk)
        with _interrupts_wait():
            under_way.append((pool.submit(_prepare, chunk), size))
        weight += size
        while len(under_way) > most or weight > _IN_FLIGHT_BYTES:
            done, size = under_way.popleft()
            weight -= size
            yield from done.result()
    while under_way:
        yield from under_way.popleft()[0].result()


_preparers: list[Preparer] = []  # of a process of the pool: one


def _begin(key: bytes) -> None:
    """Once in every process of the pool. An interrupt is the teacher's business, and nobody may outlive the teacher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _preparers.append(Preparer(key))


def _end_with_parent() -> None:
    """The pool's queues stay open when the parent is killed: its processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _prepare(chunk: list[Message]) -> list[Ready]:
    return _prepare_with(_preparers[0], chunk)
