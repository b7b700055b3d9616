"""The codec gives back what it was given, stays near the entropy, and refuses every damaged blob
with a LedgerError.
"""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.records import Features

fixed = settings(derandomize=True, deadline=None)


def features(tokens, traits=(1, 2, 3), numbers=(-5, 700)) -> Features:
    return Features(
        np.array(sorted(tokens), np.uint32), np.array(traits, np.uint8), np.array(numbers, np.int16)
    )


def random_features(count: int, seed: int = 1) -> Features:
    return features(
        np.unique(np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32))
    )


def assert_same(one: Features, other: Features) -> None:
    for name in ("tokens", "traits", "numbers"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@fixed
@given(
    st.sets(st.integers(0, 2**32 - 1), max_size=60),
    st.lists(st.integers(0, 255), max_size=20),
    st.lists(st.integers(-(2**15), 2**15 - 1), max_size=20),
)
def test_roundtrip(tokens, traits, numbers):
    given_features = features(tokens, traits, numbers)
    assert_same(codec.unpack(codec.pack(given_features)), given_features)


def test_receipts_of_any_size_are_unpacked_together():
    random = np.random.default_rng(1)
    sizes = (0, 1, 8, 64, 959, 960, 961, 962, 5001, 0)
    many = [features(random.choice(1 << 20, size, replace=False).tolist()) for size in sizes]
    columns = codec.unpack_tokens(list(map(codec.pack, many)))
    for number, wanted in enumerate(many):
        tokens = columns.tokens[columns.offsets[number] : columns.offsets[number + 1]]
        assert np.array_equal(tokens, wanted.tokens)


@pytest.mark.parametrize("tokens", [[2, 1], [1, 1]])
def test_tokens_out_of_order_are_not_packed(tokens):
    with pytest.raises(ValueError, match="sorted"):
        codec.pack(
            Features(np.array(tokens, np.uint32), np.zeros(0, np.uint8), np.zeros(0, np.int16))
        )


def checked(body: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(body)) + body


@pytest.mark.slow
@settings(fixed, max_examples=400)
@given(st.integers(0, 2**32 - 1), st.binary(max_size=80), st.booleans())
def test_crafted_bytes_with_a_right_checksum_raise_nothing_but_ledger_error(
    count, rest, consistent
):
    count = count % 8 if consistent else count
    rest = rest.ljust(3 * count + 33, b"\x55")[: 3 * count + 33] if consistent else rest
    packed = checked(struct.pack("<IBBB", count, 1, 0, 0) + rest)
    try:
        unpacked = codec.unpack(packed)
    except LedgerError:
        return
    assert codec.pack(unpacked) == packed


def test_a_bit_beyond_the_bitmap_is_refused():
    packed = codec.pack(features([1]))
    body = bytearray(packed[4:])
    body[-33:] = bytes(32) + b"\x80"  # its only set bit where the last byte is but filled up
    with pytest.raises(LedgerError, match="beyond"):
        codec.unpack(checked(bytes(body)))


@pytest.mark.parametrize("low", [(6, 5), (5, 5)], ids=["falling", "twice"])
def test_tokens_out_of_order_are_refused(low):
    body = codec.pack(features([5, 6], (), ()))[4:]
    planes = body[:7] + np.array(low, "<u2").tobytes() + body[11:]
    with pytest.raises(LedgerError, match="order"):
        codec.unpack(checked(planes))


def test_receipts_of_different_shape_are_not_mixed():
    with pytest.raises(LedgerError, match="versions"):
        codec.unpack_tokens([codec.pack(features([1])), codec.pack(features([1], traits=(1,)))])


@fixed
@given(st.lists(st.floats(-127, 127), max_size=12))
def test_scores_roundtrip_to_half_a_step(scores):
    assert codec.unpack_scores(codec.pack_scores(scores)) == pytest.approx(scores, abs=1 / 512)


def test_scores_are_clipped_and_damage_is_refused():
    assert codec.unpack_scores(codec.pack_scores([float("inf"), -1e9, 0.5])) == (
        32767 / 256,
        -32767 / 256,
        0.5,
    )
    assert codec.pack_scores([]) == b""
    assert codec.unpack_scores(b"") == ()
    with pytest.raises(LedgerError):
        codec.unpack_scores(b"abc")
