"""Fields of the header for security, on every answer; an answer may have its own instead, where it needs another one."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate

Fields = Sequence[tuple[bytes, bytes]]

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'"
CONTENT_SECURITY_POLICY = f"{_POLICY}; base-uri 'none'; frame-ancestors 'none'"
"""Of everything: pages load what we serve and nothing else, and no script or style stands in them."""

_FIELDS = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # Nobody else learns from which page somebody came. Not no-referrer: browsers then say `Origin: null` of our own forms.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    ("Cache-Control", "no-store"),
)
_SAFE = [(name.lower().encode(), value.encode()) for name, value in _FIELDS]
_SECURE = (b"strict-transport-security", b"max-age=31536000")


def completed(fields: Fields, now: float, *, secure: bool) -> list[tuple[bytes, bytes]]:
    """These with what is missing. secure: whether it was asked for by HTTPS, as it is to be from then on. now: seconds since 1970."""
    usual = [(b"date", formatdate(now, usegmt=True).encode()), *_SAFE, *([_SECURE] if secure else [])]
    own = {name.lower() for name, _ in fields}
    return [*fields, *(one for one in usual if one[0] not in own)]
