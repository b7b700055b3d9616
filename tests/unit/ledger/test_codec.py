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


@pytest.mark.parametrize("count", [0, 1, 959, 960, 961, 962, 1200, 5001])
def test_roundtrip_on_both_sides_of_the_change_of_width(count):
    given_features = features(
        np.random.default_rng(3).choice(2**32, count, replace=False) if count else ()
    )
    assert len(given_features.tokens) == count
    assert_same(codec.unpack(codec.pack(given_features)), given_features)


@pytest.mark.parametrize(
    "tokens",
    [range(5000), range(2**32 - 5000, 2**32), [0, 2**32 - 1], range(0, 2**32, 2**20)],
    ids=["lowest", "highest", "both ends", "even"],
)
def test_roundtrip_of_extreme_distributions(tokens):
    given_features = features(tokens)
    assert_same(codec.unpack(codec.pack(given_features)), given_features)


def test_batch_of_mixed_sizes_equals_one_by_one():
    given_features = [
        random_features(count, count) for count in (0, 300, 2500, 0, 960, 961, 1, 1500, 0)
    ]
    columns = codec.unpack_tokens([codec.pack(one) for one in given_features])
    assert columns.offsets.dtype == np.int64
    assert columns.offsets[-1] == len(columns.tokens)
    for index, one in enumerate(given_features):
        tokens = columns.tokens[columns.offsets[index] : columns.offsets[index + 1]]
        assert_same(Features(tokens, columns.traits[index], columns.numbers[index]), one)


def test_empty_batch():
    columns = codec.unpack_tokens([])
    assert columns.tokens.shape == (0,)
    assert columns.offsets.tolist() == [0]
    assert columns.traits.shape == columns.numbers.shape == (0, 0)


def test_size_of_a_usual_message():
    assert len(codec.pack(random_features(1200))) < 3750
    assert len(codec.pack(random_features(600))) < 2000


@pytest.mark.parametrize("tokens", [[2, 1], [1, 1]])
def test_tokens_out_of_order_are_not_packed(tokens):
    with pytest.raises(ValueError, match="sorted"):
        codec.pack(
            Features(np.array(tokens, np.uint32), np.zeros(0, np.uint8), np.zeros(0, np.int16))
        )


@pytest.mark.parametrize("count", [5, 1000])
def test_every_truncation_and_every_flipped_bit_is_refused(count):
    packed = codec.pack(random_features(count))
    steps = 1 if count < 10 else 97
    for end in range(0, len(packed), steps):
        with pytest.raises(LedgerError):
            codec.unpack(packed[:end])
    for bit in range(0, 8 * len(packed), steps):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerError):
            codec.unpack(bytes(damaged))


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


def test_a_batch_names_a_damaged_receipt_even_when_the_set_bits_add_up():
    two, one = codec.pack(features([5, 6])), codec.pack(features([7]))
    swapped = [checked(two[4:-33] + one[-33:]), checked(one[4:-33] + two[-33:])]
    with pytest.raises(LedgerError, match="bitmap"):
        codec.unpack_tokens(swapped)


def test_receipts_of_different_shape_are_not_mixed():
    with pytest.raises(LedgerError, match="versions"):
        codec.unpack_tokens([codec.pack(features([1])), codec.pack(features([1], traits=(1,)))])


def test_a_newer_format_asks_for_an_update():
    body = bytearray(codec.pack(features([1]))[4:])
    body[4] = 2
    with pytest.raises(LedgerError, match="update"):
        codec.check_receipt(checked(bytes(body)))


def test_check_accepts_what_was_packed():
    codec.check_receipt(codec.pack(random_features(1000)))


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
    with pytest.raises(ValueError, match="numbers"):
        codec.pack_scores([float("nan")])
