"""Whole messages, from bytes to bytes: their digest, fields on top of them, and messages within.

`message_digest` names a message by what stays the same on the way through mail servers, mailing
programs and folders. Two copies of one message have one digest whatever line ends, folding,
transfer encoding or header fields put on top they have; two messages that differ in what they say,
in Message-ID, date, sender or subject have two. It must never depend on fields that servers and
mail programs add.

`add_fields` and `rewrite_header` put header fields on top and take forged ones out; no other byte
changes, while `email` would write the message anew. `OutgoingMessage` is a message as it leaves.
Forged fields are removed wherever some program would see them: anywhere above the first empty line,
and also on lines that only programs see which take a bare CR for a line end.

`extract_attached` finds messages forwarded as attachments, as reports in ARF (RFC 5965) have them
too. A message that was forwarded as text is none.

Pure. Must never raise, and take linear time whatever the bytes are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from email.header import Header
from functools import lru_cache
from hashlib import blake2b

from spamguard.mail.decode import decode_text, decode_transfer_encoding, decode_unstructured
from spamguard.mail.headers import BYTE_ORDER_MARK
from spamguard.mail.html import parse_page
from spamguard.mail.mime import (
    MESSAGE_TYPES,
    MimeMessage,
    ParseLimits,
    has_header,
    nested_message,
    parse_message,
)
from spamguard.storage import Spool, SpoolView

DIGEST_SIZE = 16  # bytes of a digest
_IDENTITY_LIMITS = ParseLimits(message_bytes=32 << 20, header_fields=1000, parts=1000)
_CUT_DEFECTS = frozenset((b"message-size", b"part-count", b"part-depth"))
_LIMIT_DEFECTS = _CUT_DEFECTS | {b"header-size", b"header-count", b"boundary-flood"}
_IDENTITY_FIELDS = (b"message-id", b"date", b"from", b"subject")
_WHITE_SPACE = b" \t\n\r\v\f"
_MAX_TEXT_BYTES = 1 << 20  # a longer part is compared without undoing its charset
# Servers change these transfer encodings; parts in other encodings are compared as they are.
_CHANGED_ENCODINGS = frozenset((b"base64", b"quoted-printable"))


def message_digest(raw: bytes, key: bytes, message: MimeMessage | None = None) -> bytes:
    """Sixteen bytes that name a message.

    Parameters
    ----------
    key
        The installation's secret, at most 64 bytes.
    message
        The same message taken apart, if it was. Used only when no limit cut it short.
    """
    if message is None or not _LIMIT_DEFECTS.isdisjoint(message.defects):
        message = parse_message(raw, _IDENTITY_LIMITS)
    state = blake2b(key=key, digest_size=DIGEST_SIZE, person=b"identity")
    for component in _digest_components(raw, message):
        # With its size in front, no component can pass for a part of its neighbour.
        state.update(len(component).to_bytes(8, "little"))
        state.update(component)
    return state.digest()


def _digest_components(raw: bytes, message: MimeMessage) -> Iterator[bytes]:
    """Header fields and decoded leaves, both without what servers change: quotes, white space."""
    for name in _IDENTITY_FIELDS:
        text = decode_unstructured(message.root.first_values[name])[0].replace('"', "")
        yield " ".join(text.split()).encode("utf-8", "replace")
    for leaf in message.leaves:
        data, encoding = leaf.body, leaf.encoding
        if encoding in _CHANGED_ENCODINGS:
            data = decode_transfer_encoding(data, encoding)[0]
        if leaf.media.startswith(b"text/") and len(data) <= _MAX_TEXT_BYTES:
            charset = leaf.parameters.get(b"charset", b"")
            data = decode_text(data, charset)[0].encode("utf-8", "replace")
        yield data.translate(None, _WHITE_SPACE)
    if not _CUT_DEFECTS.isdisjoint(message.defects):
        # Too large or too deep to be taken apart: all of it counts, beside the leaves.
        yield message.root.body.translate(None, _WHITE_SPACE)
        yield raw[_IDENTITY_LIMITS.message_bytes :].translate(None, _WHITE_SPACE)


# ---- header fields put on top, and taken out

_MBOX_FROM_LINE = re.compile(rb"(?:%b)?+>?From [^\n]*+\n" % BYTE_ORDER_MARK)
_BODY_START = re.compile(rb"[ \t]|\r?\n")
_BEFORE_EMPTY_LINE = re.compile(rb"\n(?=\r?\n)")
_SUBJECT = re.compile(rb"\nsubject[ \t]*+:[ \t]*+(?:\r?+\n[ \t]++|)*+", re.I)

# A field from behind its name to before its line end. By CR: a line may end in a bare CR; a
# continuation line after LF counts too, and one that begins with a colon, because with the field
# removed, the text in front of it would become a name.
_FIELD_VALUE = rb"[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+"
_FIELD_VALUE_BY_CR = (
    rb"[ \t\r]*+:[^\r\n]*+(?:(?=\r*+\n[ \t]|\r[ \t]|\r++[ \t]*+:)[\r\n]++[^\r\n]*+|)*+"
)
_LINE_END = re.compile(rb"\r*+\n|\r|")


class FieldNameSet:
    """Names of header fields in any case; `x-spam-*` stands for all names that begin like it."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower().encode() for name in names]
        self._names = frozenset(lower)
        self._prefixes = tuple([name[:-1] for name in lower if name.endswith(b"*")])

    def __contains__(self, name: bytes) -> bool:
        lower = name.lower()
        return lower in self._names or lower.startswith(self._prefixes)


def add_fields(raw: bytes, fields: Sequence[bytes], forged: Iterable[bytes]) -> bytes:
    """Put `fields` (without line ends) on top, below an mbox `From ` line, and remove every field
    whose name is in `forged`; a name that ends in `*` is a prefix.

    Line ends are those of the message.
    """
    first = raw.find(b"\n")
    line_end = b"\r\n" if first > 0 and raw[first - 1] == 0x0D else b"\n"
    head, replaced = rewrite_header(raw, fields, forged, line_end=line_end)
    return head + raw[replaced:]


def rewrite_header(
    head: bytes,
    fields: Sequence[bytes],
    forged: Iterable[bytes],
    subject_prefix: bytes = b"",
    line_end: bytes = b"\r\n",
) -> tuple[bytes, int]:
    """`add_fields` for the start of a message: the new bytes, and how many old bytes they replace.

    If the first line begins with a blank, an empty line goes in between: otherwise that line would
    continue the last field, and mail servers read it as body.

    Parameters
    ----------
    head
        At least the whole header section, or the whole message.
    subject_prefix
        Goes in front of the first Subject, with a blank, unless it is there already. A message
        without Subject gets one. The field `PREFIX_FIELD` records it for `remove_subject_prefix`.
    """
    start = header_start(head)
    # A message that begins with a blank is all body; one without an empty line is all header.
    end = start
    if not _BODY_START.match(head, start):
        before = _BEFORE_EMPTY_LINE.search(head, start)
        end = before.end() if before else len(head)
    lines = head[start:end]
    # An empty line that ends in a bare CR does not end the section: most programs read on.
    by_cr = lines.count(b"\r") > lines.count(b"\r\n")
    pattern = _field_pattern(tuple(sorted(forged)), by_cr=by_cr)
    # The first line stands behind a line end as well.
    lines = _remove_matches(pattern, b"\n" + lines)[1:]
    if prefix := subject_prefix.strip():
        subject = _SUBJECT.search(b"\n" + lines)
        at = subject.end() - 1 if subject else 0
        if subject is None or not lines.startswith(prefix, at):
            fields = [*fields, PREFIX_FIELD + b": " + prefix]
            if subject is None:
                fields.append(b"Subject: " + prefix)
            else:
                lines = lines[:at] + prefix + b" " + lines[at:]
    on_top = b"".join([field + line_end for field in fields])
    if fields and head.startswith((b" ", b"\t"), start):
        on_top += line_end
    return head[:start] + on_top + lines, end


PREFIX_FIELD = b"X-Spamguard-Prefix"
"""Records what was put in front of the subject."""
PREFIX_SEARCH_BYTES = 16 << 10
"""How much of a message is searched for that field."""
_PREFIX_LINE = re.compile(rb"\n" + PREFIX_FIELD + rb":[ \t]*+([^\r\n]++)", re.I)


def remove_subject_prefix(raw: bytes) -> bytes:
    """The message with the subject that its sender wrote; the same object without a prefix."""
    head = b"\n" + raw[:PREFIX_SEARCH_BYTES]
    line = _PREFIX_LINE.search(head)
    prefix = line[1].strip() if line else b""
    subject = _SUBJECT.search(head) if prefix else None
    if subject is None or not raw.startswith(prefix, start := subject.end() - 1):
        return raw
    end = start + len(prefix)
    return raw[:start] + raw[end + raw.startswith(b" ", end) :]


def header_start(raw: bytes) -> int:
    """Where the header section begins."""
    envelope = _MBOX_FROM_LINE.match(raw)
    return envelope.end() if envelope else 0


@lru_cache(maxsize=64)
def _field_pattern(names: tuple[bytes, ...], *, by_cr: bool) -> re.Pattern[bytes]:
    """Matches the last byte of a line end and the field behind it, without its own line end."""
    choices = b"|".join([re.escape(name).replace(rb"\*", rb"[^\s:]*+") for name in names])
    begin, value = (rb"[\r\n]", _FIELD_VALUE_BY_CR) if by_cr else (rb"\n", _FIELD_VALUE)
    return re.compile(begin + rb"(?:%b)" % (choices or rb"(?!)") + value, re.I)


def _remove_matches(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    """The text without the matches.

    At the start of a line a field goes with its own line end. Behind a bare CR it goes with that
    CR: otherwise the next line would join the one before. No empty line may stay behind, because
    the header section would end there.
    """
    remainder = bytearray()
    position = 0
    begins_line = True
    for match in pattern.finditer(text):
        remainder += (piece := text[position : match.start() + 1])
        without_cr = piece.rstrip(b"\r")
        begins_line = without_cr.endswith(b"\n") if without_cr else begins_line
        position = match.end()
        if not begins_line:
            remainder.pop()
            continue
        position = _LINE_END.match(text, position).end()  # type: ignore[union-attr]  # matches b""
        if text[position - 1] == 0x0A:
            while remainder.endswith(b"\r"):
                remainder.pop()
    return bytes(remainder + text[position:])


# ---- the message as it leaves

_HEAD_BYTES = 64 << 10  # that hold the header section of all but very odd mail
_MAX_HEADER_BYTES = 1 << 20
_FIELD_NAME = re.compile(rb"^([!-9;-~]{1,100})[ \t]*:", re.MULTILINE)
_EMPTY_LINE = re.compile(rb"\r?\n")
_FIELD_END = re.compile(rb"\n(?=[^ \t])")


def read_header_section(message: Spool, max_bytes: int = _MAX_HEADER_BYTES) -> bytes:
    """The header section with its last line end, without the empty line below it.

    If it does not end within `max_bytes`, the complete fields in them. Any line ends.
    """
    head = message.read_start(_HEAD_BYTES)
    if (end := _find_header_end(head)) is None and message.size > len(head):
        head = message.read_start(max_bytes)
        end = _find_header_end(head)
    if end is None and message.size > len(head):
        field_ends = _FIELD_END.finditer(head, max(0, len(head) - _HEAD_BYTES))
        end = max((match.end() for match in field_ends), default=0)
    return head if end is None else head[:end]


def _find_header_end(head: bytes) -> int | None:
    if head.startswith((b"\n", b"\r\n")):
        return 0
    match = _BEFORE_EMPTY_LINE.search(head)
    return match.end() if match else None


def matching_field_names(header: bytes, names: Sequence[str]) -> list[str]:
    """Which of these fields a header section has, spelt as there. A `*` at the end of a name
    stands for anything.

    >>> matching_field_names(b"x-spam-flag: YES\\r\\nTo: b\\r\\n", ["X-Spam-*"])
    ['x-spam-flag']
    """
    name_set = FieldNameSet(names)
    present = dict.fromkeys(_FIELD_NAME.findall(header))
    return [name.decode("ascii") for name in present if name in name_set]


def tag_message(message: Spool, fields: Sequence[bytes], forged: Iterable[str]) -> SpoolView:
    """The message with `fields` on top and `forged` ones removed, in its own line ends. Its head
    ends with the empty line below the header section.
    """
    header = read_header_section(message)
    empty_line = _EMPTY_LINE.match(message.read_start(len(header) + 2), len(header))
    header += empty_line[0] if empty_line else b""
    head = add_fields(header, fields, [name.encode() for name in forged])
    return SpoolView(head, message, len(header))


class OutgoingMessage:
    """A message on its way through a listener.

    Parameters
    ----------
    spool
        The message as it came, with CRLF line ends.
    received
        Our own Received field, or b"".
    forged
        Names of fields to be removed.
    max_header_bytes
        A longer header section is cut behind its last complete field.
    """

    def __init__(
        self, spool: Spool, received: bytes, forged: Iterable[str], max_header_bytes: int
    ) -> None:
        self.spool = spool
        self._received = [received] if received else []
        self._forged = [name.encode() for name in forged]
        self.header = read_header_section(spool, max_header_bytes)

    def tag(self, fields: Sequence[bytes], subject_prefix: str = "") -> SpoolView:
        """The message as it leaves: `fields` on top, above our own Received, and forged ones
        removed.
        """
        prefix = subject_prefix.encode()
        if not subject_prefix.isascii():  # RFC 2047
            prefix = Header(subject_prefix, "utf-8").encode(maxlinelen=0).encode("ascii")
        head, replaced = rewrite_header(
            self.header, [*fields, *self._received], self._forged, prefix
        )
        return SpoolView(head, self.spool, replaced)


def has_received_on_top(header: bytes) -> bool:
    """Whether the first field is a Received field: a server has recorded the client."""
    return header[:9].lower().startswith(b"received:")


# ---- messages within

_LIMITS = ParseLimits(message_bytes=64 << 20)


def extract_attached(raw: bytes) -> list[bytes]:
    """Every attached message, line ends as LF, also as a file NAME.eml of another type."""
    messages = []
    for leaf in parse_message(raw, _LIMITS, into_messages=False).leaves:
        is_message = leaf.media in MESSAGE_TYPES
        name = decode_unstructured(leaf.file_name[-300:])[0]
        if is_message or name.strip().lower().endswith(".eml"):
            if is_message:
                message, _ = nested_message(leaf)
            else:
                message, _ = decode_transfer_encoding(leaf.body, leaf.encoding)
            if message.strip() and (is_message or has_header(message)):
                messages.append(message)
    return messages


# ---- what a reader sees

_LINE_TAGS = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^>]{0,200}>")


def part_texts(raw: bytes) -> Iterator[str]:
    """What a reader sees of each part. Plain text comes first, as the mail program wrote it."""
    leaves = parse_message(raw, _LIMITS, into_messages=False).leaves
    for media in (b"text/plain", b"text/html"):
        for leaf in leaves:
            if leaf.media == media:
                data = decode_transfer_encoding(leaf.body, leaf.encoding)[0]
                text = decode_text(data, leaf.parameters.get(b"charset", b""))[0]
                if media == b"text/html":
                    text = parse_page(_LINE_TAGS.sub("\n", text.lower())).visible
                yield text
