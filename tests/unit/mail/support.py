"""Shared by the tests of mail: generated messages, and the standard library's parser as oracle."""

from __future__ import annotations

import time
from collections.abc import Callable
from email import message_from_bytes
from email.header import Header
from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.base import MIMEBase
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from spamguard.mail.decode import decode_transfer_encoding
from spamguard.mail.mime import Leaf, MimeMessage

KEY = b"a key of this installation"
repeatable = settings(derandomize=True, deadline=None, max_examples=60, database=None)

words = st.text(
    st.characters(categories=("L", "N", "P", "Zs"), include_characters=" \n=-<>&"), max_size=200
)
charsets = st.sampled_from(("utf-8", "iso-8859-1", "koi8-r", "iso-2022-jp", "us-ascii"))


@st.composite
def text_leaves(draw: Any) -> Message:
    charset = draw(charsets)
    text = draw(words).encode(charset, "replace").decode(charset)
    part = MIMEText(text, draw(st.sampled_from(("plain", "html"))), charset)
    if draw(st.booleans()):
        part.add_header(
            "Content-Disposition",
            "attachment",
            filename=draw(st.sampled_from(("a.txt", "b c.txt", "ä.html"))),
        )
    return part


@st.composite
def binary_leaves(draw: Any) -> Message:
    return MIMEApplication(
        draw(st.binary(max_size=300)), draw(st.sampled_from(("pdf", "octet-stream", "zip")))
    )


@st.composite
def multiparts(draw: Any, children: Any) -> Message:
    parts = draw(st.lists(children, min_size=1, max_size=4))
    inside = {part.get_boundary() for child in parts for part in child.walk()}
    wanted = draw(st.sampled_from(("b", "=_x", "----b", "a b", "a'()+_,-./:=?b", "bb", "b-")))
    boundary = next(
        name
        for name in (wanted, *[f"{wanted}{number}" for number in range(99)])
        if name not in inside
    )
    whole = MIMEMultipart(
        draw(st.sampled_from(("mixed", "alternative", "related"))), boundary=boundary
    )
    for part in parts:
        whole.attach(part)
    return whole


@st.composite
def nested(draw: Any, children: Any) -> Message:
    inner = draw(children)
    inner["Subject"] = "inside"
    return MIMEMessage(inner)


leaves = text_leaves() | binary_leaves()
trees = st.recursive(leaves, lambda children: multiparts(children) | nested(children), max_leaves=8)


@st.composite
def messages(draw: Any) -> bytes:
    """A well-formed message with a MIME tree, lines ending in LF or CRLF."""
    tree = draw(trees)
    assert isinstance(tree, MIMEBase)
    tree["Subject"] = Header(
        draw(st.sampled_from(("hello", "grüße an alle " * 9, "こんにちは"))), "utf-8"
    ).encode()
    tree["From"] = "Anna <anna@example.com>"
    tree["Message-ID"] = "<1@example.com>"
    raw = tree.as_bytes()
    return raw.replace(b"\n", b"\r\n") if draw(st.booleans()) else raw


def oracle_leaves(raw: bytes) -> list[tuple[str, str | None, bytes]]:
    """Media type, charset and decoded body of each leaf, as the standard library has them; line
    ends as LF.
    """
    parts = []
    for part in message_from_bytes(raw.replace(b"\r\n", b"\n")).walk():
        if not part.is_multipart():
            body = part.get_payload(decode=True)
            assert isinstance(body, bytes)
            parts.append((part.get_content_type(), part.get_content_charset(), body))
    return parts


def split_leaves(message: MimeMessage) -> list[tuple[str, str | None, bytes]]:
    return [_described(leaf) for leaf in message.leaves]


def _described(leaf: Leaf) -> tuple[str, str | None, bytes]:
    encoding = leaf.first_values[b"content-transfer-encoding"].strip().lower()
    charset = leaf.parameters.get(b"charset")
    return (
        leaf.media.decode(),
        charset.decode().lower() if charset else None,
        decode_transfer_encoding(leaf.body, encoding)[0],
    )


def header(*lines: bytes, body: bytes = b"hello there\n") -> bytes:
    return b"\n".join(lines) + b"\n\n" + body


def page(markup: bytes, charset: bytes = b"utf-8") -> bytes:
    """A message that is one HTML page."""
    return header(
        b"From: anna@example.com", b"Content-Type: text/html; charset=" + charset, body=markup
    )


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least processor time of several runs, because other processes only make it longer."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
