"""The signed verdict: only its own key, message, class and id verify, and nobody else reads the
probability.
"""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.config.options import Action
from spamguard.keys import SignedVerdict, key_id, sign_verdict, verify_verdict
from spamguard.records import Verdict
from tests.unit.bayes.support import repeatable

KEY = b"k" * 32
DIGEST = b"d" * 16


def signed(
    label: str = "spam",
    log_odds: float = 6.5,
    action: Action = Action.TAG,
    name: str = "01J-x.y_z",
    **other: bytes,
) -> bytes:
    verdict = Verdict(label, 0.5, log_odds, {})
    return sign_verdict(other.get("key", KEY), verdict, action, name, other.get("digest", DIGEST))


def test_the_value_has_its_form() -> None:
    found = re.fullmatch(rb"spam; id=01J-x\.y_z; k=([0-9a-f]{8}); s=[A-Za-z0-9_-]{20}", signed())
    assert found
    assert found[1] == key_id(KEY) != key_id(b"another key")


@repeatable
@given(
    st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True),
    st.floats(-1000, 1000),
    st.sampled_from(Action),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.binary(max_size=64),
)
def test_what_was_signed_is_read_again(
    label: str, log_odds: float, action: Action, name: str, digest: bytes
) -> None:
    found = verify_verdict(KEY, signed(label, log_odds, action, name, digest=digest), digest)
    assert found is not None
    assert (found.label, found.action, found.id) == (label, action, name)
    assert found.log_odds == pytest.approx(
        min(max(log_odds, -32767 / 256), 32767 / 256), abs=1 / 512
    )
    assert found.probability == pytest.approx(1 / (1 + math.exp(-found.log_odds)))


def test_folding_and_blanks_do_no_harm() -> None:
    value = signed()
    folded = b"\r\n\t" + value.replace(b"; ", b";\r\n  ").replace(b"s=", b"s= ") + b" \r\n"
    plain = verify_verdict(KEY, value, DIGEST)
    assert plain is not None
    assert verify_verdict(KEY, folded, DIGEST) == plain
    assert verify_verdict(KEY, value.replace(b" ", b""), DIGEST) is not None


@pytest.mark.parametrize("byte", range(len(signed())))
def test_no_byte_can_be_changed(byte: int) -> None:
    value = signed()
    for other in b"aZ09_-;= \xff\0":
        changed = value[:byte] + bytes((other,)) + value[byte + 1 :]
        if changed.translate(None, b" ") != value.translate(None, b" "):
            assert verify_verdict(KEY, changed, DIGEST) is None


def test_another_key_message_class_or_id_does_not_verify() -> None:
    value = signed()
    assert verify_verdict(KEY, value, DIGEST) == SignedVerdict("spam", 6.5, Action.TAG, "01J-x.y_z")
    assert verify_verdict(b"other" * 6, value, DIGEST) is None
    assert (
        verify_verdict(b"other" * 6, value.replace(key_id(KEY), key_id(b"other" * 6)), DIGEST)
        is None
    )
    assert verify_verdict(KEY, value, b"e" * 16) is None
    assert verify_verdict(KEY, value.replace(b"spam;", b"ham;"), DIGEST) is None
    assert verify_verdict(KEY, value.replace(b"01J", b"02J"), DIGEST) is None


def test_the_border_between_label_and_id_is_sealed() -> None:
    value = signed("spam", name="ab")
    assert verify_verdict(KEY, value.replace(b"spam; id=ab", b"spama; id=b"), DIGEST) is None


def test_the_same_verdict_looks_different_under_every_id() -> None:
    """Who could compare masked payloads of two mails could tell whether the second was judged more
    spammy.
    """
    masked = {signed(name=f"id{number}")[-20:-16] for number in range(50)}
    assert len(masked) == 50


def test_an_action_that_is_not_known_is_no_signature() -> None:
    names = {action: signed(action=action) for action in Action}
    assert {verify_verdict(KEY, value, DIGEST).action for value in names.values()} == set(Action)


@repeatable
@given(st.binary(max_size=200))
def test_rubbish_is_no_signature(value: bytes) -> None:
    assert verify_verdict(KEY, value, DIGEST) is None
    assert verify_verdict(KEY, signed() + value, DIGEST) in (
        None,
        verify_verdict(KEY, signed(), DIGEST),
    )


def test_a_very_long_value_is_no_signature() -> None:
    assert verify_verdict(KEY, signed() + b"x" * 10_000_000, DIGEST) is None


@pytest.mark.parametrize(
    ("label", "name"),
    [("Spam", "x"), ("", "x"), ("a b", "x"), ("spam", ""), ("spam", "a b"), ("spam", "x" * 65)],
)
def test_what_the_field_cannot_hold_is_refused(label: str, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be signed"):
        sign_verdict(KEY, Verdict(label, 0.5, 0.0, {}), Action.TAG, name, DIGEST)
