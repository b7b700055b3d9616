"""Mail with hardly a header, as some corpora have it: for measuring what the text alone, and the
fields that a sender writes, are worth to a filter.

Kept fields keep their bytes. Marks of mailing lists are cut from the subject, because they reveal
the class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tests.bench.streams import Mail

_CONTENT = frozenset(("subject", "mime-version", "content-type", "content-transfer-encoding"))
_FIELD = re.compile(rb"[^\n]*(?:\n[ \t][^\n]*)*")
MARK = re.compile(rb"\[[^]\n]{2,30}\]\s*")


def bare(raw: bytes, others: Collection[str] = ()) -> bytes:
    """The message, its header cut to the subject, the content fields and `kept` (lower case)."""
    head, gap, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    kept = []
    for field in _FIELD.findall(head):
        name = field.partition(b":")[0].strip().lower().decode("latin-1")
        if name == "subject":
            kept.append(MARK.sub(b"", field))
        elif name in _CONTENT or name in others:
            kept.append(field)
    return b"\n".join(kept) + gap + body


def changed(mail: Sequence[Mail], change: Callable[[bytes], bytes], directory: Path) -> list[Mail]:
    """Changed copies of all messages, written into a directory."""
    directory.mkdir(parents=True)
    found = []
    for number, (label, path) in enumerate(mail):
        copy = directory / f"{number:06}"
        copy.write_bytes(change(path.read_bytes()))
        found.append(Mail(label, copy))
    return found
