"""Mail made to cost time or memory, or to raise, is read in linear time and bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.message import message_digest
from tests.unit.mail.support import KEY, header, page, seconds

EXTRACTOR = FeatureExtractor(KEY)


def identity(raw: bytes) -> bytes:
    return message_digest(raw, KEY)


def filled(unit: bytes, size: int) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


MARKUP = (
    b"<", b"<!--", b"<!-", b"<!--x-->", b"<script", b"<script ", b"<script>",
    b"<script>x</script ", b"<title", b"<style></style ", b"<a b='", b"</", b"<b>", b"a<b>",
    b"<x" + b"y" * 5000, b"&", b"&#", b"&#9", b"&#x9", b"&a", b"&nbsp", b"&#x10ffff;",
    b"color:   ", b"<p color:" + b" " * 50_000, b"<p display" + b" " * 5000,
    b"<p background" + b" " * 5000, b"<p font-size:0" + b"0" * 5000,
    b"<p opacity:0." + b"0" * 5000, b"<b hidden>x", b"<p style='display:none'>",
    b"<p style='display:none'><p>", b"<a style=color:white>", b"<p><div><p>", b"\xe2\x80\x8b",
    b"\xcc\x81\xcc\xa7", b"<svg><title/>", b"<svg><a b=", b"<xmp><", b"<textarea>", b"<a <!--",
    b"<style/x", b"</style x>", b"<iframe>x</iframe>", b"&#0",
    b"<style>a b{display:block}</style><p hidden>",
)  # fmt: skip
TEXTS = (
    b"a", b"a ", b" ", b"\n", b"\r", b"\0", b"\xff", b"http://", b"http://a/", b"http://a@",
    b"www.", b"www.a ", b"https://a.b.c.d.e.f.g/ ", b"a.", b"=", b"=\n", b"=?", b"--",
    b"\xe4\xbd\xa0", b"\xcc\x81\xcc\xa7", b"\xef\xb7\xba", b"+AGE", b"+", b"YQ==\n", b"YQ=", b"!A",
    b"`\n", b"#86)C\n", b"\x1b$B", b"~{",
)  # fmt: skip
DECLARED = (
    b"Content-Type: text/plain; charset=utf-8", b"Content-Transfer-Encoding: quoted-printable",
    b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: x-uuencode",
    b"Content-Type: text/plain; charset=utf-7", b"Content-Type: text/plain; charset=utf-16",
    b"Content-Type: text/plain; charset=gb2312", b"Content-Type: text/plain; charset=iso-2022-jp",
)  # fmt: skip
VALUES = (
    b"@", b"a@", b"a.", b"=?", b"=?a?b?", b"=?utf-8?q?=e9?= ", b"=?utf-8?b?YQ==?=", b"=?a*b", b" ",
    b"+", b"00:00 ", b";", b"; a=\"", b"; a*0=b", b"\xcc\x81", b"\xff",
)  # fmt: skip
NAMES = (
    b"From",
    b"To",
    b"Subject",
    b"Received",
    b"Date",
    b"Message-ID",
    b"Content-Type",
    b"Content-Disposition",
    b"X-Other",
)


def multipart(unit: bytes, size: int, boundary: bytes = b"b") -> bytes:
    return header(
        b'Content-Type: multipart/mixed; boundary="' + boundary + b'"', body=filled(unit, size)
    )


def chain(size: int) -> bytes:
    return b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (level, level)
        for level in range(size // 55)
    )


def boundary_prefixes(size: int) -> bytes:
    """Nested multiparts, each boundary the beginning of the next, over a flood of lines that begin
    with all of them.
    """
    nest = [
        b"Content-Type: multipart/mixed; boundary="
        + b"b" * level
        + b"\n\n--"
        + b"b" * level
        + b"\n"
        for level in range(1, 13)
    ]
    return b"".join(nest) + filled(b"--" + b"b" * 20 + b"x\n", size)


STRUCTURES: dict[str, Callable[[int], bytes]] = {
    "fields": lambda size: filled(b"A: b\n", size) + b"\nx",
    "short fields": lambda size: filled(b"a:\n", size) + b"\nx",
    "one long name": lambda size: b"x-" + b"a" * size + b": y\n\nx",
    "folding": lambda size: b"Subject: x\n" + filled(b" y\n", size) + b"\nx",
    "nested messages": lambda size: filled(b"Content-Type: message/rfc822\n\n", size),
    "nested multiparts": chain,
    "the same boundary": lambda size: multipart(
        b'--b\nContent-Type: multipart/mixed; boundary="b"\n\n', size
    ),
    "delimiters": lambda size: multipart(b"--b\n", size),
    "parts": lambda size: multipart(b"--b\n\nx\n", size),
    "part headers": lambda size: multipart(b"--b\n" + b"a:\n" * 20_000, size),
    "longer boundaries": lambda size: multipart(b"--bb\n", size),
    "boundary prefixes": boundary_prefixes,
    "huge boundary": lambda size: multipart(b"--" + b"b" * 899 + b"\n", size, b"b" * 900),
    "html parts": lambda size: multipart(
        b"--b\nContent-Type: text/html\n\n" + b"<script" * 9000 + b"\n", size
    ),
    "binary rubbish": lambda size: filled(bytes(range(256)), size),
}
CONSTRUCTIONS: dict[str, Callable[[int], bytes]] = {
    **{f"html {unit[:20]!r}": lambda size, unit=unit: page(filled(unit, size)) for unit in MARKUP},
    **{
        f"text {unit!r}": lambda size, unit=unit: header(b"A: 1", body=filled(unit, size))
        for unit in TEXTS
    },
    **{
        f"{field[14:]!r} {unit!r}": lambda size, field=field, unit=unit: header(
            field, body=filled(unit, size)
        )
        for field in DECLARED
        for unit in TEXTS
    },
    **{
        f"{name!r} {value!r}": lambda size, name=name, value=value: (
            filled(name + b": " + filled(value, 900) + b"\n", size // 4) + b"\nx"
        )
        for name in NAMES
        for value in VALUES
    },
    **STRUCTURES,
}


# Each unit and each declaration, but all pairs of them by night only.
BY_NIGHT = {
    *(
        f"{field[14:]!r} {unit!r}"
        for row, field in enumerate(DECLARED)
        for column, unit in enumerate(TEXTS)
        if (row + column) % 4
    ),
    *(
        f"{name!r} {value!r}"
        for row, name in enumerate(NAMES)
        for column, value in enumerate(VALUES)
        if (row + column) % 3
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else ())
        for name in CONSTRUCTIONS
    ],
)
def test_time_grows_no_faster_than_size(name: str) -> None:
    """At sizes that are read as a whole; four times the size may take ten times as long, never
    sixteen times.
    """
    small, large = (CONSTRUCTIONS[name](size) for size in (50_000, 200_000))
    for work in (EXTRACTOR.features, identity):
        most = 10 * seconds(partial(work, small), 1) + 0.1
        assert any(
            seconds(partial(work, large), 1) < most for _ in range(3)
        )  # the machine may be busy with something else
