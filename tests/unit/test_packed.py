"""What Dovecot has packed, within bounds; how it is read in folders `test_reading` tests."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest
import zstandard

from spamguard.packed import UnreadableError, is_packed, unpacked

RAW = b"Subject: x\n\n" + b"hello\n" * 1000
MOST = 1 << 20


def test_what_is_not_packed_is_as_it_is():
    assert unpacked(RAW, MOST) == RAW
    assert not is_packed(RAW)
    assert is_packed(gzip.compress(RAW))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_what_is_packed_is_bounded(pack):
    assert unpacked(pack(b"x" * 10_000_000), 1000) == b"x" * 1000
    assert unpacked(pack(RAW[:100]) + pack(RAW[100:]), MOST) == RAW
    with pytest.raises(UnreadableError, match="more than 16 pieces"):  # never a part for the whole
        unpacked(b"".join(pack(b"x") for _ in range(50)) + pack(RAW), MOST)


def test_zstd():
    assert unpacked(zstandard.compress(RAW), MOST) == RAW
    assert unpacked(zstandard.compress(RAW[:100]) + zstandard.compress(RAW[100:]), MOST) == RAW
    with pytest.raises(UnreadableError, match="damaged"):
        unpacked(zstandard.compress(RAW)[:4] + b"\xff" * 50, MOST)
    assert unpacked(zstandard.compress(b"x" * 10_000_000), 1000) == b"x" * 1000
