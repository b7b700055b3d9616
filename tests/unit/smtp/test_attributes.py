"""XFORWARD and XCLIENT: attributes are parsed, made harmless, and all sent on each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.smtp.commands import (
    CLIENT_FIELDS,
    XFORWARD_FEATURE,
    apply_attributes,
    xforward_commands,
)
from spamguard.smtp.envelope import Client, RefusedError

repeatable = settings(derandomize=True, deadline=None, max_examples=300, database=None)
ALL = "NAME ADDR PORT PROTO HELO IDENT SOURCE"
text = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=60)


def parsed(argument: bytes) -> dict[str, str]:
    """What the argument says, and nothing else: it is unknown."""
    client = apply_attributes(Client(), argument, f"{XFORWARD_FEATURE} LOGIN")
    assert client.forwarded
    return {name: value for name, at in CLIENT_FIELDS.items() if (value := getattr(client, at))}


def understood(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        assert line.startswith(b"XFORWARD ")
        assert line.endswith(b"\r\n")
        assert len(line) <= 512
        attributes = parsed(line[9:-2])
        assert not attributes.keys() & found.keys()
        found |= attributes
    return found


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (
            b"NAME=spike.example.com ADDR=192.0.2.1",
            {"NAME": "spike.example.com", "ADDR": "192.0.2.1"},
        ),
        (b"addr=IPV6:2001:DB8::1  Port=25 ", {"ADDR": "2001:db8::1", "PORT": "25"}),
        (b"ADDR=ipv6:fe80::1", {"ADDR": "fe80::1"}),
        (b"NAME=[UNAVAILABLE] ADDR=[TEMPUNAVAIL] HELO=[unavailable] PORT=", {}),
        (b"HELO=a+20b+2Bc+3dd", {"HELO": "a b+c=d"}),
        (b"HELO=a+0D+0Ab+00c+7F", {"HELO": "a??b?c?"}),
        (b"HELO=+C3+A4 NAME=+FF LOGIN=\xc3\xa4", {"HELO": "ä", "NAME": "\ufffd", "LOGIN": "ä"}),
        (
            b"SOURCE=LOCAL PROTO=ESMTP IDENT=4bYxQ3",
            {"SOURCE": "LOCAL", "PROTO": "ESMTP", "IDENT": "4bYxQ3"},
        ),
    ],
)
def test_attributes_are_understood(argument: bytes, told: dict[str, str]) -> None:
    assert parsed(argument) == told


@pytest.mark.parametrize(
    "argument",
    [
        b"",
        b"NAME",
        b"NAME=a\rb",
        b"NAME=a\0",
        b"NAME=a=b",
        b"ADDR=example.com",
        b"ADDR=1.2.3.4+0D",
        b"PORT=x",
        b"SOURCE=both",
    ],
)
def test_what_is_refused(argument: bytes) -> None:
    with pytest.raises(RefusedError):
        parsed(argument)


@pytest.mark.slow
@repeatable
@given(
    st.builds(
        Client,
        name=text,
        helo=text,
        ident=text,
        address=st.ip_addresses().map(str),
        port=st.integers(0, 65535).map(str),
    )
)
def test_a_client_goes_out_unchanged(client: Client) -> None:
    attributes = understood(xforward_commands(client, ALL))
    for name in ALL.split():
        value = getattr(client, CLIENT_FIELDS[name])
        assert attributes.get(name, "") == value or (name not in attributes and len(value) > 30)


def test_an_address_goes_out_in_its_form() -> None:
    assert xforward_commands(Client(address="2001:db8::1"), "ADDR") == [
        b"XFORWARD ADDR=IPV6:2001:db8::1\r\n"
    ]
    assert xforward_commands(Client(address="192.0.2.1"), "addr") == [
        b"XFORWARD ADDR=192.0.2.1\r\n"
    ]


def test_unknown_values_go_out_as_unavailable() -> None:
    line = (
        b"XFORWARD "
        + b" ".join([name + b"=[UNAVAILABLE]" for name in ALL.encode().split()])
        + b"\r\n"
    )
    assert xforward_commands(Client(), ALL) == [line]
    assert xforward_commands(Client(helo=" " * 200), "HELO") == [b"XFORWARD HELO=[UNAVAILABLE]\r\n"]
    assert xforward_commands(Client(helo="h" * 500, port="1"), "HELO PORT") == [
        b"XFORWARD PORT=1 HELO=[UNAVAILABLE]\r\n"
    ]


def test_much_goes_in_several_lines() -> None:
    client = Client(name="n" * 250, helo="h" * 250, ident="i" * 250)
    lines = xforward_commands(client, ALL)
    assert len(lines) > 1
    assert understood(lines) == {"NAME": client.name, "HELO": client.helo, "IDENT": client.ident}


@repeatable
@given(st.text(max_size=40))
def test_no_value_can_end_a_command(value: str) -> None:
    (line,) = xforward_commands(Client(helo=value), "HELO")
    assert line[:-2].translate(None, bytes(range(33, 127))) == b" "
