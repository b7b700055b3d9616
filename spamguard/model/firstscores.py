"""What the experts said of a message before it was taught, as its receipt keeps it: with a mark of the classes that they chose among.

Pure. Must never take scores of some classes for those of others: classes come and go, and as many need not be the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from spamguard.bayes.experts import EXPERTS, STEPS, Integers
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.ledger import codec

_ROW = 2 * len(EXPERTS)  # bytes: of one class against ham
_MARK = 4  # bytes behind the rows where there are further classes


def packed(scores: Integers, classes: Sequence[str]) -> bytes:
    """scores: (R, E), in the experts' own steps, as `blocks.scores` of these classes."""
    return codec.pack_scores((scores / STEPS).ravel().tolist()) + _mark(classes)


def rows_of(scores: bytes, classes: Sequence[str]) -> bytes:
    """The rows of all classes but the first, if they are of exactly these classes; empty if not."""
    mark = _mark(classes)
    size = _ROW * (len(classes) if mark else 1)
    return scores[: _ROW * (len(classes) - 1)] if len(scores) == size + len(mark) and scores[size:] == mark else b""


def of_unwanted(scores: bytes) -> bytes:
    """The row of unwanted mail against wanted, which is there whatever the classes; empty if these are no scores of ours."""
    size = len(scores) - len(scores) % _ROW
    if len(scores) == size:
        return scores[:_ROW]  # the only one; or, from before there was a mark, spam against ham
    return scores[size - _ROW : size] if size and len(scores) - size == _MARK else b""


def _mark(classes: Sequence[str]) -> bytes:
    further = classes[len(BASE_CLASSES) :]
    return struct.pack("<I", zlib.crc32("\n".join(further).encode())) if further else b""
