"""Header fields as evidence: which are read, how, and which never are.

Spam-verdict headers of any filter, mailbox-state headers and our own must never become tokens: they
would be the answer, not evidence, and the next mail may carry a forged one.

Who a message says has written it: the From of its header (RFC 5322, 3.6.2) as one short text. Never
raises; linear time.

Must never let a name hide the address: whatever names look like, what stands behind the last "<" is
the address.

Whether the names in a message belong together: who sends it, who wants the answer, where its links
lead, who passed it on.

Says only how they relate, never what they are called, so that what is learnt holds for senders
never seen. Pure; never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from spamguard.mail.decode import decode_unstructured, fold
from spamguard.mail.mime import FieldList, FieldMap

Section = tuple[bytes, bytes]  # name of the section, folded UTF-8 text

_VERDICT_NAMES = (
    rb"[^:\s]*(?:spam|virus|bogosity|crm114|mailscanner|scan|rspamd|ironport|forefront|-scl|bitdefender|score|cloudmark|razor|pyzor|bayes"
    rb"|amavis|brightmail|antiphish|malware|purgate|phishing|messagesniffer|gbudb|whitelist|blacklist|dns-?r?bl|rbl-)[^:\s]*"
    rb"|x-(?:barracuda|asg|junk|pm-|vade|proofpoint|rc-|microsoft-antispam|exchange-antispam|ms-exchange-organization|classification"
    rb"|text-classification|popfile|hammie|sa-|dcc-|cmae-|ctch-|cnfs-|tm-as|tmase|imss|klms|kse|ui-|pmx|perlmx|canit|declude|clx-|ham-|vr-"
    rb"|policy-|message-sniffer|sid-|ymail-|yahoofiltered|dmarc-|mimecast-|watchguard|filter|pstn-|nas-|elnk-|eset|assp-|xfinity-v"
    rb"|authority-analysis)[^:\s]*"
)
_MAILBOX_STATE_NAMES = (
    rb"status|x-status|keywords|x-keywords|x-label|x-folder|x-uidl?|x-tuid|x-imap(?:base)?|x-account-key|x-offlineimap[^:\s]*"
    rb"|x-(?:mozilla|evolution|kmail|gmail|apple|getmail|dovecot)-[^:\s]*|content-length|lines|x-sieve[^:\s]*"
    rb"|(?:x-)?delivered-to|return-path|envelope-(?:to|from)|x-(?:envelope|original|resolved)-(?:to|from)"
)
# anybody can write outcomes, and true ones tell hardly anything that the rest does not; signatures
# are noise that never comes twice
_AUTHENTICATION_NAMES = rb"(?:x-)?authentication-results[^:\s]*|received-spf|(?:dkim|domainkey)-signature|arc-[^:\s]*|x-received|x-google-[^:\s]*|x-gm-[^:\s]*"
_NEVER_EVIDENCE = re.compile(
    b"|".join((_VERDICT_NAMES, _MAILBOX_STATE_NAMES, _AUTHENTICATION_NAMES)), re.I
)

_ADDRESS_PATTERN = re.compile(rb"([\w+=/!$%&'*-]{1,64}+)@([\w-]{1,190}+)")  # its dots replaced
_TIME_ZONE = re.compile(rb"[+-]\d{4}\b|\b[a-zA-Z]{3,4}\s*\Z")
_SHAPE_TABLE = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.$@-:+/=<>, ",
    b"0000000000aaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAAAAAAAAA_$_--_____--",
)
_REPEATS = re.compile(rb"(?<=0)0+|(?<=a)a+|(?<=A)A+")
_ADDRESS_FIELDS = frozenset((b"from", b"to", b"cc", b"reply-to", b"sender"))
_RESERVED_SECTIONS = frozenset(  # other sections
    b"address names date-shape zone id-shape id-host hidden tags url host clue attachment footer".split()
)
_MAX_VALUE_BYTES = 2000  # of one field
_MAX_CACHED_NAMES = 2048


def is_evidence(name: bytes) -> bool:
    """Whether a field of that name (any case) may be looked at."""
    return _SECTION_NAMES[name[:100].lower()] != b""


class _SectionNames(dict[bytes, bytes]):
    """Section of a field with that lower-case name; empty when the field is never evidence.
    Remembers so many at most.
    """

    def __missing__(self, name: bytes) -> bytes:
        if len(self) == _MAX_CACHED_NAMES:
            self.clear()
        never = _NEVER_EVIDENCE.fullmatch(name)
        self[name] = section = (
            b"" if never else b"field " + name if name in _RESERVED_SECTIONS else name[:40]
        )
        return section


_SECTION_NAMES = _SectionNames()


def evidence_fields(fields: FieldList) -> FieldList:
    """The fields that may be looked at, under the names of their sections, values cut to what is
    looked at.
    """
    return [
        (section, value[:_MAX_VALUE_BYTES])
        for name, value in fields
        if (section := _SECTION_NAMES[name[:100]])
    ]


def field_sections(evidence: FieldList, charset: bytes = b"") -> tuple[list[Section], list[bytes]]:
    """Every usable field as a section of its own name, addresses and shapes beside them; and the
    defects. charset: of the body.
    """
    found: list[Section] = []
    defects: list[bytes] = []
    for (name, value), text in zip(
        evidence, _decode_values(evidence, charset, defects), strict=True
    ):
        if name == b"received":
            found.append((name, text.rpartition(b";")[0] or text))  # without the date
        elif name in _SHAPED_FIELDS:
            found += _SHAPED_FIELDS[name](value)
        else:
            found.append((name, text))
            if name in _ADDRESS_FIELDS:
                found.append((b"address", address_tokens(text)))
    found.append(
        (b"names", b" ".join(dict.fromkeys([name for name, _ in evidence])).replace(b"-", b"_"))
    )
    return found, defects


def _decode_values(evidence: FieldList, charset: bytes, defects: list[bytes]) -> list[bytes]:
    """The values decoded, in lower case. Nearly always all of them are plain, and then one look at
    them together is enough.
    """
    together = b"\0".join([value for _, value in evidence])
    if _is_plain_ascii(together) and len(texts := together.lower().split(b"\0")) == len(evidence):
        return texts
    return [
        value.lower()
        if name in _UNDECODED_FIELDS or _is_plain_ascii(value)
        else _decode_value(value, charset, defects)
        for name, value in evidence
    ]


def _is_plain_ascii(value: bytes) -> bool:
    return (
        value.isascii() and value.find(b"=?") < 0 and value.find(b"\x1b") < 0
    )  # "in" would fail within, and be slower


def part_sections(fields: FieldList) -> list[Section]:
    """The fields of one part of a multipart, undecoded: their form tells more than their text."""
    return [(b"part " + name, value[:300].lower()) for name, value in evidence_fields(fields[:20])]


def _decode_value(value: bytes, charset: bytes, defects: list[bytes]) -> bytes:
    text, wrong = decode_unstructured(value, charset)
    defects += wrong
    return fold(text).encode("utf-8", "replace")


def _date_sections(value: bytes) -> list[Section]:
    return [(b"date-shape", value_shape(value)), (b"zone", b" ".join(_TIME_ZONE.findall(value)))]


def _message_id_sections(value: bytes) -> list[Section]:
    return [
        (b"id-shape", value_shape(value)),
        (b"id-host", host_token(value.partition(b"@")[2].rstrip(b"> \t").lower())),
    ]


_SHAPED_FIELDS = {b"date": _date_sections, b"message-id": _message_id_sections}
_UNDECODED_FIELDS = frozenset((b"received", *_SHAPED_FIELDS))


@lru_cache(maxsize=1024)
def address_tokens(text: bytes) -> bytes:
    """Every address in a text as two tokens that hold together: the whole, and its domain.
    Remembered: the same people write to the same people.
    """
    found = _ADDRESS_PATTERN.findall(host_token(text)) if b"@" in text else []
    return b" ".join([b"%b-at-%b %b" % (local, domain, domain) for local, domain in found[:50]])


def host_token(host: bytes) -> bytes:
    """A host name that stays one token."""
    return host.replace(b".", b"_")


def value_shape(value: bytes) -> bytes:
    """A value with its letters and digits blurred: the handwriting of the software that wrote it."""
    return _drop_repeats(value[:200].translate(_SHAPE_TABLE))


@lru_cache(maxsize=1024)
def _drop_repeats(blurred: bytes) -> bytes:
    """Remembered, since dates differ in nothing else."""
    return _REPEATS.sub(b"", blurred)


_MAX_NAME_CHARACTERS, _MAX_ADDRESS_CHARACTERS = 48, 64  # characters
_ELLIPSIS = "..."  # all of a text in ASCII is kept but once (`history.row`)
_MAX_AUTHORS = 2  # of several authors
# bytes at either end of a field, of which more is never read: the address is in the last ones
_MAX_END_BYTES = 500

_COMMENT = rb"\((?:[^()\\]|\\.|)*+\)"
for _ in range(3):  # comments in comments (RFC 5322, 3.2.2)
    _COMMENT = rb"\((?:[^()\\]|\\.|%b|)*+\)" % _COMMENT
# what is quoted, a comment, an address in brackets, what stands between authors; else words
_FROM_PIECE = re.compile(
    rb'"(?:[^"\\]|\\.|)*+"|%b|<[^<>]*+>?|[,;]|[^"(<,;\\]++|\\?.' % _COMMENT, re.S
)
_SEPARATORS = b" \t\r\n,;"
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)

_Mailbox = tuple[bytes, bytes]  # its name, as it was written but for quotes, and its address


def format_author(value: bytes) -> str:
    """Of a From's value: `Name <address>`, or the address alone; `Name <>` where there is none. The
    name is as strangers wrote it.

    Of several authors the first, then the second's address, then dots for others. Long names are
    cut, and long addresses in front: whose they are, the end says.
    """
    *found, (name, address) = _iter_mailboxes(
        value
        if len(value) <= 2 * _MAX_END_BYTES
        else value[:_MAX_END_BYTES] + value[-_MAX_END_BYTES:]
    )
    if found:
        name, address = found[0]
    text = " ".join(decode_unstructured(name)[0].split())
    text = (
        text if len(text) <= _MAX_NAME_CHARACTERS else text[: _MAX_NAME_CHARACTERS - 3] + _ELLIPSIS
    )
    told = [
        f"{text} <{_printable_address(address)}>" if text else _printable_address(address),
        *[_printable_address(one) for _, one in found[1:_MAX_AUTHORS]],
    ]
    return ", ".join(told) + (f", {_ELLIPSIS}" if len(found) > _MAX_AUTHORS else "")


def split_author(author: str) -> tuple[str, str]:
    """Of what `author` gives: the name, "" without one; and the rest, which is the address, behind
    a name in its brackets.
    """
    name, bracket, address = author.rpartition(" <")
    return name, bracket.strip() + address


def is_sender(author: str, sender: str) -> bool:
    """Whether what `author` gives is, beside a name, that envelope sender, whatever their case."""
    return split_author(author)[1].strip("<>").lower() == sender.lower()


def _iter_mailboxes(value: bytes) -> Iterator[_Mailbox]:
    """One after the other. What has no address goes with what follows it: groups' names, and commas
    that were not quoted.
    """
    name, comment, address = b"", b"", None
    for piece in (*_FROM_PIECE.findall(value), b","):
        kind = piece[:1] if len(piece) > 1 or piece in b",;" else b""
        if kind in (b",", b";") or (kind == b"<" and address is not None):
            if address is None:
                name, address = _find_bare_address(name)
            if address is None:
                name += piece
                continue
            yield name.strip(_SEPARATORS) or comment, address
            name, comment, address = b"", b"", None
        if kind == b"<":
            address = piece.strip(b"<>")
        elif kind == b'"':
            name += _QUOTED_PAIR.sub(rb"\1", piece[1:-1])
        elif kind == b"(":
            comment = comment or piece[1:-1]
        elif kind not in (b",", b";"):
            name += piece
    yield name.strip(_SEPARATORS) or comment, b""


def _find_bare_address(name: bytes) -> tuple[bytes, bytes | None]:
    """What of these words is an address without brackets, if any is."""
    words = name.split() if b"@" in name else []
    found = next(
        (word for word in reversed(words) if b"@" in word and not word.startswith(b"=?")), None
    )
    return (
        (name, None)
        if found is None
        else (b" ".join([word for word in words if word is not found]), found)
    )


def _printable_address(address: bytes) -> str:
    """Without what is not seen, wherever it stands."""
    text = "".join(address.decode("utf-8", "replace").split())
    text = (
        text
        if text.isprintable()
        else "".join([letter if letter.isprintable() else "\ufffd" for letter in text])
    )
    return (
        text
        if len(text) <= _MAX_ADDRESS_CHARACTERS
        else _ELLIPSIS + text[3 - _MAX_ADDRESS_CHARACTERS :]
    )


_ADDRESS_HOST = re.compile(rb"@([\w.-]{1,190})")
_SECOND_LEVEL_LABELS = frozenset(
    (b"ac", b"co", b"com", b"edu", b"gov", b"ne", b"net", b"or", b"org")
)  # below a country: names are sold under these
_MAX_HOSTS = 50
_MAX_LINK_DOMAINS = 5
_MAX_ADDRESS_BYTES = 300  # of a field
_MAX_CACHED_FIELDS = 16  # of any size


def relation_clues(named: FieldMap, received: Sequence[bytes], hosts: Sequence[str]) -> list[bytes]:
    """named: header fields. received: in lower case. hosts: of links, in lower case."""
    sender = _field_domain(named, b"from")
    found = [b"to_sender" if sender and sender == _field_domain(named, b"to") else b"to_other"]
    if b"reply-to" in named:
        found.append(
            b"reply_to_sender" if sender == _field_domain(named, b"reply-to") else b"reply_to_other"
        )
    if hosts:
        found += _link_clues(sender, set(map(_host_domain, hosts[:_MAX_HOSTS])))
    servers, origin = b"\n".join(received), _field_domain(named, b"message-id")
    # "in" would look first whether it is a number, and build the error that it is not
    found.append(
        b"sender_passed_on" if sender and servers.find(sender) >= 0 else b"sender_not_passed_on"
    )
    found.append(b"id_passed_on" if origin and servers.find(origin) >= 0 else b"id_not_passed_on")
    return found


def _field_domain(named: FieldMap, field: bytes) -> bytes:
    return registered_domain(named[field]) if field in named else b""


@lru_cache(maxsize=_MAX_CACHED_FIELDS)
def registered_domain(value: bytes) -> bytes:
    """Who owns the first address in a field, as a name of a domain; empty: there is none near its
    start.

    Remembered, since each field of a message is asked for twice: here and for its traits.
    """
    match = _ADDRESS_HOST.search(value, 0, _MAX_ADDRESS_BYTES)
    return _registered_part(match[1]) if match else b""


def _host_domain(host: str) -> bytes:
    return _registered_part(host.encode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _registered_part(host: bytes) -> bytes:
    """The part of a host's name that somebody registered, near enough without a list of all
    countries.
    """
    labels = host.lower().strip(b".").rsplit(b".", 3)[-3:]
    return b".".join(
        labels
        if len(labels) == 3 and len(labels[2]) == 2 and labels[1] in _SECOND_LEVEL_LABELS
        else labels[-2:]
    )


def _link_clues(sender: bytes, owners: set[bytes]) -> list[bytes]:
    where = b"links_some_sender" if sender in owners else b"links_elsewhere"
    return [
        b"links_sender" if owners == {sender} else where,
        b"link_owners_%d" % min(len(owners), _MAX_LINK_DOMAINS),
    ]
