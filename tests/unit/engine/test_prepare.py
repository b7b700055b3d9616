"""Examples: one message at a time, in batches, and from much mail on all cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import synthetic
from corpora.synthetic import generate
from spamguard import native
from spamguard.engine import prepare
from spamguard.engine.prepare import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Example,
    ExampleReader,
    batch_by_size,
)
from spamguard.errors import SpamguardError
from spamguard.mail.message import rewrite_header
from spamguard.sources import SourceMessage
from tests.support.processes import children
from tests.support.waiting import PATIENCE
from tests.unit.filters import KEY

MAIL = [raw for _, raw in generate(5, 3)]


def test_the_same_key_prepares_alike_and_another_one_has_nothing_in_common() -> None:
    first, same, second = ExampleReader(KEY), ExampleReader(KEY), ExampleReader(KEY[::-1])
    for raw in MAIL:
        ready = first.read_example(raw)
        assert (
            ready.digest == first.digest(raw) == same.read_example(raw).digest != second.digest(raw)
        )
        assert ready.features.tokens.tolist() == same.read_example(raw).features.tokens.tolist()
        strangers = second.read_example(raw).features
        assert not set(ready.features.tokens.tolist()) & set(strangers.tokens.tolist())
        assert ready.features.numbers.tolist() == strangers.numbers.tolist()


@pytest.mark.parametrize(
    "subject",
    [
        b"Subject: hello\n",
        b"Subject:\n",
        b"",
        b"subject : two\n lines\n",
        b"Subject: =?utf-8?q?gr=C3=BC?=\n",
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_what_was_put_before_the_subject_is_not_learnt(subject: bytes, line_end: bytes) -> None:
    raw = b"From: a@example.org\n" + subject + b"\nSubject: [SPAM] in the body\n"
    head, replaced = rewrite_header(
        raw.replace(b"\n", b"\r\n"), [b"X-Spam-Flag: YES"], [], b"[SPAM]"
    )
    marked = head + raw.replace(b"\n", b"\r\n")[replaced:]
    assert b"[SPAM]" in marked[: -len(b"Subject: [SPAM] in the body\r\n")]
    preparer = ExampleReader(KEY)
    learnt, sent = (
        preparer.read_example(marked.replace(b"\r\n", line_end)),
        preparer.read_example(raw),
    )
    assert learnt.digest == sent.digest == preparer.digest(marked)
    if subject:  # a message without a subject keeps the empty one it was given
        assert learnt.features.tokens.tolist() == sent.features.tokens.tolist()


_KIND = b"Content-Type: multipart/mixed; boundary=b\n\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"Subject: x\nX-Fill: "
        + b"y" * ((64 << 10) - 26)
        + b"\nMessage-ID: <1@example.org>\n\nbody\n",  # cut within a name
        b"Subject: x\n" + b"X-Fill: y\n" * 800 + b"Message-ID: <1@example.org>\n\nbody\n",
        b"Attention: "
        + b"y" * 70_000
        # like a text without a header, as far as it is read
        + b"\nMessage-ID: <1@example.org>\n\nbody\n",
        _KIND + b"--b\n\none\n" + b"--bb\n" * 2500 + b"--b\n\ntwo\n--b--\n",
        _KIND + b"--b\n\none\n" * 300 + b"--b--\n",
    ],
)
def test_a_message_that_is_not_read_to_its_end_has_one_name_all_the_same(raw: bytes) -> None:
    preparer = ExampleReader(KEY)
    assert (
        preparer.read_example(raw).digest
        == preparer.read_with_words(raw, b"")[0].digest
        == preparer.digest(raw)
    )


def test_different_messages_have_different_names() -> None:
    preparer = ExampleReader(KEY)
    assert len({preparer.digest(raw) for raw in MAIL}) == len(MAIL)
    assert {len(preparer.digest(raw)) for raw in (*MAIL, b"", b"\0")} == {16}


def test_a_message_is_recognised_after_transport() -> None:
    preparer = ExampleReader(KEY)
    for raw in MAIL:
        delivered = (b"Received: from a by b\nX-Spam-Status: No\n" + raw).replace(b"\n", b"\r\n")
        assert preparer.digest(delivered) == preparer.digest(raw)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([9] * (2 * BATCH_MESSAGES + 1), [BATCH_MESSAGES, BATCH_MESSAGES, 1]),
        ([9, BATCH_BYTES, 9], [2, 1]),
        ([BATCH_BYTES // 2] * 4, [2, 2]),
        ([BATCH_BYTES // 2 - 1] * 4, [3, 1]),
    ],
)
def test_chunks_are_not_many_and_not_much(sizes: list[int], lengths: list[int]) -> None:
    items = [(number, bytes(size)) for number, size in enumerate(sizes)]
    batches = list(batch_by_size(items, lambda item: item[1]))
    assert [len(chunk) for chunk in batches] == lengths
    assert [item for chunk in batches for item in chunk] == items


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "raw",
    ["text", None, 12, bytearray(MAIL[0]), [MAIL[0]], iter(MAIL)],
    ids=lambda raw: type(raw).__name__,
)
def test_what_is_no_bytes_is_told_as_that(
    raw: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "functions", None)
    preparer = ExampleReader(KEY)
    for use in (
        preparer.read_example,
        preparer.digest,
        lambda raw: preparer.read_with_words(raw, b""),
    ):
        with pytest.raises(
            TypeError, match=f"a message is bytes, as it came, and this is {type(raw).__name__}"
        ):
            use(raw)


def assert_same(first: Example, second: Example) -> None:
    assert first.digest == second.digest
    for name in ("tokens", "traits", "numbers"):
        assert getattr(first.features, name).tolist() == getattr(second.features, name).tolist()


ROOT = Path(__file__).parents[3]


def mail(number):
    return [
        SourceMessage(str(at), raw, label)
        for at, (label, raw) in enumerate(synthetic.generate(number, 5))
    ]


def assert_ready(found, messages):
    preparer = ExampleReader(KEY)
    for one, message in zip(found, messages, strict=True):
        expected = preparer.read_example(message.raw)
        assert (one.label, one.example.digest) == (message.label, expected.digest)
        assert np.array_equal(one.example.features.tokens, expected.features.tokens)
        assert np.array_equal(one.example.features.numbers, expected.features.numbers)


@pytest.mark.parametrize("number", [0, 1, 40])
def test_few_are_made_ready_here(number, monkeypatch):
    monkeypatch.setattr(prepare, "_read_in_pool", None)
    assert_ready(prepare.extract_examples(KEY, mail(number), 8), mail(number))


def test_one_core_needs_no_pool(monkeypatch):
    monkeypatch.setattr(prepare, "_read_in_pool", None)
    assert_ready(
        prepare.extract_examples(KEY, mail(prepare.MIN_POOL_MESSAGES + 50), 1),
        mail(prepare.MIN_POOL_MESSAGES + 50),
    )


@pytest.mark.slow
def test_many_go_through_a_pool_in_order():
    messages = mail(prepare.MIN_POOL_MESSAGES + 150)
    assert_ready(prepare.extract_examples(KEY, messages, 2), messages)


def name_process(_reader, batch):
    return os.getpid(), len(batch)


@pytest.mark.slow
def test_other_processes_read_what_follows_the_first_messages():
    messages = [raw for _, raw in synthetic.generate(prepare.MIN_POOL_MESSAGES + 150, 5)]
    done = list(prepare.read_batches(KEY, name_process, messages, bytes, 2))
    assert sum(number for _, number in done) == len(messages)
    here = sum(number for pid, number in done if pid == os.getpid())
    assert 0 < here <= prepare.MIN_POOL_MESSAGES


class Watched:
    """Endless mail that counts what was taken from it."""

    def __init__(self, raw):
        self.taken = 0
        self.raw = raw

    def __iter__(self):
        for self.taken in count(1):
            yield SourceMessage("x", self.raw)


def test_no_more_is_read_ahead_than_is_allowed():
    source = Watched(b"Subject: x\n\n" + bytes(200_000))
    examples = prepare.extract_examples(KEY, source, 2)
    for _ in range(prepare.MIN_POOL_MESSAGES + 100):
        next(examples)
    assert source.taken <= prepare.MIN_POOL_MESSAGES + 100 + 3 * BATCH_MESSAGES
    examples.close()  # what waits is not worked off


def test_a_killed_process_is_a_clear_error():
    examples = prepare.extract_examples(KEY, Watched(b"Subject: x\n\nx\n"), 2)
    for _ in range(prepare.MIN_POOL_MESSAGES + 1):
        next(examples)
    for pid in children_of_the_fork_server():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SpamguardError, match="was killed"):
        for _ in examples:
            pass


def children_of_the_fork_server():
    from multiprocessing import forkserver

    server = forkserver._forkserver._forkserver_pid
    return children(server)


FOR_EVER = """
import itertools
from spamguard.engine import prepare
from spamguard.sources import SourceMessage
if __name__ == "__main__":
    message = SourceMessage("x", b"Subject: x")
    examples = prepare.extract_examples(bytes(32), itertools.repeat(message), 2)
    for number, _ in enumerate(examples):
        if number == 1000:
            print("working", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_teacher(tmp_path, how):
    (tmp_path / "teach.py").write_text(FOR_EVER)
    teacher = subprocess.Popen(
        [sys.executable, tmp_path / "teach.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    with teacher:
        assert teacher.stdout.readline() == b"working\n"
        assert len(group(teacher.pid)) >= 4  # teacher, fork server, two at work
        teacher.send_signal(how)
        try:
            teacher.communicate(timeout=PATIENCE)
        finally:
            teacher.kill()
    deadline = time.monotonic() + PATIENCE
    while group(teacher.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group(teacher.pid) == []


def group(session):
    """Living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found
