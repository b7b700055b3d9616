"""Header sections with any line ends, and fields on top of them; the body is never touched."""

from __future__ import annotations

from pathlib import Path

from spamguard.mail import message as mail_message
from spamguard.storage import Spool

FORGED = ("X-Spam-*", "X-Bogosity")


def spooled(directory: Path, raw: bytes) -> Spool:
    spool = Spool(directory)
    spool.write(raw)
    return spool


def test_a_header_section_without_an_end_is_bounded(tmp_path: Path) -> None:
    field = b"X-Long: " + b"y" * 1000 + b"\r\n"
    message = spooled(tmp_path, b"X-Spam-Flag: YES\r\n" + field * 2000)
    head = mail_message.read_header_section(message)
    assert len(head) < 1 << 20
    assert head.endswith(b"\r\n")
    tagged = mail_message.tag_message(message, [b"X-Y: z"], FORGED)
    assert b"".join(tagged.chunks()) == b"X-Y: z\r\n" + field * 2000
