"""Messages that are hard to transfer unchanged."""

from __future__ import annotations

HEAD = b"Subject: hard\r\nFrom: a@example.org\r\n\r\n"
BODIES = {
    "8-bit": b"gr\xc3\xbc\xc3\x9fe \xff\xfe\r\n",
    "dots": b".\r\n..\r\n.x\r\n",
    "long lines": b"y" * 5000 + b"\r\n" + b"<b>" * 40_000 + b"\r\n",
    "20 MB": b"0123456789 line of text\r\n.dotted\r\n" * 600_000,
    "empty": b"",
}
