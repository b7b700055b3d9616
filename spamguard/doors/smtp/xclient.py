"""What a trusted peer says about the client it speaks for: Postfix's XFORWARD and XCLIENT.

Pure. Whether the peer is trusted is decided elsewhere; the form of the values was looked at by `wire.attributes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from spamguard.wire.attributes import FIELDS
from spamguard.wire.values import Client

_UNUSED = frozenset(("DESTADDR", "DESTPORT"))  # of XCLIENT: understood, of no use here
XFORWARD = tuple(name for name in FIELDS if name != "LOGIN")
XCLIENT = (*[name for name in FIELDS if name not in ("IDENT", "SOURCE")], *sorted(_UNUSED))
XFORWARD_FEATURE = " ".join(("XFORWARD", *XFORWARD))
XCLIENT_FEATURE = " ".join(("XCLIENT", *XCLIENT))


def told(known: Client, attributes: Mapping[str, str], names: Collection[str]) -> Client | None:
    """The client after one command, None when an attribute is not among `names`, those of the command. known: after those before it,
    or the peer itself.

    What was never told stays unknown: the peer's own values would be taken for the client's.
    """
    if attributes.keys() - set(names):
        return None
    before = known if known.forwarded else Client(peer=known.peer, forwarded=True)
    values: dict[str, Any] = {FIELDS[name]: value for name, value in attributes.items() if name not in _UNUSED}
    return replace(before, **values)
