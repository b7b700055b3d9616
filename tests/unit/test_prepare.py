"""What teaching needs of a message, by key and nothing else."""

from __future__ import annotations

from corpora.synthetic import generate
from spamguard.prepare import Preparer
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


def test_different_messages_have_different_names() -> None:
    preparer = Preparer(KEY)
    assert len({preparer.digest(raw) for raw in MAIL}) == len(MAIL)
    assert {len(preparer.digest(raw)) for raw in (*MAIL, b"", b"\0")} == {16}


def test_a_message_is_recognised_after_transport() -> None:
    preparer = Preparer(KEY)
    for raw in MAIL:
        delivered = (b"Received: from a by b\nX-Spam-Status: No\n" + raw).replace(b"\n", b"\r\n")
        assert preparer.digest(delivered) == preparer.digest(raw)
