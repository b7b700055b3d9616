"""What teaching needs of a message, by key and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from corpora.synthetic import generate
from spamguard import kernel
from spamguard.mail.extract import Extractor
from spamguard.mail.rewrite import rewritten_head
from spamguard.prepare import CHUNK, CHUNK_BYTES, Preparer, Teaching, chunks
from tests.unit.filters import KEY

MAIL = [raw for _, raw in generate(5, 3)]


def test_the_same_key_prepares_alike_and_another_one_has_nothing_in_common() -> None:
    one, same, other = Preparer(KEY), Preparer(KEY), Preparer(KEY[::-1])
    for raw in MAIL:
        ready = one.ready(raw)
        assert ready.digest == one.digest(raw) == same.ready(raw).digest != other.digest(raw)
        assert ready.features.tokens.tolist() == same.ready(raw).features.tokens.tolist()
        strangers = other.ready(raw).features
        assert not set(ready.features.tokens.tolist()) & set(strangers.tokens.tolist())
        assert ready.features.numbers.tolist() == strangers.numbers.tolist()


@pytest.mark.parametrize(
    "subject", [b"Subject: hello\n", b"Subject:\n", b"", b"subject : two\n lines\n", b"Subject: =?utf-8?q?gr=C3=BC?=\n"]
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_what_was_put_before_the_subject_is_not_learnt(subject: bytes, line_end: bytes) -> None:
    raw = b"From: a@example.org\n" + subject + b"\nSubject: [SPAM] in the body\n"
    head, replaced = rewritten_head(raw.replace(b"\n", b"\r\n"), [b"X-Spam-Flag: YES"], [], b"[SPAM]")
    marked = head + raw.replace(b"\n", b"\r\n")[replaced:]
    assert b"[SPAM]" in marked[: -len(b"Subject: [SPAM] in the body\r\n")]
    preparer = Preparer(KEY)
    learnt, sent = preparer.ready(marked.replace(b"\r\n", line_end)), preparer.ready(raw)
    assert learnt.digest == sent.digest == preparer.digest(marked)
    if subject:  # a message without a subject keeps the empty one it was given
        assert learnt.features.tokens.tolist() == sent.features.tokens.tolist()


_KIND = b"Content-Type: multipart/mixed; boundary=b\n\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"Subject: x\nX-Fill: " + b"y" * ((64 << 10) - 26) + b"\nMessage-ID: <1@example.org>\n\nbody\n",  # cut within a name
        b"Subject: x\n" + b"X-Fill: y\n" * 800 + b"Message-ID: <1@example.org>\n\nbody\n",
        b"Attention: " + b"y" * 70_000 + b"\nMessage-ID: <1@example.org>\n\nbody\n",  # like a text without a header, as far as it is read
        _KIND + b"--b\n\none\n" + b"--bb\n" * 2500 + b"--b\n\ntwo\n--b--\n",
        _KIND + b"--b\n\none\n" * 300 + b"--b--\n",
    ],
)
def test_a_message_that_is_not_read_to_its_end_has_one_name_all_the_same(raw: bytes) -> None:
    preparer = Preparer(KEY)
    assert preparer.ready(raw).digest == preparer.named(raw, b"")[0].digest == preparer.digest(raw)


def test_different_messages_have_different_names() -> None:
    preparer = Preparer(KEY)
    assert len({preparer.digest(raw) for raw in MAIL}) == len(MAIL)
    assert {len(preparer.digest(raw)) for raw in (*MAIL, b"", b"\0")} == {16}


def test_a_message_is_recognised_after_transport() -> None:
    preparer = Preparer(KEY)
    for raw in MAIL:
        delivered = (b"Received: from a by b\nX-Spam-Status: No\n" + raw).replace(b"\n", b"\r\n")
        assert preparer.digest(delivered) == preparer.digest(raw)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([9] * (2 * CHUNK + 1), [CHUNK, CHUNK, 1]),
        ([9, CHUNK_BYTES, 9], [2, 1]),
        ([CHUNK_BYTES // 2] * 4, [2, 2]),
        ([CHUNK_BYTES // 2 - 1] * 4, [3, 1]),
    ],
)
def test_chunks_are_not_many_and_not_much(sizes: list[int], lengths: list[int]) -> None:
    items = [(number, bytes(size)) for number, size in enumerate(sizes)]
    found = list(chunks(items, lambda item: item[1]))
    assert [len(chunk) for chunk in found] == lengths
    assert [item for chunk in found for item in chunk] == items


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_judged_is_not_read_again_to_be_taught(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kernel, "_functions", None)
    preparer = Preparer(KEY)
    expected = [preparer.ready(raw) for raw in MAIL]
    reads = Counter[str]()
    read, repeating = Extractor.read, Extractor.repeating
    monkeypatch.setattr(Extractor, "read", lambda *given: reads.update(["read"]) or read(*given))
    monkeypatch.setattr(Extractor, "repeating", lambda *given: reads.update(["judged"]) or repeating(*given))
    for raw, same in zip(MAIL, expected, strict=True):
        assert not set(same.features.tokens.tolist()) ^ set(preparer.judged(raw).tokens.tolist())
        assert_same(preparer.ready(bytes(bytearray(raw))), same)
    assert reads == {"judged": len(MAIL)}
    assert_same(preparer.ready(MAIL[0]), expected[0])  # not the one that was judged last
    assert reads["read"] == 1


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("raw", ["text", None, 12, bytearray(MAIL[0]), [MAIL[0]], iter(MAIL)], ids=lambda raw: type(raw).__name__)
def test_what_is_no_bytes_is_told_as_that(raw: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kernel, "_functions", None)
    preparer = Preparer(KEY)
    for use in (preparer.judged, preparer.ready, preparer.digest, lambda raw: preparer.named(raw, b"")):
        with pytest.raises(TypeError, match=f"a message is bytes, as it came, and this is {type(raw).__name__}"):
            use(raw)


def assert_same(one: Teaching, other: Teaching) -> None:
    assert one.digest == other.digest
    for name in ("tokens", "traits", "numbers"):
        assert getattr(one.features, name).tolist() == getattr(other.features, name).tolist()


def test_nothing_large_is_held_because_it_was_judged() -> None:
    preparer = Preparer(KEY)
    preparer.judged(MAIL[1])
    preparer.judged(large := MAIL[2] + b"x" * (1 << 20))
    assert preparer._last is None
    assert preparer.ready(large).digest == preparer.digest(large)
