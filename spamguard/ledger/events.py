"""Votes as the shared log of many machines holds them.

A vote is an event, identified by (subject, clock, node, content): a hash of its key, its version,
and a hash of its body. Each row of the log carries a chain, the hash of all identities up to it, so
equal chains mean equal histories.

Bodies come from a network, so `decode_event` believes nothing: the vote must be the one that the
event names, and one that a ledger may take (`arriving.check_votes`). Must never evaluate a body,
and never give two bodies to one vote.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

from spamguard.errors import LedgerError
from spamguard.ledger.arriving import check_votes
from spamguard.records import Vote

MAX_BODY_BYTES = 1 << 20
MAX_NODE_BYTES = 255


class SharedEvent(NamedTuple):
    """A vote as the shared log holds it.

    subject: a hash of its key. clock, node: its version. content: hash of the body. time: seconds
    since 1970. body: format and vote.
    """

    subject: bytes
    clock: int
    node: str
    content: bytes
    time: int
    body: bytes


class LogRow(NamedTuple):
    """A row of the shared log. chain: the hash of all identities up to it. is_ours: whether a node
    of this installation wrote it.
    """

    position: int
    chain: bytes
    event: SharedEvent
    is_ours: bool = True


class Mark(NamedTuple):
    """A position, and the chain there."""

    position: int
    chain: bytes


class Server(NamedTuple):
    """A server that holds the log, by its system identifier and timeline.

    A standby has those of its primary, and begins the next timeline when it is promoted.
    """

    system: int
    timeline: int


START = Mark(0, b"\0")
_HASH_BYTES = 16
_FORMAT = b"\x01"
# Clock, time, extractor; lengths of digest, user, node, label (-1: none), packed, scores, origin.
_BODY = struct.Struct(">qqqIIIiIII")


def encode_event(vote: Vote) -> SharedEvent:
    """The vote as an event; equal votes give equal events. LedgerError: no log can hold it."""
    node, label = vote.node.encode(), None if vote.label is None else vote.label.encode()
    texts = (vote.digest, vote.user.encode(), node, label, vote.packed, vote.scores)
    parts = (*texts, vote.origin.encode())
    lengths = (-1 if part is None else len(part) for part in parts)
    try:
        header = _BODY.pack(vote.clock, vote.time, vote.extractor, *lengths)
    except struct.error as error:
        raise LedgerError(f"a vote has a number that no ledger can hold ({error})") from error
    body = _FORMAT + header + b"".join(part for part in parts if part is not None)
    if b"\0" in node or not 0 < len(node) <= MAX_NODE_BYTES or len(body) > MAX_BODY_BYTES:
        raise LedgerError(
            f"a vote of node {vote.node[:40]!r} has {len(body):,} bytes: no shared log can hold it"
        )
    return SharedEvent(_subject(vote), vote.clock, vote.node, _content(body), vote.time, body)


def decode_event(event: SharedEvent) -> Vote:
    """The vote of an event. LedgerError: it cannot be read, or is not what it says it is."""
    body = event.body
    if not 0 < len(body) <= MAX_BODY_BYTES or _content(body) != event.content:
        raise LedgerError("its body is not the one that was pushed")
    if body[:1] != _FORMAT:
        raise LedgerError(f"it has format {body[0]}, this program reads 1: update spamguard")
    try:
        vote = _unpack_body(memoryview(body)[1:])
        if (_subject(vote), *vote.version, vote.time) != (*event[:3], event.time):
            raise ValueError("it is another event's")
    except (struct.error, ValueError) as error:
        raise LedgerError(f"its body is damaged ({error})") from error
    next(check_votes([vote]))
    return vote


def _unpack_body(body: memoryview) -> Vote:
    clock, seconds, extractor, *lengths = _BODY.unpack_from(body)
    parts, start = list[bytes](), _BODY.size
    for length in lengths:
        end = start + max(length, 0)
        parts.append(bytes(body[start:end]))
        start = end
    if start != len(body) or min(lengths) < -1:
        raise ValueError("lengths")
    digest, user, node, label, packed, scores, origin = parts
    texts = (user.decode(), clock, node.decode(), None if lengths[3] < 0 else label.decode())
    return Vote(digest, *texts, packed, scores, origin.decode(), seconds, extractor)


def _subject(vote: Vote) -> bytes:
    return sha256(vote.digest + b"\0" + vote.user.encode()).digest()[:_HASH_BYTES]


def _content(body: bytes) -> bytes:
    return sha256(body).digest()[:_HASH_BYTES]


def next_chain(chain: bytes, event: SharedEvent) -> bytes:
    """The chain at an event. chain: at the position before it; b"\\0" before the first."""
    clock = event.clock.to_bytes(8, "big", signed=True)
    return sha256(chain + event.subject + clock + event.node.encode() + event.content).digest()
