"""The compiled code reads the same receipts as numpy, and refuses damaged ones alike."""

from __future__ import annotations

from random import Random

import numpy as np

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
