"""Header fields as evidence: which are read, how, and which never are.

Spam-verdict headers of any filter, mailbox-state headers and our own must never become tokens: they would be the answer,
not evidence, and the next mail may carry a forged one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from spamguard.mail.decode import fold, unstructured
from spamguard.mail.split import FieldList

Section = tuple[bytes, bytes]  # name of the section, folded UTF-8 text

_VERDICTS = (
    rb"x-[^:\s]*(?:spam|virus|bogosity|crm114|mailscanner|scanned|rspamd|ironport|forefront|-scl|bitdefender|scan|score|cloudmark|razor|pyzor|dcc-)"
    rb"[^:\s]*|x-(?:barracuda|asg|junk|pm-|vade|proofpoint|rc-|microsoft-antispam|exchange-antispam|ms-exchange-organization|classification)[^:\s]*"
)
_MAILBOX_STATE = (
    rb"status|x-status|x-keywords|x-label|x-folder|x-uidl?|x-imap(?:base)?|x-(?:mozilla|evolution|kmail|gmail)-[^:\s]*|content-length|lines"
    rb"|delivered-to|return-path|envelope-to|x-(?:envelope|original)-to"
)
# outcomes are traits, and only of a trusted host; signatures are noise that never comes twice
_AUTHENTICATION = rb"authentication-results|received-spf|(?:dkim|domainkey)-signature|arc-[^:\s]*|x-received|x-google-[^:\s]*|x-gm-[^:\s]*"
_NEVER = re.compile(b"|".join((_VERDICTS, _MAILBOX_STATE, _AUTHENTICATION)), re.I)

_ADDRESS = re.compile(rb"([\w.+=/!$%&'*-]{1,64})@([\w.-]{1,190})")
_ZONE = re.compile(rb"[+-]\d{4}\b|\b[a-zA-Z]{3,4}\s*\Z")
_SHAPE = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.$@-:+/=<>, ",
    b"0000000000aaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAAAAAAAAA_$_--_____--",
)
_REPEATS = re.compile(rb"(?<=0)0+|(?<=a)a+|(?<=A)A+")
_ADDRESS_FIELDS = frozenset((b"from", b"to", b"cc", b"reply-to", b"sender"))
_VALUE_BYTES = 2000  # of one field


@lru_cache(maxsize=2048)
def is_evidence(name: bytes) -> bool:
    """Whether a field of that name (any case) may be looked at."""
    return _NEVER.fullmatch(name) is None


@lru_cache(maxsize=2048)
def _section(name: bytes) -> bytes:
    """Name of a field's section; empty when the field is never evidence."""
    return name[:40].lower() if is_evidence(name) else b""


def sections(fields: FieldList) -> tuple[list[Section], list[bytes]]:
    """Every usable field as a section of its own name, addresses and shapes beside them; and the defects."""
    found: list[Section] = []
    defects: list[bytes] = []
    names: list[bytes] = []
    for raw_name, raw_value in fields:
        name = _section(raw_name)
        if name:
            names.append(name)
            value = raw_value[:_VALUE_BYTES]
            if name in _SPECIAL:
                found += _SPECIAL[name](value)
            else:
                text = value.lower() if value.isascii() and b"=?" not in value else _decoded(value, defects)
                found.append((name, text))
                if name in _ADDRESS_FIELDS:
                    found.append((b"address", addresses(text)))
    found.append((b"names", b" ".join(names).replace(b"-", b"_")))
    return found, defects


def _decoded(value: bytes, defects: list[bytes]) -> bytes:
    text, wrong = unstructured(value)
    defects += wrong
    return fold(text).encode("utf-8", "replace")


def _received(value: bytes) -> list[Section]:
    return [(b"received", (value.rpartition(b";")[0] or value).lower())]  # without the date


def _date(value: bytes) -> list[Section]:
    return [(b"date-shape", shape(value)), (b"zone", b" ".join(_ZONE.findall(value)))]


def _message_id(value: bytes) -> list[Section]:
    return [(b"id-shape", shape(value)), (b"id-host", joined(value.partition(b"@")[2].rstrip(b"> \t").lower()))]


_SPECIAL = {b"received": _received, b"date": _date, b"message-id": _message_id}


def addresses(text: bytes) -> bytes:
    """Every address in a text as two tokens that hold together: the whole, and its domain."""
    found = _ADDRESS.findall(text)
    return b" ".join([joined(local) + b"-at-" + joined(domain) + b" " + joined(domain) for local, domain in found[:50]])


def joined(host: bytes) -> bytes:
    """A host name that stays one token."""
    return host.replace(b".", b"_")


def shape(value: bytes) -> bytes:
    """A value with its letters and digits blurred: the handwriting of the software that wrote it."""
    return _REPEATS.sub(b"", value[:200].translate(_SHAPE))
