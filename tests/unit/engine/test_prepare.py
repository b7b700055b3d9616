"""Examples: one message at a time, and in batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from corpora.synthetic import generate
from spamguard import native
from spamguard.engine.prepare import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Example,
    ExampleReader,
    batch_by_size,
)
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.message import rewrite_header
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
def test_what_was_judged_is_not_read_again_to_be_taught(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_functions", None)
    preparer = ExampleReader(KEY)
    expected = [preparer.read_example(raw) for raw in MAIL]
    reads = Counter[str]()
    read, repeating = FeatureExtractor.read_batch, FeatureExtractor.read_with_repeats
    monkeypatch.setattr(
        FeatureExtractor, "read_batch", lambda *given: reads.update(["read"]) or read(*given)
    )
    monkeypatch.setattr(
        FeatureExtractor,
        "read_with_repeats",
        lambda *given: reads.update(["judged"]) or repeating(*given),
    )
    for raw, same in zip(MAIL, expected, strict=True):
        assert not set(same.features.tokens.tolist()) ^ set(
            preparer.read_features(raw).tokens.tolist()
        )
        assert_same(preparer.read_example(bytes(bytearray(raw))), same)
    assert reads == {"judged": len(MAIL)}
    assert_same(preparer.read_example(MAIL[0]), expected[0])  # not the one that was judged last
    assert reads["read"] == 1


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
        monkeypatch.setattr(native, "_functions", None)
    preparer = ExampleReader(KEY)
    for use in (
        preparer.read_features,
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


def test_nothing_large_is_held_because_it_was_judged() -> None:
    preparer = ExampleReader(KEY)
    preparer.read_features(MAIL[1])
    preparer.read_features(large := MAIL[2] + b"x" * (1 << 20))
    assert preparer._last is None
    assert preparer.read_example(large).digest == preparer.digest(large)
