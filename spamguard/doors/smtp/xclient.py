"""What a trusted peer says about the client it speaks for: Postfix's XFORWARD and XCLIENT.

Pure. Whether the peer is trusted is decided elsewhere; the form of the values was looked at by `wire.attributes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spamguard.wire.attributes import FIELDS
from spamguard.wire.values import Client

_XFORWARD = tuple(name for name in FIELDS if name != "LOGIN")
_XCLIENT = tuple(name for name in FIELDS if name not in ("IDENT", "SOURCE"))
_XCLIENT_UNUSED = ("DESTADDR", "DESTPORT")  # understood, of no use here
XFORWARD_FEATURE = " ".join(("XFORWARD", *_XFORWARD))
XCLIENT_FEATURE = " ".join(("XCLIENT", *_XCLIENT, *_XCLIENT_UNUSED))


def forwarded(peer: str, known: Client | None, attributes: Mapping[str, str]) -> Client | None:
    """The client after one XFORWARD, None when an attribute does not belong there. known: after those before it.

    What was never sent stays unknown: the peer's own values would be taken for the client's.
    """
    if attributes.keys() - set(_XFORWARD):
        return None
    return replace(known or Client(peer=peer, forwarded=True), **_fields(attributes))


def overridden(client: Client, attributes: Mapping[str, str]) -> Client | None:
    """The client after XCLIENT; None as above."""
    if attributes.keys() - {*_XCLIENT, *_XCLIENT_UNUSED}:
        return None
    return replace(client, **_fields(attributes))


def _fields(attributes: Mapping[str, str]) -> dict[str, Any]:
    return {FIELDS[name]: value for name, value in attributes.items() if name in FIELDS}
