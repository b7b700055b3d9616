"""The installation's key: one file of its own, readable by its owner only, never replaced.

All hashes are keyed by it. Whoever loses it has to teach again, so it must be in every backup and must never be made anew beside a
ledger that needs the old one.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from spamguard.errors import LedgerError, remedy
from spamguard.files import named_once_whole

_SIZE = 32


def load(path: Path, *, create: bool) -> bytes:
    """The 32 bytes of the key; made when missing and `create`. LedgerError: missing, unreadable or not a key."""
    try:
        with path.open("rb") as file:
            key = file.read(_SIZE + 1)  # whatever lies there, however long it is
    except FileNotFoundError:
        if not create:
            raise LedgerError(f"{path}: the key is missing but the ledger beside it needs it: restore it from a backup") from None
        return store(path, secrets.token_bytes(_SIZE))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror}): run as the user who owns it") from error
    if len(key) != _SIZE:
        raise LedgerError(f"{path}: is not a key of {_SIZE} bytes: restore it from a backup")
    return key


def store(path: Path, key: bytes) -> bytes:
    """Keep a key where there is none; complete before it has its name, and of two at once the first counts. The key that counts."""
    try:
        with suppress(FileExistsError), named_once_whole(path) as file:  # else the other one's key counts
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        told = remedy(error, "choose a state directory you may write to")
        raise LedgerError(f"{path}: cannot be written ({error.strerror}): {told}") from error
    return load(path, create=False)


def derived(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, 32 bytes."""
    return blake2b(purpose, key=key, digest_size=_SIZE).digest()


def fingerprint(key: bytes) -> str:
    """What names a key without telling it."""
    return blake2b(b"fingerprint", key=key, digest_size=8).hexdigest()
