"""Examples: raw mail made ready for teaching, one message at a time, in batches, or on all cores.

This is the part of teaching that needs no tables and no ledger, so any process can do it. The
processes of a pool know the key and nothing else. They come from a fork server, which has none of
our files open and loads numpy once for all. What only a pool needs is loaded when there is one:
every process that judges imports this module.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, tee
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from spamguard import keys
from spamguard.errors import SpamguardError
from spamguard.mail.extract import FeatureExtractor, WordFinder
from spamguard.mail.message import header_start, message_digest, remove_subject_prefix
from spamguard.records import Features

if TYPE_CHECKING:
    from concurrent.futures import Future

    from spamguard.sources import SourceMessage

_FIELD_NAME = re.compile(rb"[!-9;-~]+[ \t]*:")
BATCH_MESSAGES = 32
BATCH_BYTES = 1 << 20  # of mail

Result = TypeVar("Result")


class Example(NamedTuple):
    """One message ready for teaching: its digest and its features."""

    digest: bytes
    features: Features


class SplitMessage:
    """A message taken apart once: its digest now, its features only if they are asked for."""

    def __init__(self, raw: bytes, extractor: FeatureExtractor, digest_key: bytes) -> None:
        self.raw = raw
        self._written = remove_subject_prefix(check_bytes(raw))
        self._extractor = extractor
        self._message = extractor.split(self._written)
        self.digest = message_digest(self._written, digest_key, self._message)

    def example(self) -> Example:
        """Everything that teaching this message needs."""
        return Example(self.digest, self._extractor.features(self._written, self._message))


class ExampleReader:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes) -> None:
        self.extractor = FeatureExtractor(keys.derive_key(key, b"tokens"))
        self._digest_key = keys.derive_key(key, b"digest")

    def digest(self, raw: bytes) -> bytes:
        """The identity of a message, whatever delivery has changed about it; 16 bytes."""
        return message_digest(remove_subject_prefix(check_bytes(raw)), self._digest_key)

    def split(self, raw: bytes) -> SplitMessage:
        """A message of which only the digest may be needed, taken apart once."""
        return SplitMessage(raw, self.extractor, self._digest_key)

    def read_example(self, raw: bytes) -> Example:
        """Everything that teaching one message needs."""
        return self.split(raw).example()

    def read_features(self, raw: bytes) -> Features:
        """What judging one message needs."""
        return self.extractor.features(check_bytes(raw))

    def read_with_words(self, raw: bytes, extra_fields: bytes) -> tuple[Example, WordFinder, str]:
        """An example, with a way to the words of its message, and a line of its text.

        Header fields that are given beside it count as if they stood on top of the message. They
        must not be among those that identify a message (Message-ID, Date, From, Subject, MIME's):
        its digest stays its own.
        """
        start = header_start(check_bytes(raw))  # below an mbox `From ` line, which would end it
        # A first line that begins with a blank must not become the tail of the field above it.
        gap = b"\r\n" if extra_fields and raw[start : start + 1] in (b" ", b"\t") else b""
        extracted, words = self.extractor.read_with_words(
            raw[:start] + extra_fields + gap + raw[start:]
        )
        is_same = not extra_fields or _FIELD_NAME.match(raw, start)
        message = extracted.message if is_same else None
        digest = message_digest(raw, self._digest_key, message)
        return Example(digest, extracted.features), words, extracted.line


def check_bytes(raw: bytes) -> bytes:
    """Return raw; TypeError unless it is bytes."""
    if not isinstance(raw, bytes):
        raise TypeError(
            f"a message is bytes, as it came, and this is {type(raw).__name__}: "
            "of an email.message take as_bytes()"
        )
    return raw


def batch_by_size(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Mail in lists worth reading in one go: at most BATCH_MESSAGES, and about BATCH_BYTES."""
    chunk: list[bytes] = []
    for raw in messages:
        chunk.append(raw)
        if len(chunk) == BATCH_MESSAGES or sum(map(len, chunk)) >= BATCH_BYTES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


# ---- much mail, on all cores

# When is a pool worth it? Starting one takes 0.2 to 0.4 s of two busy cores, in which one core
# reads 600 to 1,000 messages. So the first messages are read here.
MIN_POOL_MESSAGES = 512
# One teaching process keeps no more busy: it takes 0.7 ms per message, extraction 0.3.
_MAX_PROCESSES = 8


class LabelledExample(NamedTuple):
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
) -> Generator[LabelledExample]:
    """Make each message ready for teaching, in order; the rest is as in `read_batches`."""
    named, messages = tee(messages)
    mail = (message.raw for message in messages)
    batches = read_batches(key, ExampleReader.read_example, mail, cores)
    for message, example in zip(named, chain.from_iterable(batches), strict=True):
        yield LabelledExample(message.label, example)


def read_batches(
    key: bytes,
    read: Callable[[ExampleReader, bytes], Result],
    messages: Iterable[bytes],
    cores: int | None = None,
) -> Generator[list[Result]]:
    """What `read` makes of each message, in order, in batches: many are read by a pool of
    processes.

    Parameters
    ----------
    read
        A method of `ExampleReader`.
    cores
        How many processes may read; by default, as many as there are cores for us.

    Raises
    ------
    SpamguardError
        A process of the pool was killed.
    """
    processes = min(cores or len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    reader = ExampleReader(key)
    done = 0
    batches = batch_by_size(messages)
    for batch in batches:
        if processes >= 2 and done >= MIN_POOL_MESSAGES:
            yield from _read_in_pool(key, read, chain([batch], batches), processes)
            return
        yield [read(reader, raw) for raw in batch]
        done += len(batch)


# ---- the pool: its libraries are loaded by the functions that need them


def _read_in_pool(
    key: bytes,
    read: Callable[[ExampleReader, bytes], Result],
    batches: Iterable[list[bytes]],
    processes: int,
) -> Iterator[list[Result]]:
    import multiprocessing  # noqa: PLC0415
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(processes, context, _init_pool_process, (key,))
    in_flight: deque[Future[list[Result]]] = deque()  # in the order of the batches
    try:
        for batch in batches:
            in_flight.append(pool.submit(_read_in_process, read, batch))
            if len(in_flight) > 2 * processes:
                yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()
    except BrokenProcessPool as error:
        raise SpamguardError(
            "a process that reads mail was killed (is memory short?): "
            "what was done so far is kept, run it again"
        ) from error
    finally:
        # A pool whose processes were killed would wait forever for a result that is half written.
        pool._result_queue._writer.close()  # type: ignore[attr-defined]
        pool.shutdown(cancel_futures=True)


_pool_readers: list[ExampleReader] = []  # in a process of the pool: one


def _init_pool_process(key: bytes) -> None:
    """Run once in every process of the pool: ignore interrupts, end with the parent.

    The pool's queues stay open when the parent is killed; the process would wait for work forever.
    """
    from multiprocessing import parent_process  # noqa: PLC0415

    def end_with_parent() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _pool_readers.append(ExampleReader(key))


def _read_in_process(
    read: Callable[[ExampleReader, bytes], Result], batch: list[bytes]
) -> list[Result]:
    return [read(_pool_readers[0], raw) for raw in batch]
