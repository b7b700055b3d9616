"""Header fields: parsed, read as evidence, compared with each other, and the author of a message.

`parse_header` finds the fields (RFC 5322). `evidence_fields` and `field_sections` turn those that
may be looked at into sections of text, with tokens for addresses and for the shapes of dates and
identifiers. `relation_clues` says whether the names in a message belong together, but never what
they are called, so what is learnt holds for new senders too. `format_author` writes From as one
short text for people.

Verdicts of other filters, mailbox state and fields of our own must never become tokens: they would
be the answer instead of evidence, and the next mail may carry a forged one. No name may hide an
author's address. Must never raise; takes linear time.

It is written by hand because `email.headerregistry` takes 0.16 ms for a single From field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from spamguard.mail.decode import decode_unstructured
from spamguard.mail.text import fold

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Of UTF-8: programs on Windows write it in front of a saved message."""

FieldList = list[tuple[bytes, bytes]]  # name in lower case, value with its folding
Section = tuple[bytes, bytes]  # name of the section, folded UTF-8 text


class FieldMap(dict[bytes, bytes]):
    """The first value of each field; what is missing is empty."""

    def __missing__(self, name: bytes) -> bytes:
        return b""


# ---- parsing

# RFC 5322 section 2.2 and 2.2.3; possessive, because hostile input must not make it backtrack.
_NAME, _VALUE, _END = rb"[!-9;-~]++", rb".*+(?:\n[ \t].*+|)*+", rb"(?:\n|\Z)"
_HEADER_BLOCK = re.compile(rb"(?:%b[ \t]*+:%b%b|)*+" % (_NAME, _VALUE, _END))
_FIELD_OR_REST = re.compile(  # the rest without a name
    rb"(%b)[ \t]*+:[ \t]*+(%b)%b|(?s:.++)" % (_NAME, _VALUE, _END)
)
_FIELD_NAME_START = re.compile(rb"[!-9;-~]*+[ \t]*+")  # a name, or its beginning
# What no field begins with; mail programs skip it where fields follow that say how to read the
# message.
_JUNK_LINES = re.compile(
    rb"\xef\xbb\xbf(?=[!-9;-~]{1,100}+[ \t]*+:)"
    rb"|(?:(?!--)[^\n]{1,1000}+\n){1,5}?(?=content-(?:type|transfer-encoding)[ \t]*+:)",
    re.I,
)
# Every header has one of these, or an "X-..." field; "Attention: ..." alone begins a text.
_USUAL_NAMES = frozenset(
    b"from to subject date message-id received return-path delivered-to mime-version"
    b" content-type".split()
)
_ESSENTIAL_NAMES = sorted(_USUAL_NAMES | {b"content-transfer-encoding", b"content-disposition"})
_ESSENTIAL_FIELD = re.compile(  # the first letter alone excludes nearly all other fields
    rb"\n(?=[%b])(%b)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t][^\n]*+)*+)"
    % (bytes({name[0] for name in _ESSENTIAL_NAMES}), b"|".join(_ESSENTIAL_NAMES)),
    re.I,
)


def parse_header(
    text: bytes, max_bytes: int, max_fields: int
) -> tuple[FieldList, int, list[bytes]]:
    """The fields of the header block on top of a text, where the body starts, and the defects."""
    stop = text.find(b"\n\n", 0, max_bytes) + 1  # nearly always the end of the block
    found = _FIELD_OR_REST.findall(text, 0, stop)
    if not found or not found[-1][0]:
        window = text[:max_bytes]
        stop = _HEADER_BLOCK.match(window).end()  # type: ignore[union-attr]  # it matches b""
        found = _FIELD_OR_REST.findall(window, 0, stop)
    fields = [(name.lower(), value) for name, value in found[: max_fields + 1]]
    defects = []
    if len(text) > max_bytes and _FIELD_NAME_START.fullmatch(text, stop, max_bytes):
        defects.append(b"header-size")  # cut within a name, or behind a field
    elif stop < len(text) and not text.startswith(b"\n", stop):
        defects.append(b"header-line")  # the body starts here, as the standard library has it
    if len(fields) > max_fields:
        defects.append(b"header-count")
        fields = fields[:max_fields]
        # and the first of each that mail programs act upon
        taken = {name for name, _ in fields}
        for match in _ESSENTIAL_FIELD.finditer(b"\n" + text[:stop]):
            if (name := match[1].lower()) not in taken:
                taken.add(name)
                fields.append((name, match[2]))
    return fields, stop + text.startswith(b"\n", stop), defects


def parse_lenient_header(
    text: bytes, max_bytes: int, max_fields: int
) -> tuple[FieldList, int, list[bytes]]:
    """`parse_header` as mail programs do it: they skip some lines that are no fields."""
    fields, start, defects = parse_header(text, max_bytes, max_fields)
    if b"header-line" in defects and (junk := _JUNK_LINES.match(text, start)):
        more_fields, length, _ = parse_header(text[junk.end() :], max_bytes, max_fields)
        fields, start = fields + more_fields, junk.end() + length
    return fields, start, defects


def is_headerless_text(fields: FieldList, text: bytes, start: int) -> bool:
    """Whether what looks like a header is the start of a text without one: no blank line below it,
    and no usual field.
    """
    has_end = start < len(text) and text[start - 2 : start] == b"\n\n"
    return not has_end and not any(
        name in _USUAL_NAMES or name.startswith(b"x-") for name, _ in fields
    )


# ---- evidence

_VERDICT_NAMES = (
    # by what they say
    rb"[^:\s]*(?:spam|virus|bogosity|scan|-scl|score|bayes|phish|malware|junk-|whitelist|blacklist"
    rb"|dns-?r?bl|rbl-|karma|reputation|quarantine|sflag|verdict|grey-?list)[^:\s]*"
    # by whose they are
    rb"|[^:\s]*(?:crm114|rspamd|ironport|forefront|bitdefender|cloudmark|razor|pyzor|amavis"
    rb"|brightmail|purgate|messagesniffer|gbudb|mailcleaner|smartermail|hornetsecurity)[^:\s]*"
    rb"|x-(?:barracuda|asg|junk|pm-|vade|proofpoint|rc-|microsoft-(?:antispam|exchange)|eopa|eopt"
    rb"|ms-exchange-(?:organization|atp|safe|crosspremises|forest|skiplisted|slblob)"
    rb"|ms-office365-filter|message-(?:info|delivery|sniffer)|classification|text-classification"
    rb"|popfile|hammie|sa-|dcc-|cmae-|cm-analysis|ctch-|cnfs-|tm-(?:as|received|auth)|tmase|imss"
    rb"|klms|ksmg|kse|ui-|pmx|perlmx|canit|declude|clx-|ham-|vr-|policy-|sid-|ymail|yahoofiltered"
    rb"|dmarc|mimecast-|watchguard|filter|pstn-|nas-|elnk-|eset|assp-|xfinity-v|authority-analysis"
    rb"|aol-|mailgun-(?:spf|dkim)|mras|mru-|[0-9a-f]{8}\Z|haraka-|mox-|feas-|fe-policy|sophos-"
    rb"|lased-|drweb|halon-|toi-|zoho-av|recommended-action|amp-result|mdav|md[a-z]+lookup|gfi-|esva"
    rb"|libra-?esva|wp-av)[^:\s]*"
)
_MAILBOX_STATE_NAMES = (
    rb"status|x-status|keywords|x-keywords|x-labels?|x-folder|x-uidl?|x-tuid|x-imap(?:base)?"
    rb"|x-account-key|x-offlineimap[^:\s]*|x-pmflags|x-unsent|x-from-line"
    rb"|x-(?:mozilla|evolution|kmail|gmail|apple|getmail|dovecot|gnus|vm|eudora|sylpheed|claws|mutt"
    rb"|balsa|rmail|trojita)(?:-[^:\s]*)?"
    rb"|content-length|lines|x-sieve[^:\s]*"
    rb"|(?:x-)?delivered-to|return-path|envelope-(?:to|from)|x-(?:envelope|original|resolved)-"
    rb"(?:to|from)"
)
# Anybody can write results, and true ones add hardly anything; signatures never come twice.
_AUTHENTICATION_NAMES = (
    rb"(?:x-)?authentication-results[^:\s]*|received-spf|(?:dkim|domainkey)-signature|arc-[^:\s]*"
    rb"|x-received|x-google-[^:\s]*|x-gm-[^:\s]*"
)
_NEVER_EVIDENCE = re.compile(
    b"|".join((_VERDICT_NAMES, _MAILBOX_STATE_NAMES, _AUTHENTICATION_NAMES)), re.I
)
_RESERVED_SECTIONS = frozenset(  # that are no fields
    b"address names date-shape zone id-shape id-host hidden tags url host clue attachment"
    b" footer".split()
)
_ADDRESS_FIELDS = frozenset((b"from", b"to", b"cc", b"reply-to", b"sender"))
_ADDRESS = re.compile(rb"([\w+=/!$%&'*\x80-\xff-]{1,64}+)@([\w-]{1,190}+)")  # its dots replaced
_TIME_ZONE = re.compile(rb"[+-]\d{4}\b|\b[a-zA-Z]{3,4}\s*\Z")
_SHAPE_TABLE = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.$@-:+/=<>, ",
    b"0000000000aaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAAAAAAAAA_$_--_____--",
)
_REPEATS = re.compile(rb"(?<=0)0+|(?<=a)a+|(?<=A)A+")
_MAX_VALUE_BYTES = 2000


class _SectionNames(dict[bytes, bytes]):
    """Section of a field by its lower-case name; empty when it is never evidence."""

    def __missing__(self, name: bytes) -> bytes:
        section = b"field " + name if name in _RESERVED_SECTIONS else name[:40]
        if _NEVER_EVIDENCE.fullmatch(name[:_MAX_NAME_BYTES]):
            section = b""
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME_BYTES:  # senders invent names
            self[name] = section
        return section


_MAX_NAMES, _MAX_NAME_BYTES = 2048, 100
_section_names = _SectionNames()


def evidence_fields(fields: FieldList) -> FieldList:
    """The fields that may be looked at, under the names of their sections, with values cut."""
    return [
        (section, value[:_MAX_VALUE_BYTES])
        for name, value in fields
        if (section := _section_names[name])
    ]


def field_sections(evidence: FieldList, charset: bytes = b"") -> tuple[list[Section], list[bytes]]:
    """A section for each field, then addresses, shapes and the names of all fields; and defects."""
    sections: list[Section] = []
    defects: list[bytes] = []
    joined = b"\0".join([value for _, value in evidence])
    # `find`, because "in" is slower: it first tries to make a number of what it looks for
    is_plain = joined.isascii() and joined.find(b"=?") < 0 and joined.find(b"\x1b") < 0
    texts = joined.lower().split(b"\0")  # much faster than one by one
    if len(texts) != len(evidence):
        texts = [value.lower() for _, value in evidence]
    for (name, value), lower in zip(evidence, texts, strict=True):
        text = lower
        if name == b"received":
            sections.append((name, text.rpartition(b";")[0] or text))  # without the date
        elif name == b"date":
            zones = b" ".join(_TIME_ZONE.findall(value))
            sections += (b"date-shape", value_shape(value)), (b"zone", zones)
        elif name == b"message-id":
            host = text.partition(b"@")[2].rstrip(b"> \t")
            sections += (b"id-shape", value_shape(value)), (b"id-host", host_token(host))
        else:
            if not is_plain and not (
                value.isascii() and value.find(b"=?") < 0 and value.find(b"\x1b") < 0
            ):
                decoded, value_defects = decode_unstructured(value, charset)
                defects += value_defects
                if name in _ADDRESS_FIELDS:
                    decoded = _WIDE_HOST.sub(_ascii_match, decoded)
                text = fold(decoded).encode("utf-8", "replace")
            sections.append((name, text))
            if name in _ADDRESS_FIELDS:
                sections.append((b"address", address_tokens(text)))
    names = b" ".join(dict.fromkeys([name for name, _ in evidence])).replace(b"-", b"_")
    return [*sections, (b"names", names)], defects


def part_sections(fields: FieldList) -> list[Section]:
    """The fields of one part of a multipart, undecoded: their form tells more than their text."""
    return [(b"part " + name, value[:300].lower()) for name, value in evidence_fields(fields[:20])]


@lru_cache(maxsize=1024)
def address_tokens(text: bytes) -> bytes:
    """For every address in a text two tokens, the whole address and its domain."""
    addresses = _ADDRESS.findall(host_token(text)) if b"@" in text else []
    return b" ".join([b"%b-at-%b %b" % (local, domain, domain) for local, domain in addresses[:50]])


def host_token(host: bytes) -> bytes:
    """A host name as one token."""
    return host.replace(b".", b"_")


# ---- internationalised domains

# Browsers and mail programs drop these characters (UTS #46), and read U+3002 as a dot.
_IGNORED_IN_HOSTS = re.compile("[\u00ad\u034f\u200b-\u200d\u2060\u2064\ufe00-\ufe0f\ufeff]")
_WIDE_HOST = re.compile(r"(?<=@)[^\s@<>()\[\],:;\"\\]{1,190}")
_MAX_LABELS = 5  # at the end of a host: more are never looked at
# Characters times distinct ones, which is what a label costs; registered ones have less.
_MAX_LABEL_COST = 400


@lru_cache(maxsize=4096)
def ascii_host(host: str) -> str:
    """A host name with its labels as A-labels (RFC 5890), as browsers make them.

    What cannot be such a label stays as it is.

    >>> ascii_host("B\u00fccher\u3002example")
    'xn--bcher-kva.example'
    """
    if host.isascii():
        return host
    normal = unicodedata.normalize("NFKC", _IGNORED_IN_HOSTS.sub("", host)).lower()
    labels = normal.replace("\u3002", ".").rsplit(".", _MAX_LABELS)
    return ".".join(map(_ascii_label, labels))


def _ascii_label(label: str) -> str:
    if label.isascii() or "." in label or len(label) * len(set(label)) > _MAX_LABEL_COST:
        return label
    return "xn--" + label.encode("punycode").decode("ascii")


def _ascii_match(match: re.Match[str]) -> str:
    return ascii_host(match[0])


def value_shape(value: bytes) -> bytes:
    """A value with letters and digits blurred: the handwriting of the software that wrote it.

    >>> value_shape(b"<20261123.4ab@Example.org>")
    b'_0_0a_Aa_a_'
    """
    return _drop_repeats(value[:200].translate(_SHAPE_TABLE))


@lru_cache(maxsize=1024)  # blurred dates are nearly all alike
def _drop_repeats(blurred: bytes) -> bytes:
    return _REPEATS.sub(b"", blurred)


# ---- relations between the names in a message

_ADDRESS_HOST = re.compile(rb"@([\w.-]{1,190})")
# Registries of countries sell names below these.
_SECOND_LEVEL_LABELS = frozenset(b"ac co com edu gov ne net or org".split())
_MAX_HOSTS = 50
_MAX_LINK_DOMAINS = 5
_MAX_ADDRESS_OFFSET = 300  # bytes of a field in which an address is looked for
_MIN_NAME_LETTERS = 3  # of a word in a name


def relation_clues(
    first_values: FieldMap, received: Sequence[bytes], hosts: Sequence[str]
) -> list[bytes]:
    """Tokens that say which of these belong together: author, recipient, reply address, servers on
    the way, and links.

    Parameters
    ----------
    first_values
        Of the header fields.
    received
        Received fields, in lower case.
    hosts
        Of links, in lower case.
    """
    sender, recipient, answered, origin = [
        registered_domain(first_values[name])
        for name in (b"from", b"to", b"reply-to", b"message-id")
    ]
    clues = [b"to_sender" if sender and sender == recipient else b"to_other"]
    if b"reply-to" in first_values:
        clues.append(b"reply_to_sender" if sender == answered else b"reply_to_other")
    if hosts:
        owners = {registered_part(host.encode("utf-8", "replace")) for host in hosts[:_MAX_HOSTS]}
        where = b"links_some_sender" if sender in owners else b"links_elsewhere"
        clues.append(b"links_sender" if owners == {sender} else where)
        clues.append(b"link_owners_%d" % min(len(owners), _MAX_LINK_DOMAINS))
    clues.append(_name_clue(first_values[b"from"][:_MAX_ADDRESS_OFFSET], sender))
    servers = b"\n".join(received)
    for domain, name in ((sender, b"sender"), (origin, b"id")):
        has_passed = domain and servers.find(domain) >= 0  # `find`: as in `field_sections`
        clues.append(name + (b"_passed_on" if has_passed else b"_not_passed_on"))
    return clues


_COMMENT_ONLY = re.compile(rb"\(([^()]*+)\)")
_LETTERS = re.compile("[a-z]+")


@lru_cache(maxsize=1024)
def _name_clue(author: bytes, domain: bytes) -> bytes:
    """Whether a word of the name in From stands in the sender's domain, or all its letters do."""
    name, bracket, _ = author.rpartition(b"<")
    if not bracket:
        name = b" ".join(_COMMENT_ONLY.findall(author))
    text = fold(decode_unstructured(name)[0])
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = _LETTERS.findall(text)
    letters, owner = "".join(words), "".join(_LETTERS.findall(domain.decode().partition(".")[0]))
    if not letters:
        return b"name_none"
    belongs = (
        owner in words
        or any(len(word) >= _MIN_NAME_LETTERS and word in owner for word in words)
        or (len(letters) >= _MIN_NAME_LETTERS and letters in owner)
        or (len(owner) >= _MIN_NAME_LETTERS and owner in letters)
    )
    return b"name_in_domain" if belongs else b"name_elsewhere"


@lru_cache(maxsize=16)  # for traits, which ask for the same fields a moment later; they may be long
def registered_domain(value: bytes) -> bytes:
    """The registered domain of the first address in a field, in brackets if any is: a name may look
    like an address. Empty if none is near its start.

    >>> registered_domain(b"Anna <anna@mail.example.co.uk>")
    b'example.co.uk'
    """
    start = value[:_MAX_ADDRESS_OFFSET]
    if not start.isascii():
        start = _WIDE_HOST.sub(_ascii_match, start.decode("utf-8", "replace")).encode()
    match = _ADDRESS_HOST.search(start, max(start.find(b"<"), 0)) or _ADDRESS_HOST.search(start)
    return registered_part(match[1]) if match else b""


@lru_cache(maxsize=4096)
def registered_part(host: bytes) -> bytes:
    """The part of a host name that somebody registered, near enough without a list of suffixes."""
    labels = host.lower().strip(b".").rsplit(b".", 3)[-3:]
    is_country = len(labels) == 3 and len(labels[2]) == 2 and labels[1] in _SECOND_LEVEL_LABELS
    return b".".join(labels if is_country else labels[-2:])


# ---- the author

_MAX_NAME_CHARACTERS, _MAX_ADDRESS_CHARACTERS = 48, 64
_ELLIPSIS = "..."  # in ASCII, because history keeps a text with any other character twice
_MAX_AUTHORS = 2
_MAX_END_BYTES = 500  # at either end of a field; an address stands in the last ones
COMMENT = rb"\((?:[^()\\]|\\.|)*+\)"
for _ in range(3):  # comments in comments (RFC 5322 section 3.2.2)
    COMMENT = rb"\((?:[^()\\]|\\.|%b|)*+\)" % COMMENT
# a quoted string, a comment, an address in brackets, a separator of authors; else words
_FROM_PIECE = re.compile(
    rb'"(?:[^"\\]|\\.|)*+"|%b|<[^<>]*+>?|[,;]|[^"(<,;\\]++|\\?.' % COMMENT, re.S
)
_SEPARATORS = b" \t\r\n,;"
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)


def format_author(value: bytes) -> str:
    """A value of From as `Name <address>`, or as the address alone; `Name <>` without an address.

    The name is as strangers wrote it. Of several authors: the first, the address of the second, and
    dots for others. Long names are cut behind, long addresses in front: their end says whose they
    are.

    >>> format_author(b'"Smith, Anna" <anna@example.org>')
    'Smith, Anna <anna@example.org>'
    """
    if len(value) > 2 * _MAX_END_BYTES:
        value = value[:_MAX_END_BYTES] + value[-_MAX_END_BYTES:]
    *authors, rest = _iter_mailboxes(value)
    name, address = authors[0] if authors else rest
    text = " ".join(decode_unstructured(name)[0].split())
    if len(text) > _MAX_NAME_CHARACTERS:
        text = text[: _MAX_NAME_CHARACTERS - len(_ELLIPSIS)] + _ELLIPSIS
    first_address = _printable_address(address)
    parts = [f"{text} <{first_address}>" if text else first_address]
    parts += [_printable_address(address) for _, address in authors[1:_MAX_AUTHORS]]
    if len(authors) > _MAX_AUTHORS:
        parts.append(_ELLIPSIS)
    return ", ".join(parts)


def split_author(author: str) -> tuple[str, str]:
    """Name and rest of what `format_author` gives: the address, in brackets if there is a name."""
    name, bracket, address = author.rpartition(" <")
    return name, bracket.strip() + address


def is_sender(author: str, sender: str) -> bool:
    """Whether the address of what `format_author` gives is the envelope sender; case is ignored."""
    return split_author(author)[1].strip("<>").lower() == sender.lower()


def _iter_mailboxes(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and address of each author; last, what is left without an address.

    Words without an address go with what follows them: names of groups, and names with a comma that
    is not quoted.
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


def _find_bare_address(words: bytes) -> tuple[bytes, bytes | None]:
    pieces = words.split()
    for number, piece in reversed(list(enumerate(pieces))):
        if b"@" in piece and not piece.startswith(b"=?"):
            return b" ".join(pieces[:number] + pieces[number + 1 :]), piece
    return words, None


def _printable_address(address: bytes) -> str:
    text = "".join(address.decode("utf-8", "replace").split())
    text = "".join([letter if letter.isprintable() else "\ufffd" for letter in text])
    if len(text) > _MAX_ADDRESS_CHARACTERS:
        text = _ELLIPSIS + text[len(_ELLIPSIS) - _MAX_ADDRESS_CHARACTERS :]
    return text
