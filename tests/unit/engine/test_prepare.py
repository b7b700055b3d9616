"""Examples: one message at a time, in batches, and from much mail on all cores."""

from __future__ import annotations

import os
import signal
from itertools import count

import numpy as np
import pytest

from corpora import synthetic
from corpora.synthetic import generate
from spamguard.engine import prepare
from spamguard.engine.prepare import (
    BATCH_MESSAGES,
    ExampleReader,
)
from spamguard.errors import SpamguardError
from spamguard.mail.message import rewrite_header
from spamguard.sources import SourceMessage
from tests.support.processes import children
from tests.unit.filters import KEY

MAIL = [raw for _, raw in generate(5, 3)]


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


@pytest.mark.slow
def test_many_go_through_a_pool_in_order():
    messages = mail(prepare.MIN_POOL_MESSAGES + 150)
    assert_ready(prepare.extract_examples(KEY, messages, 2), messages)


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
