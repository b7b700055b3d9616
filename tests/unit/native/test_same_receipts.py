"""The compiled code reads the same receipts as numpy, and refuses damaged ones alike."""

from __future__ import annotations

import struct
import zlib
from random import Random

import numpy as np
import pytest

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.records import Features
from tests.unit.native.both import both, needs_kernel

pytestmark = needs_kernel
SIZES = (0, 1, 2, 7, 8, 63, 64, 65, 500, 959, 960, 961, 962, 1200, 5001)


def packed(count: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    most = 1 << int(random.integers(14, 33))  # crowded at the bottom, or all over
    tokens = np.unique(random.integers(0, most, count, dtype=np.uint64)).astype(np.uint32)
    return codec.pack(
        Features(tokens, np.array((1, 2, 3), np.uint8), np.array((-5, 700), np.int16))
    )


def answer(receipts: list[bytes]) -> object:
    try:
        unpacked = codec.unpack_tokens(receipts)
    except LedgerError as error:
        return str(error)
    return [(column.tolist(), column.dtype) for column in unpacked]


def test_whole_receipts() -> None:
    random = Random(1)
    for seed in range(100):
        receipts = [
            packed(random.choice(SIZES), seed + number) for number in range(random.randrange(6))
        ]
        compiled, plain = both(lambda receipts=receipts: answer(receipts))
        assert compiled == plain
        assert isinstance(compiled, list) or not receipts


def damaged_under_a_right_checksum(random: Random, receipt: bytes) -> bytes:
    body = bytearray(receipt[4:])
    for _ in range(random.randint(1, 4)):
        body[random.randrange(7, len(body))] ^= 1 << random.randrange(8)
    return struct.pack("<I", zlib.crc32(body)) + bytes(body)


@pytest.mark.parametrize("count", [1, 64, 700, 1300])
def test_damaged_receipts(count: int) -> None:
    random = Random(count)
    refused = 0
    for seed in range(150):
        receipts = [
            packed(9, 1),
            damaged_under_a_right_checksum(random, packed(count, seed)),
            packed(1000, 2),
        ]
        compiled, plain = both(lambda receipts=receipts: answer(receipts))
        assert compiled == plain
        refused += isinstance(compiled, str)
    assert refused > 10
