"""Packs the counted features of a message into a receipt, and unpacks receipts.

Hashes are uniform, so general compressors gain nothing, but their order need not be stored. The
code is that of Elias and Fano for sorted integers (P. Elias, "Efficient storage and retrieval by
content and address of static files", JACM 1974): the low bits of each token as they are, the high
bits as a bitmap in which the i-th set bit stands at high[i] + i. The low part is cut in planes of
whole bytes or half bytes, because those decode in a few array operations.

Which width of the low part? Bytes of a receipt of n uniform tokens, 12 traits and 10 numbers
(entropy: log2 of "2**32 choose n", tokens only; zlib: level 6 over 32-bit deltas, tokens only):

    n        entropy    24 bits    20 bits    zlib       choice
    300          945      1,013      1,343    1,126      24
    600        1,815      1,950      2,130    2,125      24
    1,200      3,481      3,825      3,705    4,101      20
    2,500      6,923      7,888      7,118    8,329      20

The two widths cross at 960 tokens. Exact widths (21, 22, 23) would save another 1 to 3 % and cost
slower unpacking.

Layout, little-endian: checksum (CRC-32 of the rest), number of tokens, format, number of traits,
number of numbers; traits (1 byte each); numbers (2 bytes each); bits 0-15 of the tokens (2 bytes
each); bits 16-23 (1 byte each), or 16-19 (two to a byte, low half first); bitmap of the high bits
(bit 0 first, filled to a whole byte).

Must never know mail or classes, and never raise anything but `LedgerError` on damaged bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.errors import LedgerError
from spamguard.records import Features

_FORMAT = 1
_HEADER = struct.Struct("<IIBBB")
_CHECKSUM_BYTES = 4
_MAX_24_BIT_TOKENS = 960  # with more tokens, 20 low bits take less room (see above)
_SCORE_STEPS = 256  # per nat
_MAX_SCORE_STEPS = 32767  # of an int16: log-odds are clipped to about ±128


class ReceiptColumns(NamedTuple):
    """The features of m receipts.

    tokens: (total,); receipt i has tokens[offsets[i]:offsets[i + 1]]. offsets: (m + 1,). traits:
    (m, T). numbers: (m, D).
    """

    tokens: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


def pack(features: Features) -> bytes:
    """The features as a receipt, about 3.1 bytes for each token.

    ValueError: the tokens are not sorted and unique.
    """
    tokens, traits, numbers = features.tokens, features.traits, features.numbers
    if np.any(tokens[1:] <= tokens[:-1]):
        raise ValueError("tokens must be sorted and unique")
    count = len(tokens)
    low_bits, _, bitmap_bytes = _layout(count)
    middle = (tokens >> np.uint32(16)).astype(np.uint8)
    if low_bits == 20:
        middle = np.append(middle & np.uint8(15), np.uint8(0))[: count + count % 2]
        middle = middle[::2] | middle[1::2] << np.uint8(4)
    bitmap = np.zeros(8 * bitmap_bytes, np.bool_)
    bitmap[(tokens >> np.uint32(low_bits)).astype(np.int64) + np.arange(count)] = True
    body = b"".join(
        (
            struct.pack("<IBBB", count, _FORMAT, len(traits), len(numbers)),
            traits.astype(np.uint8, copy=False).tobytes(),
            numbers.astype("<i2", copy=False).tobytes(),
            tokens.astype("<u2").tobytes(),
            middle.tobytes(),
            np.packbits(bitmap, bitorder="little").tobytes(),
        )
    )
    return struct.pack("<I", zlib.crc32(body)) + body


def _layout(count: int) -> tuple[int, int, int]:
    """How many low bits each token has; bytes of middle plane and bitmap, in which every high part
    takes a bit too, whether a token has it or not.
    """
    if count <= _MAX_24_BIT_TOKENS:
        return 24, count, (count + 256 + 7) // 8
    return 20, (count + 1) // 2, (count + 4096 + 7) // 8


def unpack(packed: bytes) -> Features:
    """The features of one receipt. LedgerError: it is damaged."""
    count, traits_end, numbers_end, low_end, middle_end = check_receipt(packed)
    body = np.frombuffer(packed, np.uint8, offset=_HEADER.size)
    ones = np.flatnonzero(np.unpackbits(body[middle_end:], bitorder="little").view(np.bool_))
    if len(ones) != count:
        raise _damage_error("its bitmap does not fit its tokens")
    tokens = ones.astype("<u4")
    tokens -= np.arange(count, dtype=np.uint32)
    low_bits, middle = _layout(count)[0], body[low_end:middle_end]
    if low_bits == 20:
        middle = np.column_stack((middle & np.uint8(15), middle >> np.uint8(4))).ravel()[:count]
    if count and tokens[-1] >> np.uint32(32 - low_bits):
        raise _damage_error("a bit stands beyond its bitmap")
    # Little-endian: the first two bytes of a token are its low plane, the third begins with its
    # middle bits.
    tokens <<= np.uint32(low_bits)
    tokens.view("<u2")[::2] = body[numbers_end:low_end].view("<u2")
    tokens.view(np.uint8)[2::4] |= middle
    if not (tokens[1:] > tokens[:-1]).all():
        raise _damage_error("its tokens are out of order")
    return Features(tokens, body[:traits_end], body[traits_end:numbers_end].view("<i2"))


def unpack_tokens(packed: Sequence[bytes]) -> ReceiptColumns:
    """The features of some receipts of one extractor version.

    LedgerError: a receipt is damaged, or they differ in shape.
    """
    features = list(map(unpack, packed))
    offsets = np.cumsum([0, *(len(each.tokens) for each in features)])
    tokens = np.concatenate([each.tokens for each in features])
    try:
        traits = np.stack([each.traits for each in features])
        numbers = np.stack([each.numbers for each in features])
    except ValueError as error:
        raise LedgerError(
            "receipts of different extractor versions cannot be unpacked together: ask for one "
            "version"
        ) from error
    return ReceiptColumns(tokens, offsets, traits, numbers)


def check_receipt(packed: bytes) -> tuple[int, int, int, int, int]:
    """The number of tokens, and where traits, numbers, low and middle plane end behind the head.
    LedgerError: format, length or checksum is wrong.
    """
    if len(packed) < _HEADER.size:
        raise _damage_error("it is too short")
    checksum, count, form, traits, numbers = _HEADER.unpack_from(packed)
    if form != _FORMAT:
        raise LedgerError(
            f"a receipt has format {form}, this program reads {_FORMAT}: update spamguard"
        )
    numbers_end = traits + 2 * numbers
    low_end = numbers_end + 2 * count
    _, middle_bytes, bitmap_bytes = _layout(count)
    middle_end = low_end + middle_bytes
    if len(packed) != _HEADER.size + middle_end + bitmap_bytes:
        raise _damage_error("its length is wrong")
    if zlib.crc32(memoryview(packed)[_CHECKSUM_BYTES:]) != checksum:
        raise _damage_error("its checksum is wrong")
    return count, traits, numbers_end, low_end, middle_end


def _damage_error(damage: str) -> LedgerError:
    # If the receipt was replaced since, only a rebuild removes what it had taught.
    return LedgerError(
        f"a receipt in the ledger is damaged ({damage}): run `spamguard rebuild`; if that fails, "
        "take that lesson back (`forget`, `undo`) and run it again, or restore a backup"
    )


def pack_scores(scores: Sequence[float]) -> bytes:
    """Log-odds as int16 in steps of 1/256 nat, clipped to ±128."""
    steps = np.asarray(scores, np.float64) * _SCORE_STEPS
    steps = np.rint(np.clip(steps, -_MAX_SCORE_STEPS, _MAX_SCORE_STEPS))
    return steps.astype("<i2").tobytes()


def unpack_scores(packed: bytes) -> tuple[float, ...]:
    """The log-odds that were packed, to 1/512 nat. LedgerError: the bytes are damaged."""
    if len(packed) % 2:
        raise _damage_error("its scores are cut off")
    return tuple((np.frombuffer(packed, "<i2") / _SCORE_STEPS).tolist())
