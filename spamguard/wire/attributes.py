"""Attributes of XFORWARD and XCLIENT (Postfix, XFORWARD_README and XCLIENT_README): whom a message comes from, told by a trusted peer.

Values are free text of strangers, encoded: once decoded they hold no control characters, and commands made of them stay one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from spamguard.wire.values import Client, Reply

FIELDS: Mapping[str, str] = {
    "NAME": "name",
    "ADDR": "address",
    "PORT": "port",
    "PROTO": "protocol",
    "HELO": "helo",
    "IDENT": "ident",
    "SOURCE": "source",
    "LOGIN": "login",
}
"""Attribute to the field of `Client` that holds it."""

_FORWARDED = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "IDENT", "SOURCE")  # of XFORWARD, in Postfix's order
_KNOWN = frozenset((*FIELDS, "DESTADDR", "DESTPORT", "REVERSE_NAME"))
_LONGEST_LINE = 512  # octets, line end included (RFC 5321, section 4.5.3.1.4)
_LONGEST_VALUE = 255  # characters: host names are no longer, and the rest is of no use beyond
_UNKNOWN = "[UNAVAILABLE]"

_ATTRIBUTE = re.compile(rb"([A-Za-z_]++)=([!-<>-~\x80-\xff]*+)")
_ENCODED = re.compile(rb"\+([0-9A-Fa-f]{2})")
_UNSAFE = re.compile(rb"[^!-*,-<>-~]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PORT = re.compile(r"[0-9]{1,5}")
_FORMS: Mapping[str, re.Pattern[str]] = {
    "PORT": _PORT,
    "DESTPORT": _PORT,
    "PROTO": re.compile(r"[A-Za-z0-9]{1,40}"),
    "SOURCE": re.compile(r"LOCAL|REMOTE", re.I),
}

_SYNTAX = Reply.of(501, "5.5.4 Syntax: attribute=value")
_BAD_NAME = Reply.of(501, "5.5.4 Bad attribute name")
_BAD_VALUE = Reply.of(501, "5.5.4 Bad attribute value")


def parse_attributes(argument: bytes) -> dict[str, str] | Reply:
    """The attributes from what follows the verb, without the line end, or the refusal: name in upper case to decoded text.

    "" is what the peer does not know. ADDR and DESTADDR are plain addresses, without "IPV6:".
    """
    words = [word for word in argument.split(b" ") if word]
    found: dict[str, str] = {}
    for word in words:
        match = _ATTRIBUTE.fullmatch(word)
        if match is None:
            return _SYNTAX
        name = match[1].decode("ascii").upper()
        if name not in _KNOWN or name in found:
            return _BAD_NAME
        value = _value(name, match[2])
        if value is None:
            return _BAD_VALUE
        found[name] = value
    return found or _SYNTAX


def attributes(client: Client, announced: str) -> list[bytes]:
    """XFORWARD commands, line ends included, that tell everything in `announced`: the names that EHLO offered, blanks in between.

    What is unknown, or does not fit, is told as unknown, since a peer keeps the values of the message before otherwise.
    """
    lines: list[bytes] = []
    line = b"XFORWARD"
    for word in [_word(name, getattr(client, FIELDS[name])) for name in _wanted(announced)]:
        if len(line) + 1 + len(word) + 2 > _LONGEST_LINE:
            lines.append(line + b"\r\n")
            line = b"XFORWARD"
        line += b" " + word
    return [*lines, line + b"\r\n"] if line != b"XFORWARD" else []


@lru_cache(maxsize=16)
def _wanted(announced: str) -> tuple[str, ...]:
    """Of what we can tell."""
    offered = announced.upper().split()
    return tuple(name for name in _FORWARDED if name in offered)


def _value(name: str, encoded: bytes) -> str | None:
    """Decoded, or None where it is not of its form."""
    raw = _ENCODED.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), encoded)
    text = _CONTROL.sub("?", raw.decode("utf-8", "replace"))[:_LONGEST_VALUE]
    if text.upper() in {_UNKNOWN, "[TEMPUNAVAIL]", ""}:
        return ""
    if name in {"ADDR", "DESTADDR"}:
        return _plain_address(text)
    form = _FORMS.get(name)
    if form and not form.fullmatch(text):
        return None
    return text.upper() if name == "SOURCE" else text


def _plain_address(text: str) -> str | None:
    try:
        return str(ip_address(text[5:] if text[:5].upper() == "IPV6:" else text))
    except ValueError:
        return None


def _word(name: str, value: str) -> bytes:
    if not value:
        return f"{name}={_UNKNOWN}".encode("ascii")
    if name == "ADDR" and _is_ipv6(value):
        value = f"IPV6:{value}"
    raw = value.encode("utf-8", "replace")
    encoded = _UNSAFE.sub(lambda match: b"+%02X" % match[0][0], raw)
    known = len(value) <= _LONGEST_VALUE and len(encoded) <= _LONGEST_LINE - 40
    return name.encode("ascii") + b"=" + (encoded if known else _UNKNOWN.encode("ascii"))


@lru_cache(maxsize=1024)
def _is_ipv6(text: str) -> bool:
    """Of the same clients again and again."""
    try:
        return isinstance(ip_address(text), IPv6Address)
    except ValueError:
        return False
