"""A process that prints what a reader sees of a message (`python -m spamguard.web.preview FILE`).

The web process never parses mail itself: it starts this one for a preview, and kills it when it
takes too long. The text is plain and bounded: the plain part, or else the visible text of the HTML
part, which is in lower case then. Must never load anything that the message names.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from spamguard.mail.message import part_texts
from spamguard.proxy.history import readable

MAX_CHARACTERS = 16_384
_MAX_MESSAGE_BYTES = 1 << 20  # that are looked at
_CPU_SECONDS, _MEMORY_BYTES = 4, 1 << 30


def main(arguments: Sequence[str]) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with Path(arguments[0]).open("rb") as file:
        text = preview_text(file.read(_MAX_MESSAGE_BYTES))
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


def preview_text(raw: bytes) -> str:
    """Return the first text of a message that is not blank, cut; "" if there is none."""
    text = next((text.strip() for text in part_texts(raw) if text.strip()), "")
    lines = text[:MAX_CHARACTERS].replace("\t", " ").splitlines()
    return "\n".join(readable(line, MAX_CHARACTERS).rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
