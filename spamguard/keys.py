"""The installation's key, what it signs (verdicts, Message-IDs of probes), and ids of messages.

One key of 32 bytes, in a file of its own, keys all hashes. Without it everything must be taught
again, so every backup holds it.

A verdict field is `class; id=…; k=…; s=…`. Only who holds the key can write one that counts, for
one message only. Class and id are in clear; log-odds and action are masked, since the exact
probability would tell spammers how to write. Keyed BLAKE2b, because JWT and itsdangerous show what
they sign. An id names a message in the log, in the field, in the history and in the quarantine; ids
sort by time.
"""

from __future__ import annotations

import re
import secrets
import struct
from base64 import b32hexdecode, b32hexencode, urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from operator import xor
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Action
from spamguard.errors import LedgerError, remedy
from spamguard.records import Verdict
from spamguard.storage import create_atomically

# ---- the key

_KEY_BYTES = 32


def load_key(path: Path, *, create: bool) -> bytes:
    """The bytes of the key, which may be made if it is missing. LedgerError: there is none."""
    try:
        with path.open("rb") as file:
            key = file.read(_KEY_BYTES + 1)  # the file may be of any size
    except FileNotFoundError:
        if create:
            return store_key(path, secrets.token_bytes(_KEY_BYTES))
        raise LedgerError(
            f"{path}: the key is missing but the ledger beside it needs it: restore it from a "
            "backup"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be read ({error.strerror}): run as the user who owns it"
        ) from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(f"{path}: is not a key of {_KEY_BYTES} bytes: restore it from a backup")
    return key


def store_key(path: Path, key: bytes) -> bytes:
    """Store the key if there is none; return the key that is there then."""
    try:
        with suppress(FileExistsError), create_atomically(path) as file:
            file.write(key)
    except OSError as error:
        what_to_do = remedy(error, "choose a state directory you may write to")
        raise LedgerError(f"{path}: cannot be written ({error.strerror}): {what_to_do}") from error
    return load_key(path, create=False)


def derive_key(key: bytes, purpose: bytes) -> bytes:
    return _mac(key, purpose, _KEY_BYTES)


def key_fingerprint(key: bytes) -> str:
    """A name of the key from which nobody can compute it."""
    return _mac(key, b"fingerprint", 8).hex()


def _mac(key: bytes, data: bytes, size: int, purpose: bytes = b"") -> bytes:
    return blake2b(data, key=key, digest_size=size, person=purpose).digest()


# ---- the verdict field

_STEPS_PER_NAT = 256
_MAX_STEPS = 32767  # of an int16: log-odds are clipped to about ±128
_PAYLOAD = struct.Struct(">hB")  # log-odds, action
_TAG_BYTES = 12
# By their codes: never give one a new meaning.
_ACTIONS = (Action.TAG, Action.QUARANTINE, Action.REDIRECT, Action.DEFER, Action.REJECT)
_BLANKS = b" \t\r\n"  # where a field may be folded on its way
_MAX_VALUE_BYTES = 1000
_VALUE_PATTERN = re.compile(
    rb"([a-z][a-z0-9_-]{0,31});id=([A-Za-z0-9._-]{1,64});k=([0-9a-f]{8});s=([A-Za-z0-9_-]{20})"
)


class SignedVerdict(NamedTuple):
    """A verdict of ours, as a field says it."""

    label: str
    log_odds: float  # of being unwanted, clipped to about ±128, exact to 1/256 nat
    action: Action
    id: str  # of the judgement


def sign_verdict(
    key: bytes,
    verdict: Verdict,
    action: Action,
    id: str,  # noqa: A002  the field's own name
    digest: bytes,
) -> bytes:
    """The value of the header field, about the message of this digest.

    Parameters
    ----------
    key
        `derive_key(installation_key, b"verdict")`.
    id
        Up to 64 of A-Z a-z 0-9 . _ -, never used twice.
    """
    label, name = verdict.label.encode(), id.encode()
    steps = round(min(max(verdict.log_odds * _STEPS_PER_NAT, -_MAX_STEPS), _MAX_STEPS))
    payload = _mask(key, name, _PAYLOAD.pack(steps, _ACTIONS.index(action)))
    sealed = payload + _compute_tag(key, label, name, payload, digest)
    return b"%s; id=%s; k=%s; s=%s" % (label, name, key_id(key), urlsafe_b64encode(sealed))


def verify_verdict(key: bytes, value: bytes, digest: bytes) -> SignedVerdict | None:
    """The verdict in such a value, if this key signed it for the message of this digest. Blanks and
    folding do no harm.
    """
    match = _VALUE_PATTERN.fullmatch(value[:_MAX_VALUE_BYTES].translate(None, _BLANKS))
    if match is None or match[3] != key_id(key):
        return None
    label, name, sealed = match[1], match[2], urlsafe_b64decode(match[4])
    payload, tag = sealed[: _PAYLOAD.size], sealed[_PAYLOAD.size :]
    if not compare_digest(tag, _compute_tag(key, label, name, payload, digest)):
        return None
    steps, code = _PAYLOAD.unpack(_mask(key, name, payload))
    if code >= len(_ACTIONS):
        return None
    return SignedVerdict(label.decode(), steps / _STEPS_PER_NAT, _ACTIONS[code], name.decode())


def key_id(key: bytes) -> bytes:
    """Eight characters that tell which key signed."""
    return _mac(key, b"", 4, b"key name").hex().encode()


def _mask(key: bytes, name: bytes, payload: bytes) -> bytes:
    return bytes(map(xor, payload, _mac(key, name, _PAYLOAD.size, b"mask")))


def _compute_tag(key: bytes, label: bytes, name: bytes, payload: bytes, digest: bytes) -> bytes:
    """A MAC over all parts, each with its length, so that none passes for another."""
    parts = (digest, label, name, payload)
    sealed = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return _mac(key, sealed, _TAG_BYTES, b"tag")


# ---- the Message-ID of a probe

PROBE_DOMAIN = "doctor.invalid"
_PROBE_SECONDS = 600.0  # for which it is one
_PROBE_ID = re.compile(
    rb"^Message-ID:[ \t\r\n]*<([0-9a-v]{16})\.([A-Za-z0-9_-]{16})@%s>" % PROBE_DOMAIN.encode(),
    re.IGNORECASE | re.MULTILINE,
)


def make_probe_id(key: bytes, now: float, random: bytes) -> str:
    """The Message-ID of a message by which `doctor` tries the way of the mail: for some minutes it
    is called spam and teaches nothing. The key is that of `sign_verdict`.
    """
    name = new_id(now, random)
    tag = urlsafe_b64encode(_mac(key, name.encode(), _TAG_BYTES, b"probe")).decode()
    return f"<{name}.{tag}@{PROBE_DOMAIN}>"


def is_probe(key: bytes, header: bytes, now: float) -> bool:
    """Whether a header section has the Message-ID of a probe of ours, made a few minutes ago."""
    match = _PROBE_ID.search(header) if PROBE_DOMAIN.encode() in header else None
    return (
        match is not None
        and compare_digest(urlsafe_b64decode(match[2]), _mac(key, match[1], _TAG_BYTES, b"probe"))
        and abs(now - id_time(match[1].decode())) < _PROBE_SECONDS
    )


# ---- ids of messages

RANDOM_BYTES = 4
"""Random bytes in an id."""
MAX_ID_TIME = 2.0**47 / 1000
"""Seconds since 1970 up to which an id can surely be made."""
_TIME_BYTES = 6
_ID_FORM = re.compile(r"[0-9a-v]{16}")


def new_id(now: float, random: bytes) -> str:
    """A new id: 16 characters, for 48 bits of time in ms and 32 random bits. The alphabet (RFC
    4648, section 7, in lower case) keeps the order of what it encodes.
    """
    return b32hexencode(int(now * 1000).to_bytes(_TIME_BYTES, "big") + random).decode().lower()


def id_time(name: str) -> float:
    return int.from_bytes(b32hexdecode(name.upper())[:_TIME_BYTES], "big") / 1000


def is_id(text: str) -> bool:
    return _ID_FORM.fullmatch(text) is not None
