"""Header sections with any line ends, and fields on top of them; the body is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.mail import message as mail_message
from spamguard.storage import Spool

FORGED = ("X-Spam-*", "X-Bogosity")
HEAD = b"Subject: x\r\nX-Spam-Flag: YES\r\n\tmore\r\nx-bogosity: y\r\nTo: b\r\n"


def spooled(directory: Path, raw: bytes) -> Spool:
    spool = Spool(directory)
    spool.write(raw)
    return spool


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("body", [b"", b"\r\nhello\n\x00\r\xff", b" x", b"\n\n\n"])
def test_only_the_header_section_changes(tmp_path: Path, end: bytes, body: bytes) -> None:
    head = HEAD.replace(b"\r\n", end)
    message = spooled(tmp_path, head + end + body)
    assert mail_message.read_header_section(message) == head
    tagged = mail_message.tag_message(message, [b"X-Spam-Flag: NO", b"X-Y: z"], FORGED)
    top = b"X-Spam-Flag: NO" + end + b"X-Y: z" + end
    assert b"".join(tagged.chunks()) == top + b"Subject: x" + end + b"To: b" + end + end + body
    assert tagged.size == message.size - len(head) + len(top) + len(
        b"Subject: x" + end + b"To: b" + end
    )
    assert tagged.head.endswith(end + end)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\nbody",
        b"\nbody",
        b" all body\r\n",
        b"no end",
        b"From a@b now\nSubject: x\n\nbody\n",
        b"\r\n",
    ],
)
def test_odd_messages_keep_every_byte(tmp_path: Path, raw: bytes) -> None:
    message = spooled(tmp_path, raw)
    assert b"".join(mail_message.tag_message(message, [], FORGED).chunks()) == raw
    tagged = b"".join(mail_message.tag_message(message, [b"X-Y: z"], FORGED).chunks())
    assert b"X-Y: z" in tagged
    assert tagged.replace(b"X-Y: z\r\n", b"", 1).replace(b"X-Y: z\n", b"", 1).strip() == raw.strip()


def test_a_header_section_without_an_end_is_bounded(tmp_path: Path) -> None:
    field = b"X-Long: " + b"y" * 1000 + b"\r\n"
    message = spooled(tmp_path, b"X-Spam-Flag: YES\r\n" + field * 2000)
    head = mail_message.read_header_section(message)
    assert len(head) < 1 << 20
    assert head.endswith(b"\r\n")
    tagged = mail_message.tag_message(message, [b"X-Y: z"], FORGED)
    assert b"".join(tagged.chunks()) == b"X-Y: z\r\n" + field * 2000


def test_names_of_fields() -> None:
    assert mail_message.matching_field_names(
        HEAD + b"X-Spamming: z\r\nnot a field\r\nX-Spam-Flag: again\r\n", FORGED
    ) == [
        "X-Spam-Flag",
        "x-bogosity",
    ]
    assert mail_message.matching_field_names(HEAD, ["to", "Subject"]) == ["Subject", "To"]
    assert mail_message.matching_field_names(HEAD, []) == []
