"""The installation's key: one file of its own, readable by its owner only, never replaced.

All hashes are keyed by it. Whoever loses it has to teach again, so it must be in every backup and
must never be made anew beside a ledger that needs the old one.

Our own verdict in a header field, signed: `class; id=…; k=…; s=…`. Pure.

Only who holds the installation's key can write one that counts, for one message only. Class and id
are in clear; the log-odds and what was done are masked, since the exact probability would tell
spammers how to write. Must never believe anything before its tag was checked, and never raise on
what a message brings along.

Names of messages on their way through: in the log, in X-Spamguard, in the history and in the
quarantine.

Pure: the clock and the dice are the caller's. Must never let anything pass for a name that means
something to a file system.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from base64 import b32hexdecode, urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from itertools import product
from math import exp
from operator import xor
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Action
from spamguard.errors import LedgerError, remedy
from spamguard.records import Verdict
from spamguard.storage import create_atomically

_KEY_BYTES = 32


def load_key(path: Path, *, create: bool) -> bytes:
    """The 32 bytes of the key; made when missing and `create`. LedgerError: missing, unreadable or
    not a key.
    """
    try:
        with path.open("rb") as file:
            key = file.read(_KEY_BYTES + 1)  # whatever lies there, however long it is
    except FileNotFoundError:
        if not create:
            raise LedgerError(
                f"{path}: the key is missing but the ledger beside it needs it: restore it from a backup"
            ) from None
        return store_key(path, secrets.token_bytes(_KEY_BYTES))
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be read ({error.strerror}): run as the user who owns it"
        ) from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(f"{path}: is not a key of {_KEY_BYTES} bytes: restore it from a backup")
    return key


def store_key(path: Path, key: bytes) -> bytes:
    """Keep a key where there is none; complete before it has its name, and of two at once the first
    counts. The key that counts.
    """
    try:
        with (
            suppress(FileExistsError),
            create_atomically(path) as file,
        ):  # else the other one's key counts
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        told = remedy(error, "choose a state directory you may write to")
        raise LedgerError(f"{path}: cannot be written ({error.strerror}): {told}") from error
    return load_key(path, create=False)


def derive_key(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, 32 bytes."""
    return blake2b(purpose, key=key, digest_size=_KEY_BYTES).digest()


def key_fingerprint(key: bytes) -> str:
    """What names a key without telling it."""
    return blake2b(b"fingerprint", key=key, digest_size=8).hexdigest()


_STEPS_PER_NAT = 256  # per nat
_MAX_STEPS = 32767  # of an int16: log-odds are clipped to about +-128
_PAYLOAD = struct.Struct(">hB")  # log-odds, action
_TAG_BYTES = 12
_ACTION_CODES = {
    Action.TAG: 0,
    Action.QUARANTINE: 1,
    Action.REDIRECT: 2,
    Action.DEFER: 3,
    Action.REJECT: 4,
}  # never give one a new meaning
_ACTION_BY_CODE = {code: action for action, code in _ACTION_CODES.items()}
_BLANKS = b" \t\r\n"  # where a field may be folded or filled up on its way
_MAX_VALUE_BYTES = 1000  # bytes of a value that is looked at
_LABEL_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VALUE_PATTERN = re.compile(
    rb"([a-z][a-z0-9_-]{0,31});id=([A-Za-z0-9._-]{1,64});k=([0-9a-f]{8});s=([A-Za-z0-9_-]{20})"
)


class SignedVerdict(NamedTuple):
    """What we once decided. log_odds: of being unwanted, to 1/256 nat, at most 128. id: of the
    judgement.
    """

    label: str
    log_odds: float
    action: Action
    id: str

    @property
    def probability(self) -> float:
        """Of being unwanted."""
        return 1.0 / (1.0 + exp(-self.log_odds))


def sign_verdict(key: bytes, verdict: Verdict, action: Action, id: str, digest: bytes) -> bytes:  # noqa: A002  as the field says
    """The value of the header field.

    key: `secret.derived(key, b"verdict")`. action: what is done about it. id: up to 64 of A-Z a-z
    0-9 . _ -, never given twice. digest: of the message. ValueError: a label or an id that the
    field cannot hold.
    """
    if not _LABEL_PATTERN.fullmatch(verdict.label) or not _ID_PATTERN.fullmatch(id):
        raise ValueError(f"cannot be signed: {verdict.label!r}, {id!r}")
    label, name = verdict.label.encode(), id.encode()
    steps = round(min(max(verdict.log_odds * _STEPS_PER_NAT, -_MAX_STEPS), _MAX_STEPS))
    payload = _mask(key, name, _PAYLOAD.pack(steps, _ACTION_CODES[action]))
    sealed = payload + _compute_tag(key, label, name, payload, digest)
    return b"%s; id=%s; k=%s; s=%s" % (label, name, key_id(key), urlsafe_b64encode(sealed))


def verify_verdict(key: bytes, value: bytes, digest: bytes) -> SignedVerdict | None:
    """What such a value says, if it was signed with this key for the message of this digest; blanks
    and folding do no harm.
    """
    found = _VALUE_PATTERN.fullmatch(value[:_MAX_VALUE_BYTES].translate(None, _BLANKS))
    if found is None or found[3] != key_id(key):
        return None
    label, name, sealed = found[1], found[2], urlsafe_b64decode(found[4])
    payload, tag = sealed[: _PAYLOAD.size], sealed[_PAYLOAD.size :]
    if not compare_digest(tag, _compute_tag(key, label, name, payload, digest)):
        return None
    steps, code = _PAYLOAD.unpack(_mask(key, name, payload))
    return (
        SignedVerdict(label.decode(), steps / _STEPS_PER_NAT, _ACTION_BY_CODE[code], name.decode())
        if code in _ACTION_BY_CODE
        else None
    )


@lru_cache(maxsize=4)
def key_id(key: bytes) -> bytes:
    """Eight characters that tell which key signed, and nothing else about it."""
    return blake2b(b"", key=key, digest_size=4, person=b"key name").hexdigest().encode()


def _mask(key: bytes, name: bytes, payload: bytes) -> bytes:
    """Hides the payload, or shows it again."""
    pad = blake2b(name, key=key, digest_size=_PAYLOAD.size, person=b"mask").digest()
    return bytes(map(xor, payload, pad))


def _compute_tag(key: bytes, label: bytes, name: bytes, payload: bytes, digest: bytes) -> bytes:
    """Over all that it seals, each with its length, so that none passes for a part of its neighbour
    (MAC: RFC 7693).
    """
    sealed = b"".join(
        len(part).to_bytes(2, "big") + part for part in (digest, label, name, payload)
    )
    return blake2b(sealed, key=key, digest_size=_TAG_BYTES, person=b"tag").digest()


RANDOM_BYTES = 4
_TIME_BYTES = 6
MAX_ID_TIME = 2.0**47 / 1000
"""Seconds since 1970 up to which names are surely made."""
_BASE32_PAIRS = ["".join(pair) for pair in product("0123456789abcdefghijklmnopqrstuv", repeat=2)]
_ID_FORM = re.compile(r"[0-9a-v]{16}")


def new_id(now: float, random: bytes) -> str:
    """A new name: 16 characters, 48 bits of time in ms, then 32 random bits. Names sort by time.

    now: seconds since 1970. random: `RANDOM_BYTES` bytes, other ones each time. The alphabet is
    that of RFC 4648, section 7, in lower case: unlike that of section 6 it keeps the order of what
    it encodes.
    """
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a name takes {RANDOM_BYTES} random bytes, not {len(random)}")
    number = int.from_bytes(int(now * 1000).to_bytes(_TIME_BYTES, "big") + random, "big")
    return "".join([_BASE32_PAIRS[number >> bits & 1023] for bits in range(70, -1, -10)])


def id_time(name: str) -> float:
    """When a name was made, in seconds since 1970, to the millisecond."""
    return int.from_bytes(b32hexdecode(name.upper())[:_TIME_BYTES], "big") / 1000


def is_id(text: str) -> bool:
    """Whether it has the form of such a name."""
    return _ID_FORM.fullmatch(text) is not None
