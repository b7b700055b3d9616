"""What Dovecot has packed, within bounds; how it is read in folders `test_reading` tests."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest
import zstandard

from spamguard.sources import UnreadableFileError, decompress, is_compressed

RAW = b"Subject: x\n\n" + b"hello\n" * 1000
MOST = 1 << 20


def test_what_is_not_packed_is_as_it_is():
    assert decompress(RAW, MOST) == RAW
    assert not is_compressed(RAW)
    assert is_compressed(gzip.compress(RAW))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_what_is_packed_is_bounded(pack):
    assert decompress(pack(b"x" * 10_000_000), 1000) == b"x" * 1000
    assert decompress(pack(RAW[:100]) + pack(RAW[100:]), MOST) == RAW
    with pytest.raises(
        UnreadableFileError, match="more than 16 pieces"
    ):  # never a part for the whole
        decompress(b"".join(pack(b"x") for _ in range(50)) + pack(RAW), MOST)


def test_zstd():
    assert decompress(zstandard.compress(RAW), MOST) == RAW
    assert decompress(zstandard.compress(RAW[:100]) + zstandard.compress(RAW[100:]), MOST) == RAW
    with pytest.raises(UnreadableFileError, match="damaged"):
        decompress(zstandard.compress(RAW)[:4] + b"\xff" * 50, MOST)
    assert decompress(zstandard.compress(b"x" * 10_000_000), 1000) == b"x" * 1000
