"""Examples from much mail, made on all cores.

Teaching needs no tables and no ledger until examples are stored, so any process can make them. The
processes of the pool know the key and nothing else: a ledger is never handed to another process.
They come from a fork server, which has none of our files open and loads numpy once for all. A few
messages are read by the calling process, since a pool would not pay.

The pool must never hold more than a bounded number of bytes of mail, and must yield examples in the
order of their messages.
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

from spamguard.engine.prepare import Example, ExampleReader, batch_by_size
from spamguard.errors import SpamguardError
from spamguard.sources import SourceMessage

# When is a pool worth it? Two busy cores, made-up mail of 3 kB: starting one takes 0.2 s, in which
# one core makes 600 messages ready (64 messages: 0.03 s here, 0.20 s in a pool; 512: 0.17 and
# 0.35). Beyond that teaching gains the whole time of extraction, which goes on beside the ledger's
# own work.
MIN_POOL_MESSAGES = 512
_MIN_POOL_BYTES = 16 << 20
# One teaching process keeps no more busy: it takes 0.7 ms per message, extraction 0.3.
_MAX_PROCESSES = 8
_MAX_IN_FLIGHT_BYTES = 64 << 20  # one message may exceed it


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """An example, and the class its source gives it, if any."""

    label: str | None
    example: Example


def group_by_class(batch: Iterable[LabelledExample]) -> dict[str, list[Example]]:
    """The examples of each class, in the order of class names. All must have a class."""
    by_class: dict[str, list[Example]] = {}
    for labelled in sorted(batch, key=lambda labelled: str(labelled.label)):
        by_class.setdefault(str(labelled.label), []).append(labelled.example)
    return by_class


def extract_examples(
    key: bytes, messages: Iterable[SourceMessage], cores: int | None = None
) -> Iterator[LabelledExample]:
    """Make each message ready for teaching, in order.

    Parameters
    ----------
    key : the installation's.
    cores : how many processes to use; by default all that we may.

    Raises
    ------
    SpamguardError
        A process of the pool was killed.
    """
    pending = iter(messages)
    first: deque[SourceMessage] = deque()
    size = 0
    while len(first) < MIN_POOL_MESSAGES and size < _MIN_POOL_BYTES:
        message = next(pending, None)
        if message is None:
            break
        first.append(message)
        size += len(message.raw)
    is_large = len(first) >= MIN_POOL_MESSAGES or size >= _MIN_POOL_BYTES
    every = chain(_drain(first), pending)
    processes = min(cores or len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    if is_large and processes >= 2:
        yield from _extract_in_pool(key, every, processes)
    else:
        yield from _extract_here(ExampleReader(key), every)


def _drain(messages: deque[SourceMessage]) -> Iterator[SourceMessage]:
    """Yield messages without holding those already yielded."""
    while messages:
        yield messages.popleft()


def _extract_here(
    reader: ExampleReader, messages: Iterable[SourceMessage]
) -> Iterator[LabelledExample]:
    for chunk in batch_by_size(messages, _raw_bytes):
        yield from _extract_batch(reader, chunk)


def _extract_batch(reader: ExampleReader, chunk: list[SourceMessage]) -> list[LabelledExample]:
    examples = reader.read_examples([message.raw for message in chunk])
    labels = [message.label for message in chunk]
    return list(map(LabelledExample, labels, examples))


def _raw_bytes(message: SourceMessage) -> bytes:
    return message.raw


# ---- the pool


def _extract_in_pool(
    key: bytes, messages: Iterable[SourceMessage], processes: int
) -> Iterator[LabelledExample]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with _defer_interrupts():
        _start_fork_server()
        pool = ProcessPoolExecutor(processes, context, _init_pool_process, (key,))
    try:
        yield from _submit_in_order(pool, messages, 2 * processes)
    except BrokenProcessPool as error:
        raise SpamguardError(
            "a process that reads mail was killed (is memory short?): "
            "what was taught so far is kept, run it again"
        ) from error
    finally:
        with _defer_interrupts():
            pool.shutdown(cancel_futures=True)


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Delay an interrupt to the end of the block: the pool's own code would lose processes."""
    if threading.current_thread() is not threading.main_thread():  # others never see one
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        signal.raise_signal(signal.SIGINT)


def _start_fork_server() -> None:
    """Start it with interrupts blocked, which it inherits.

    While it loads it would answer an interrupt with a traceback of its own.
    """
    resource_tracker.ensure_running()  # else the fork server starts it, which ends the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _submit_in_order(
    pool: ProcessPoolExecutor, messages: Iterable[SourceMessage], max_chunks: int
) -> Iterator[LabelledExample]:
    """Results in the order of the messages; chunks and bytes in flight are bounded."""
    in_flight: deque[tuple[Future[list[LabelledExample]], int]] = deque()
    total = 0
    for chunk in batch_by_size(messages, _raw_bytes):
        size = sum(len(message.raw) for message in chunk)
        with _defer_interrupts():
            in_flight.append((pool.submit(_extract_in_process, chunk), size))
        total += size
        while len(in_flight) > max_chunks or total > _MAX_IN_FLIGHT_BYTES:
            future, size = in_flight.popleft()
            total -= size
            yield from future.result()
    while in_flight:
        yield from in_flight.popleft()[0].result()


_pool_readers: list[ExampleReader] = []  # in a process of the pool: one


def _init_pool_process(key: bytes) -> None:
    """Run once in every process of the pool: ignore interrupts, end with the parent.

    The pool's queues stay open when the parent is killed; the process would wait for work forever.
    """

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _pool_readers.append(ExampleReader(key))


def _extract_in_process(chunk: list[SourceMessage]) -> list[LabelledExample]:
    return _extract_batch(_pool_readers[0], chunk)
