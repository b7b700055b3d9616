"""The Received field, whatever the client calls itself."""

import re
from email import message_from_bytes
from email.policy import default

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.smtp.envelope import Client, received_field

CLIENT = Client(address="192.0.2.7", name="out.example", helo="mail.example", protocol="ESMTPS")
STAMP = re.compile(
    rb"Received: from \S+(?: \((?:[A-Za-z0-9_.-]+ )?\[[0-9A-Fa-fIPv:.]+\]\))?\r\n"
    rb"\tby \S+ with [A-Za-z0-9_.-]+ id [A-Za-z0-9]+(?:\r\n\tfor <[^ <>]+>)?; "
    rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000"
)


def test_every_known_fact_is_written():
    assert received_field(CLIENT, "mx.example", "abc", "b@x.example", 1700000000.5) == (
        b"Received: from mail.example (out.example [192.0.2.7])\r\n"
        b"\tby mx.example with ESMTPS id abc\r\n"
        b"\tfor <b@x.example>; Tue, 14 Nov 2023 22:13:20 +0000"
    )


@pytest.mark.parametrize(
    ("helo", "address", "told"),
    [
        ("[192.0.2.7]", "192.0.2.7", "from [192.0.2.7] ([192.0.2.7])"),
        ("[IPv6:2001:db8::1]", "2001:db8::1", "from [IPv6:2001:db8::1] ([IPv6:2001:db8::1])"),
        ("evil)\r\nX-Spam: no", "192.0.2.7", "from unknown ([192.0.2.7])"),
        ("(comment)", "", "from unknown\r\n"),
        ("", "nonsense", "from unknown\r\n"),
        ("a_b.example.", "", "from a_b.example.\r\n"),
    ],
)
def test_what_is_no_name_is_unknown(helo, address, told):
    field = received_field(
        Client(helo=helo, address=address, protocol="SMTP"), "mx.example", "abc", "", 0
    )
    assert f"Received: {told}".encode() in field
    assert b" for " not in field


@settings(derandomize=True, deadline=None)
@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.text(max_size=40),
    st.text(max_size=40),
    st.text(max_size=40),
)
def test_nothing_of_a_client_leaves_its_place(helo, name, address, protocol, recipient):
    field = received_field(
        Client(helo=helo, name=name, address=address, protocol=protocol),
        "mx.example",
        "abc",
        recipient,
        0,
    )
    assert STAMP.fullmatch(field)
    message = message_from_bytes(field + b"\r\nSubject: x\r\n\r\n", policy=default)
    assert message.keys() == ["Received", "Subject"]
