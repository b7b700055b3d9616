"""The sender of a message, where a server that we believe has authenticated it.

`authenticated_sender` reads From and the fields Authentication-Results (RFC 8601) of a header
section. A sender can write any field into a message, these too, so the rule is narrow:

- Only fields above the topmost Received field count, because what a sender wrote stands below the
  Received field of the server that took the message. Without a Received field none counts, unless
  the server is known to strip such fields from incoming mail. Read from the top, the first field
  that is not by a named server (its authserv-id), or cannot be read, ends the reading.
- A server that strips fields in its name looks for the name as it writes it. So a blank before the
  colon authenticates nobody, nor does a name with anything but a comment or version behind it.
- Of several fields the topmost one that has results of a method decides about the method.
- There must be exactly one From field with exactly one address. Groups, lists and addresses in an
  unquoted name are ambiguous, and authenticate nobody.
- `dmarc=pass` counts if its header.from is the domain of From. Where there is no policy
  (`dmarc=none`, or no DMARC result), `dkim=pass` counts if header.d (or header.i) is aligned: it is
  the domain of From, or one above it. A host below that domain, or beside it, may belong to
  somebody else, and which domains are such is only known from a list, so it is not aligned here.
  Any other result of DMARC authenticates nobody, and SPF says nothing of From.

Comments and quoted strings hold what senders like, so they are taken out before anything is looked
for. Must never raise; takes linear time; what is damaged or too long authenticates nobody.
"""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import takewhile
from typing import NamedTuple

from spamguard.mail.headers import COMMENT, FieldList, parse_header
from spamguard.mail.message import header_start
from spamguard.mail.mime import DEFAULT_LIMITS

_MAX_VALUE_BYTES = 8 << 10
_MAX_ADDRESS_BYTES = 320

# a quoted string or a comment, whose text is the sender's; or anything else
_PIECE = re.compile(rb'("(?:[^"\\]|\\.)*+")|(%b)|([^"()\\]++)' % COMMENT, re.S)
_ADDRESS = rb"([\w!#$%&'*+/=?^`{|}~.\x80-\xff-]+@[\w.\x80-\xff-]+)"
_MAILBOX = re.compile(rb"\s*+(?:[^<>,;:@]*+<\s*+%b\s*+>|%b)\s*+" % (_ADDRESS, _ADDRESS))
_DOMAIN = re.compile(rb"(?!-)[\w\x80-\xff-]+(?:\.[\w\x80-\xff-]+)+")
# the authserv-id, as servers write it: some have a comment behind it
_SERVER = re.compile(rb"[ \t]*+(?:\n[ \t]++)?([\w.-]++)(?: (?:%b|\d++))?(?=;|\Z)" % COMMENT)
_ODD_NAME = re.compile(rb"^authentication-results[ \t]", re.I | re.M)
_SEPARATOR = re.compile(rb"\s*+([=/.])\s*+")
_VERSION = re.compile(rb"/\d+\Z")


class _Result(NamedTuple):
    method: bytes
    outcome: bytes
    properties: dict[bytes, bytes]  # such as header.from, in lower case


def authenticated_sender(
    raw: bytes, authserv_ids: Container[str], *, results_stripped: bool = False
) -> str:
    """The address in From, in lower case, if a named server has authenticated it; else "".

    Parameters
    ----------
    raw
        A message, or its header section.
    authserv_ids
        Names of the servers that we believe, in lower case.
    results_stripped
        These servers have removed fields of their names that came with the message.
    """
    start = header_start(raw)
    most = DEFAULT_LIMITS.header_bytes
    text = raw[start : start + most].replace(b"\r\n", b"\n")
    fields, end, defects = parse_header(text, most, DEFAULT_LIMITS.header_fields)
    # others may read it otherwise
    if defects or end >= most or b"\r" in text[:end] or b"\0" in text[:end]:
        return ""
    has_received = any(name == b"received" for name, _ in fields)
    if not (has_received or results_stripped) or _ODD_NAME.search(text, 0, end):
        return ""
    results = _believed_results(fields, authserv_ids)
    if not results:
        return ""
    address = parse_author([value for name, value in fields if name == b"from"])
    if not address or not _is_authenticated(address.rpartition("@")[2].encode(), results):
        return ""
    return address


def parse_author(values: list[bytes]) -> str:
    """The address of the only author in all From fields, in lower case; "" if that is not plain.

    >>> parse_author([b'"Anna <boss@example.com>" <Anna@Example.ORG>'])
    'anna@example.org'
    >>> parse_author([b"boss@example.com <anna@example.org>"])
    ''
    """
    if len(values) != 1 or (text := _without_free_text(values[0])) is None:
        return ""
    match = _MAILBOX.fullmatch(text)
    address = (match[1] or match[2]).lower() if match else b""
    local, _, domain = address.partition(b"@")
    if len(address) > _MAX_ADDRESS_BYTES or not _DOMAIN.fullmatch(domain) or b".." in local:
        return ""
    try:
        return address.decode()
    except UnicodeDecodeError:
        return ""


def _without_free_text(value: bytes) -> bytes | None:
    """A value with a blank for each comment and a NUL for each quoted string; None: damaged."""
    pieces, position = [], 0
    while position < len(value) <= _MAX_VALUE_BYTES:
        match = _PIECE.match(value, position)
        if match is None:
            return None
        position = match.end()
        pieces.append(match[3] or (b"\0" if match[1] else b" "))
    return b"".join(pieces) if position == len(value) else None


def _believed_results(fields: FieldList, authserv_ids: Container[str]) -> list[_Result]:
    """The results of named servers, of each method those of the topmost field that has any."""
    results: list[_Result] = []
    for name, value in takewhile(lambda field: field[0] != b"received", fields):
        if name != b"authentication-results":
            continue
        server, field_results = _parse_results(value)
        if server not in authserv_ids:
            break
        decided = {result.method for result in results}
        results += [result for result in field_results if result.method not in decided]
    return results


def _parse_results(value: bytes) -> tuple[str, list[_Result]]:
    """The authserv-id in lower case, "" if the field cannot be read; and the results."""
    server, text = _SERVER.match(value), _without_free_text(value)
    if server is None or text is None:
        return "", []
    _, *parts = text.lower().split(b";")
    results = []
    for part in parts:
        first, *properties = _SEPARATOR.sub(rb"\1", part).split() or [b""]
        method, _, outcome = first.partition(b"=")
        pairs = [pair.partition(b"=") for pair in properties]
        values = {name: value for name, _, value in pairs}
        if len(values) < len(pairs):  # one of them came twice: nobody knows which one holds
            values = {}
        results.append(_Result(_VERSION.sub(b"", method), outcome, values))
    return server[1].decode("ascii").lower(), results


def _is_authenticated(domain: bytes, results: list[_Result]) -> bool:
    policies = [result for result in results if result.method == b"dmarc"]
    if any(result.outcome != b"none" for result in policies):
        return all(
            result.outcome == b"pass" and result.properties.get(b"header.from") == domain
            for result in policies
        )
    for method, outcome, properties in results:
        identity = properties.get(b"header.i", b"").rpartition(b"@")[2]
        signer = properties.get(b"header.d", identity)
        is_aligned = domain == signer or domain.endswith(b"." + signer)
        if (method, outcome) == (b"dkim", b"pass") and _DOMAIN.fullmatch(signer) and is_aligned:
            return True
    return False
