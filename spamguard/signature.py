"""Our own verdict in a header field, signed: `class; id=…; k=…; s=…`. Pure.

Only who holds the installation's key can write one that counts, for one message only. Class and id are in clear; the log-odds
and what was done are masked, since the exact probability would tell spammers how to write. Must never believe anything
before its tag was checked, and never raise on what a message brings along.
"""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from math import exp
from operator import xor
from typing import NamedTuple

from spamguard.records import Verdict
from spamguard.settings import Action

_STEPS = 256  # per nat
_LIMIT = 32767  # of an int16: log-odds are clipped to about +-128
_PAYLOAD = struct.Struct(">hB")  # log-odds, action
_TAG_BYTES = 12
_CODES = {Action.TAG: 0, Action.QUARANTINE: 1, Action.REDIRECT: 2, Action.DEFER: 3, Action.REJECT: 4}  # never give one a new meaning
_ACTIONS = {code: action for action, code in _CODES.items()}
_BLANKS = b" \t\r\n"  # where a field may be folded or filled up on its way
_MOST = 1000  # bytes of a value that is looked at
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VALUE = re.compile(rb"([a-z][a-z0-9_-]{0,31});id=([A-Za-z0-9._-]{1,64});k=([0-9a-f]{8});s=([A-Za-z0-9_-]{20})")


class Signed(NamedTuple):
    """What we once decided. log_odds: of being unwanted, to 1/256 nat, at most 128. id: of the judgement."""

    label: str
    log_odds: float
    action: Action
    id: str

    @property
    def probability(self) -> float:
        """Of being unwanted."""
        return 1.0 / (1.0 + exp(-self.log_odds))


def sign(key: bytes, verdict: Verdict, action: Action, id: str, digest: bytes) -> bytes:  # noqa: A002  the field's own name
    """The value of the header field.

    key: `secret.derived(key, b"verdict")`. action: what is done about it. id: up to 64 of A-Z a-z 0-9 . _ -, never given twice.
    digest: of the message. ValueError: a label or an id that the field cannot hold.
    """
    if not _LABEL.fullmatch(verdict.label) or not _ID.fullmatch(id):
        raise ValueError(f"cannot be signed: {verdict.label!r}, {id!r}")
    label, name = verdict.label.encode(), id.encode()
    steps = round(min(max(verdict.log_odds * _STEPS, -_LIMIT), _LIMIT))
    payload = _masked(key, name, _PAYLOAD.pack(steps, _CODES[action]))
    sealed = payload + _tag(key, label, name, payload, digest)
    return b"%s; id=%s; k=%s; s=%s" % (label, name, key_name(key), urlsafe_b64encode(sealed))


def verify(key: bytes, value: bytes, digest: bytes) -> Signed | None:
    """What such a value says, if it was signed with this key for the message of this digest; blanks and folding do no harm."""
    found = _VALUE.fullmatch(value[:_MOST].translate(None, _BLANKS))
    if found is None or found[3] != key_name(key):
        return None
    label, name, sealed = found[1], found[2], urlsafe_b64decode(found[4])
    payload, tag = sealed[: _PAYLOAD.size], sealed[_PAYLOAD.size :]
    if not compare_digest(tag, _tag(key, label, name, payload, digest)):
        return None
    steps, code = _PAYLOAD.unpack(_masked(key, name, payload))
    return Signed(label.decode(), steps / _STEPS, _ACTIONS[code], name.decode()) if code in _ACTIONS else None


@lru_cache(maxsize=4)
def key_name(key: bytes) -> bytes:
    """Eight characters that tell which key signed, and nothing else about it."""
    return blake2b(b"", key=key, digest_size=4, person=b"key name").hexdigest().encode()


def _masked(key: bytes, name: bytes, payload: bytes) -> bytes:
    """Hides the payload, or shows it again."""
    pad = blake2b(name, key=key, digest_size=_PAYLOAD.size, person=b"mask").digest()
    return bytes(map(xor, payload, pad))


def _tag(key: bytes, label: bytes, name: bytes, payload: bytes, digest: bytes) -> bytes:
    """Over all that it seals, each with its length, so that none passes for a part of its neighbour (MAC: RFC 7693)."""
    sealed = b"".join(len(part).to_bytes(2, "big") + part for part in (digest, label, name, payload))
    return blake2b(sealed, key=key, digest_size=_TAG_BYTES, person=b"tag").digest()
