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
    rb"[^:\s]*(?:spam|virus|bogosity|crm114|mailscanner|scan|rspamd|ironport|forefront|-scl|bitdefender|score|cloudmark|razor|pyzor|bayes"
    rb"|amavis|brightmail|antiphish|malware|purgate|phishing|messagesniffer|gbudb|whitelist|blacklist|dns-?r?bl|rbl-)[^:\s]*"
    rb"|x-(?:barracuda|asg|junk|pm-|vade|proofpoint|rc-|microsoft-antispam|exchange-antispam|ms-exchange-organization|classification"
    rb"|text-classification|popfile|hammie|sa-|dcc-|cmae-|ctch-|cnfs-|tm-as|tmase|imss|klms|kse|ui-|pmx|perlmx|canit|declude|clx-|ham-|vr-"
    rb"|policy-|message-sniffer|sid-|ymail-|yahoofiltered|dmarc-|mimecast-|watchguard|filter|pstn-|nas-|elnk-|eset|assp-|xfinity-v"
    rb"|authority-analysis)[^:\s]*"
)
_MAILBOX_STATE = (
    rb"status|x-status|keywords|x-keywords|x-label|x-folder|x-uidl?|x-tuid|x-imap(?:base)?|x-account-key|x-offlineimap[^:\s]*"
    rb"|x-(?:mozilla|evolution|kmail|gmail|apple|getmail|dovecot)-[^:\s]*|content-length|lines|x-sieve[^:\s]*"
    rb"|(?:x-)?delivered-to|return-path|envelope-(?:to|from)|x-(?:envelope|original|resolved)-(?:to|from)"
)
# anybody can write outcomes, and true ones tell hardly anything that the rest does not; signatures are noise that never comes twice
_AUTHENTICATION = (
    rb"(?:x-)?authentication-results[^:\s]*|received-spf|(?:dkim|domainkey)-signature|arc-[^:\s]*|x-received|x-google-[^:\s]*|x-gm-[^:\s]*"
)
_NEVER = re.compile(b"|".join((_VERDICTS, _MAILBOX_STATE, _AUTHENTICATION)), re.I)

_ADDRESS = re.compile(rb"([\w+=/!$%&'*-]{1,64}+)@([\w-]{1,190}+)")  # its dots replaced
_ZONE = re.compile(rb"[+-]\d{4}\b|\b[a-zA-Z]{3,4}\s*\Z")
_SHAPE = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.$@-:+/=<>, ",
    b"0000000000aaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAAAAAAAAA_$_--_____--",
)
_REPEATS = re.compile(rb"(?<=0)0+|(?<=a)a+|(?<=A)A+")
_ADDRESS_FIELDS = frozenset((b"from", b"to", b"cc", b"reply-to", b"sender"))
_NOT_FIELDS = frozenset(  # other sections
    b"address names date-shape zone id-shape id-host hidden tags url host clue attachment footer".split()
)
_VALUE_BYTES = 2000  # of one field
_MOST_NAMES = 2048


def is_evidence(name: bytes) -> bool:
    """Whether a field of that name (any case) may be looked at."""
    return _SECTIONS[name[:100].lower()] != b""


class _Sections(dict[bytes, bytes]):
    """Section of a field with that lower-case name; empty when the field is never evidence. Remembers so many at most."""

    def __missing__(self, name: bytes) -> bytes:
        if len(self) == _MOST_NAMES:
            self.clear()
        never = _NEVER.fullmatch(name)
        self[name] = section = b"" if never else b"field " + name if name in _NOT_FIELDS else name[:40]
        return section


_SECTIONS = _Sections()


def evidence(fields: FieldList) -> FieldList:
    """The fields that may be looked at, under the names of their sections, values cut to what is looked at."""
    return [(section, value[:_VALUE_BYTES]) for name, value in fields if (section := _SECTIONS[name[:100]])]


def sections(evidence: FieldList, charset: bytes = b"") -> tuple[list[Section], list[bytes]]:
    """Every usable field as a section of its own name, addresses and shapes beside them; and the defects. charset: of the body."""
    found: list[Section] = []
    defects: list[bytes] = []
    for (name, value), text in zip(evidence, _texts(evidence, charset, defects), strict=True):
        if name == b"received":
            found.append((name, text.rpartition(b";")[0] or text))  # without the date
        elif name in _SHAPED:
            found += _SHAPED[name](value)
        else:
            found.append((name, text))
            if name in _ADDRESS_FIELDS:
                found.append((b"address", addresses(text)))
    found.append((b"names", b" ".join(dict.fromkeys([name for name, _ in evidence])).replace(b"-", b"_")))
    return found, defects


def _texts(evidence: FieldList, charset: bytes, defects: list[bytes]) -> list[bytes]:
    """The values decoded, in lower case. Nearly always all of them are plain, and then one look at them together is enough."""
    together = b"\0".join([value for _, value in evidence])
    if _is_plain(together) and len(texts := together.lower().split(b"\0")) == len(evidence):
        return texts
    return [value.lower() if name in _UNDECODED or _is_plain(value) else _decoded(value, charset, defects) for name, value in evidence]


def _is_plain(value: bytes) -> bool:
    return value.isascii() and value.find(b"=?") < 0 and value.find(b"\x1b") < 0  # "in" would fail within, and be slower


def of_part(fields: FieldList) -> list[Section]:
    """The fields of one part of a multipart, undecoded: their form tells more than their text."""
    return [(b"part " + name, value[:300].lower()) for name, value in evidence(fields[:20])]


def _decoded(value: bytes, charset: bytes, defects: list[bytes]) -> bytes:
    text, wrong = unstructured(value, charset)
    defects += wrong
    return fold(text).encode("utf-8", "replace")


def _date(value: bytes) -> list[Section]:
    return [(b"date-shape", shape(value)), (b"zone", b" ".join(_ZONE.findall(value)))]


def _message_id(value: bytes) -> list[Section]:
    return [(b"id-shape", shape(value)), (b"id-host", joined(value.partition(b"@")[2].rstrip(b"> \t").lower()))]


_SHAPED = {b"date": _date, b"message-id": _message_id}
_UNDECODED = frozenset((b"received", *_SHAPED))


@lru_cache(maxsize=1024)
def addresses(text: bytes) -> bytes:
    """Every address in a text as two tokens that hold together: the whole, and its domain. Remembered: the same people write to
    the same people."""
    found = _ADDRESS.findall(joined(text)) if b"@" in text else []
    return b" ".join([b"%b-at-%b %b" % (local, domain, domain) for local, domain in found[:50]])


def joined(host: bytes) -> bytes:
    """A host name that stays one token."""
    return host.replace(b".", b"_")


def shape(value: bytes) -> bytes:
    """A value with its letters and digits blurred: the handwriting of the software that wrote it."""
    return _without_repeats(value[:200].translate(_SHAPE))


@lru_cache(maxsize=1024)
def _without_repeats(blurred: bytes) -> bytes:
    """Remembered, since dates differ in nothing else."""
    return _REPEATS.sub(b"", blurred)
