"""Whether the names in a message belong together: who sends it, who wants the answer, where its links lead, who passed it on.

Says only how they relate, never what they are called, so that what is learnt holds for senders never seen. Pure; never raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from spamguard.mail.split import Named

_HOST = re.compile(rb"@([\w.-]{1,190})")
_SHARED = frozenset((b"ac", b"co", b"com", b"edu", b"gov", b"ne", b"net", b"or", b"org"))  # below a country: names are sold under these
_MOST_HOSTS = 50
_MOST_OWNERS = 5
_VALUE_BYTES = 300  # of a field
_MOST_FIELDS = 16  # of any size


def clues(named: Named, received: Sequence[bytes], hosts: Sequence[str]) -> list[bytes]:
    """named: header fields. received: in lower case. hosts: of links, in lower case."""
    sender = _owner_in(named, b"from")
    found = [b"to_sender" if sender and sender == _owner_in(named, b"to") else b"to_other"]
    if b"reply-to" in named:
        found.append(b"reply_to_sender" if sender == _owner_in(named, b"reply-to") else b"reply_to_other")
    if hosts:
        found += _links(sender, set(map(_host_owner, hosts[:_MOST_HOSTS])))
    servers, origin = b"\n".join(received), _owner_in(named, b"message-id")
    # "in" would look first whether it is a number, and build the error that it is not
    found.append(b"sender_passed_on" if sender and servers.find(sender) >= 0 else b"sender_not_passed_on")
    found.append(b"id_passed_on" if origin and servers.find(origin) >= 0 else b"id_not_passed_on")
    return found


def _owner_in(named: Named, field: bytes) -> bytes:
    return owner(named[field]) if field in named else b""


@lru_cache(maxsize=_MOST_FIELDS)
def owner(value: bytes) -> bytes:
    """Who owns the first address in a field, as a name of a domain; empty: there is none near its start.

    Remembered, since each field of a message is asked for twice: here and for its traits.
    """
    match = _HOST.search(value, 0, _VALUE_BYTES)
    return _owner(match[1]) if match else b""


def _host_owner(host: str) -> bytes:
    return _owner(host.encode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _owner(host: bytes) -> bytes:
    """The part of a host's name that somebody registered, near enough without a list of all countries."""
    labels = host.lower().strip(b".").rsplit(b".", 3)[-3:]
    return b".".join(labels if len(labels) == 3 and len(labels[2]) == 2 and labels[1] in _SHARED else labels[-2:])


def _links(sender: bytes, owners: set[bytes]) -> list[bytes]:
    where = b"links_some_sender" if sender in owners else b"links_elsewhere"
    return [b"links_sender" if owners == {sender} else where, b"link_owners_%d" % min(len(owners), _MOST_OWNERS)]
