"""The author of a message: any From becomes one short text, in which no name hides the address."""

from __future__ import annotations

import pytest

from spamguard.mail.headers import format_author

SEVERAL = b"Anna <a@x.example>, b@y.example, Carl <c@z.example>, d@z.example"
CASES = {
    b"Sunny Roofs <hello@roofs.example>": "Sunny Roofs <hello@roofs.example>",
    b'"Sunny Roofs, Inc." <hello@roofs.example>': "Sunny Roofs, Inc. <hello@roofs.example>",
    b'"The \\"Roof\\"" <a@b>': 'The "Roof" <a@b>',
    b"hello@roofs.example": "hello@roofs.example",
    b"<hello@roofs.example>": "hello@roofs.example",
    b"hello@roofs.example (Sunny (the) Roofs)": "Sunny (the) Roofs <hello@roofs.example>",
    b"Anna <a@b> (on a phone)": "Anna <a@b>",
    # encoded, also where it must not be, and 8-bit
    b"=?utf-8?q?Gr=C3=BC?=\r\n =?utf-8?q?=C3=9Fe?= <a@b>": "Grüße <a@b>",
    b'"=?iso-8859-1?Q?Gr=FC=DFe?=" <a@b>': "Grüße <a@b>",
    "Grüße <ü@b>".encode(): "Grüße <ü@b>",
    b"Gr\xfc\xdfe <a@b>": "Grüße <a@b>",
    # several, and groups
    SEVERAL: "Anna <a@x.example>, b@y.example, ...",
    b"a@x, b@y": "a@x, b@y",
    b"Team: Anna <a@x>, b@y;": "Team: Anna <a@x>, b@y",
    b"Nobody:;": "Nobody: <>",
    # nothing, or by half
    b"": "",
    b" \r\n\t": "",
    b",;,": "",
    b"<>": "",
    b"MAILER-DAEMON": "MAILER-DAEMON <>",
    b"Smith, John <j@x>": "Smith, John <j@x>",
    b"Re: offer <j@x>": "Re: offer <j@x>",
    b"Anna <a@b": "Anna <a@b>",
    b'"Anna <a@b>': '"Anna <a@b>',
    b"Anna (or <a@b>": "Anna (or <a@b>",
    b"Anna < a @\r\n b >": "Anna <a@b>",
    # names that look like addresses
    b'"paypal@paypal.com" <x@evil.example>': "paypal@paypal.com <x@evil.example>",
    b"paypal@paypal.com <x@evil.example>": "paypal@paypal.com <x@evil.example>",
    b"=?utf-8?q?PayPal_=3Cs=40paypal.com=3E?= <x@evil.example>": (
        "PayPal <s@paypal.com> <x@evil.example>"
    ),
    b'"PayPal <s@paypal.com>" <x@evil.example>': "PayPal <s@paypal.com> <x@evil.example>",
    b"(<s@paypal.com>) <x@evil.example>": "<s@paypal.com> <x@evil.example>",
    b"(((<s@paypal.com>))) PayPal <x@evil.example>": "PayPal <x@evil.example>",
    b"=?utf-8?q?PayPal_=3Cs=40paypal.com=3E?=": "PayPal <s@paypal.com> <>",
    b"PayPal <s@paypal.com> <x@evil.example>": "PayPal <s@paypal.com>, x@evil.example",
    # what ends lines and turns them round
    b"Anna\r\n\t\x0b\x0cB\xc2\x85C\xe2\x80\xa8D =?utf-8?q?=0D=0ATo:_e?= <a@b>": (
        "Anna B C D To: e <a@b>"
    ),
    "A <a\u202e\u200d\x00@b>".encode(): "A <a\ufffd\ufffd\ufffd@b>",
}


@pytest.mark.parametrize(("value", "expected"), CASES.items())
def test_one_short_text(value: bytes, expected: str) -> None:
    assert format_author(value) == expected
    assert format_author(b" " + value + b"\r\n ") == expected


def test_enormous_fields_are_cut_and_keep_their_address() -> None:
    assert (
        format_author(b'"' + b"a" * 100_000 + b'" <x@evil.example>')
        == "a" * 45 + "... <x@evil.example>"
    )
    assert format_author(b"paypal@paypal.com " * 10_000 + b"<x@evil.example>").endswith(
        "... <x@evil.example>"
    )
    whole = format_author(b"N" * 100 + b" <s@paypal.com." + b"x" * 200 + b".evil.example>")
    assert whole.endswith("xxx.evil.example>")
    assert len(whole.encode()) < 125
