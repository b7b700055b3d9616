"""One message out of an open file of a Maildir: whole, unpacked, and within bounds; or why not.

Must never read more than `MOST` bytes, unpack more than that, or take for a message what is still being written.
"""

from __future__ import annotations

import os
import re
import time

from spamguard.errors import SpamguardError
from spamguard.packed import DamagedError, UnreadableError, unpacked

MOST = 64 << 20  # bytes; what lies beyond is not read: two messages that differ only there are taken for one
SETTLED_SECONDS = 1.0  # without a change, after which a file is whole although its name does not tell its size
_ABANDONED = 60.0  # seconds, after which an incomplete file will not be completed
_SIZE = re.compile(r",S=([0-9]{1,15})(?=[,:]|$)")  # Dovecot's note of how long the message is, unpacked


class UnfinishedError(SpamguardError):
    """The file is still being written: look again."""


def read(descriptor: int, name: str) -> bytes:
    """The message in a file, at most `MOST` bytes of it. name: of the file. UnfinishedError, UnreadableError, OSError."""
    before = os.fstat(descriptor)
    packed = _contents(descriptor)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnfinishedError(f"{name}: is being written")
    age = abs(time.time() - after.st_mtime)  # a clock that was set back makes nothing young for ever
    try:
        raw = unpacked(packed, MOST)
    except DamagedError:
        if age < _ABANDONED:
            raise UnfinishedError(f"{name}: is being written") from None
        raise
    _check_whole(raw, name, age)
    return raw


def _check_whole(raw: bytes, name: str, age: float) -> None:
    told = _SIZE.search(name)
    missing = told is not None and len(raw) < min(int(told[1]), MOST)
    if (missing or not raw) and age < _ABANDONED:
        raise UnfinishedError(f"{name}: is being written")
    if told is None and age < SETTLED_SECONDS:
        raise UnfinishedError(f"{name}: may still be written")
    if not raw:
        raise UnreadableError("is empty")


def _contents(descriptor: int) -> bytes:
    found = bytearray()
    while len(found) < MOST and (piece := os.read(descriptor, min(1 << 20, MOST - len(found)))):
        found += piece
    return bytes(found)
