"""Word lists of bogofilter, as `bogoutil -d wordlist.db` writes them: a line for each token, "token spam ham date".

Source: bogoutil(1), "-d". Tokens are UTF-8 in lists with `.ENCODING` 2, in any charset before. Pure: lines in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from spamguard.moving_in.words import HIGHEST, Entry, Sizes, Word, text_of

_LINE = re.compile(rb"(\S+) ([0-9]{1,12}) ([0-9]{1,12})(?: [0-9]{1,8})?\r?\n?")
_PREFIXED = re.compile(rb"(subj|head|url|to|from|rtrn|rcvd|mime):(.+)", re.DOTALL)
# Header fields of all names but these are one prefix there and a section each here; Return-Path is never evidence here.
_SECTIONS = {b"subj": b"subject", b"from": b"from", b"to": b"to", b"rcvd": b"received", b"url": b"url"}
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)+")


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    lines = head.split(b"\n")[:-1][:20]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def read(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Its entries."""
    for line in lines:
        if (found := _LINE.fullmatch(line)) is None:
            continue
        token, spam, ham = found[1], min(int(found[2]), HIGHEST), min(int(found[3]), HIGHEST)
        if token == b".MSG_COUNT":
            yield Sizes(ham, spam)
        elif not token.startswith(b"."):  # its own notes
            yield _word(token, ham, spam)


def _word(token: bytes, ham: int, spam: int) -> Word:
    prefixed = _PREFIXED.fullmatch(token)
    text = text_of(prefixed[2] if prefixed else token)
    if prefixed is None:
        return Word(b"", text, ham, spam)
    if prefixed[1] in (b"from", b"to") and _DOMAIN.fullmatch(text):
        return Word(b"address", text.replace(".", "_"), ham, spam)  # as `mail.fields.addresses` writes a domain
    return Word(_SECTIONS.get(prefixed[1]), text, ham, spam)
