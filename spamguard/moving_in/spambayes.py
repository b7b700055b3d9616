"""Word lists of SpamBayes, as `sb_dbexpimp.py -e` writes them: CSV, first "ham,spam" messages, then "token,ham,spam";
before version 1.1 "ham,spam," and "token`ham`spam`".

Tokens may be quoted as in a URL (RFC 3986, section 2.1); which they are is told by the first parts of its tokenizer's names. Pure:
lines in, values out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_to_bytes

from spamguard.moving_in.words import HIGHEST, Entry, Sizes, Word, text_of

_SIZES = re.compile(rb"\s*([0-9]{1,12}),([0-9]{1,12}),?\s*")
_LONGEST = 4096  # characters of a field; a token of its is a word, at most 40 with its prefixes
_NUMBER = re.compile(r"[0-9]{1,12}")


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    return _SIZES.fullmatch(head.split(b"\n")[0]) is not None


def read(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Its entries; SourceError is the caller's to raise when there are none."""
    rows = csv.reader(text_of(line).replace("\0", "") for line in lines if len(line) < _LONGEST)
    first = True
    while True:
        try:
            row = next(rows, None)
        except csv.Error:  # one field too long, a quote that never ends
            continue
        if row is None:
            return
        row = _fields(row)
        numbers = [min(int(one), HIGHEST) for one in row[-2:] if _NUMBER.fullmatch(one)]
        if first and len(numbers) == 2:
            yield Sizes(*numbers)
        elif len(row) == 3 and len(numbers) == 2:
            yield _word(_unquoted(row[0]), *numbers)
        first = False


def _fields(row: list[str]) -> list[str]:
    """A row in either form, without the empty field behind the last mark."""
    fields = row[0].split("`") if len(row) == 1 else row
    return fields[:-1] if fields[-1:] == [""] else fields


def _unquoted(token: str) -> str:
    return text_of(unquote_to_bytes(token)) if "%" in token else token


def _word(token: str, ham: int, spam: int) -> Word:
    kind, colon, rest = token.partition(":")
    if not colon:
        return Word(b"", token, ham, spam)
    if kind in ("subject", "url", "x-mailer"):
        return Word(kind.encode(), rest, ham, spam)
    if kind in ("from", "to", "cc", "sender", "reply-to"):
        what, _, text = rest.partition(":")
        if what == "addr":
            return Word(b"address", text.replace(".", "_"), ham, spam)
        return Word(kind.encode() if what == "name" else None, text, ham, spam)
    if kind == "header":
        return Word(b"names", rest.partition(":")[0].replace("-", "_"), ham, spam)
    return Word(None, token, ham, spam)
