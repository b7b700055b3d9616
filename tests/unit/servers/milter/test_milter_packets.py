"""Packets of the milter protocol, however they are cut; bad bytes are an error."""

import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.servers import milter_protocol
from spamguard.servers.milter_protocol import (
    Actions,
    MilterCommand,
    MilterProtocolError,
    Offer,
    Packet,
    PacketReader,
    Steps,
)
from spamguard.smtp.envelope import Client, Reply

COMMANDS = st.sampled_from(list(MilterCommand))
PACKETS = st.lists(st.builds(Packet, COMMANDS, st.binary(max_size=300)), max_size=12)
ALL_ACTIONS = Actions(0x1FF)
ALL_STEPS = Steps(0x1FFFFF)


def written(packets):
    return b"".join(milter_protocol.encode_packet(command.value, data) for command, data in packets)


def read(reader):
    packets = []
    while (packet := reader.next_packet()) is not None:
        packets.append(packet)
    return packets


@given(PACKETS, st.lists(st.integers(0, 4000)))
def test_where_the_bytes_are_cut_makes_no_difference(packets, cuts):
    raw, reader, found = written(packets), PacketReader(), []
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in pairwise(edges):
        reader.feed(raw[start:end])
        found += read(reader)
    assert found == packets
    assert not reader.has_partial_packet


@given(st.binary(max_size=200))
def test_any_bytes_are_packets_or_malformed(raw):
    reader = PacketReader()
    reader.feed(raw)
    with suppress(MilterProtocolError):
        whole = written(read(reader))
        assert raw.startswith(whole)
        assert reader.has_partial_packet == (whole != raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\0\0\0Q",  # not even a command
        b"\0\0\0\1z",  # no such command
        b"\xff\xff\xff\xffB",  # 4 GiB are announced, and not waited for
        struct.pack("!I", milter_protocol.MAX_LONG_PACKET_BYTES + 1) + b"L",
        struct.pack("!I", milter_protocol.MAX_SHORT_PACKET_BYTES + 1) + b"R",
        b"GET / HTTP/1.1\r\n",
        b"EHLO x\r\n",
        b"\x16\x03\x01\x02\x00",  # TLS
    ],
)
def test_bytes_that_can_be_no_packet_fail_at_once(raw):
    reader = PacketReader()
    reader.feed(raw)
    with pytest.raises(MilterProtocolError):
        reader.next_packet()


def test_nothing_is_complete_before_its_last_byte():
    reader = PacketReader()
    for one in (b"", b"\0", b"\0\0", b"\3", b"B", b"x"):
        reader.feed(one)
        assert reader.next_packet() is None
    reader.feed(b"y")
    assert reader.next_packet() == Packet(MilterCommand.BODY, b"xy")


@given(
    st.binary(max_size=60),
    st.sampled_from(
        [
            milter_protocol.parse_connect,
            milter_protocol.parse_words,
            milter_protocol.parse_field,
            milter_protocol.parse_macros,
        ]
    ),
)
def test_any_data_of_a_command_is_understood_or_malformed(data, parse):
    with suppress(MilterProtocolError):
        parse(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"mail.example\x004\x1f\x90192.0.2.1\0",
            Client("192.0.2.1", "mail.example", "8080"),
        ),
        (b"[192.0.2.1]\x004\0\x19192.0.2.1\0", Client("192.0.2.1", "[192.0.2.1]", "25")),
        (b"a.example\x006\0\x192001:DB8::1\0", Client("2001:db8::1", "a.example", "25")),
        (
            b"a.example\x006\0\x19IPv6:2001:db8::1\0",
            Client("2001:db8::1", "a.example", "25"),
        ),  # as Sendmail writes it
        (b"a.example\x006\0\x19fe80::1%eth0\0", Client("fe80::1", "a.example", "25")),
        (b"localhost\0L\0\0/run/x\0", Client("", "localhost", "")),
        (b"localhost\0U", Client("", "localhost", "")),
        (b"a.example\x004\0\x19not an address\0", Client("", "a.example", "25")),
        (b"\xff\0U", Client("", "\ufffd", "")),
    ],
)
def test_the_client_in_connect(data, told):
    assert milter_protocol.parse_connect(data) == told


def test_words_fields_and_macros():
    assert milter_protocol.parse_words(b"<a@example.org>\0SIZE=12\0BODY=8BITMIME\0") == [
        "<a@example.org>",
        "SIZE=12",
        "BODY=8BITMIME",
    ]
    assert milter_protocol.parse_words("<ä@example.org>\0".encode()) == ["<ä@example.org>"]
    assert milter_protocol.parse_field(b"Subject\0 a\n\tb\xff\0") == (b"Subject", b" a\n\tb\xff")
    assert milter_protocol.parse_field(b"X\0\0") == (b"X", b"")
    assert milter_protocol.parse_macros(b"Ei\x004XyZ\0{auth_authen}\0anna\0") == {
        "i": "4XyZ",
        "auth_authen": "anna",
    }
    assert milter_protocol.parse_macros(b"C") == {}
    for parse, data in (
        (milter_protocol.parse_words, b"x"),
        (milter_protocol.parse_field, b"x"),
        (milter_protocol.parse_field, b"x\0y"),
        (milter_protocol.parse_macros, b"Ei\0x"),
    ):
        with pytest.raises(MilterProtocolError):
            parse(data)


def test_an_offer_is_read_and_written():
    data = struct.pack("!III", 6, 0x1FF, 0x1FFFFF)
    assert milter_protocol.parse_offer(data) == Offer(6, ALL_ACTIONS, ALL_STEPS)
    assert milter_protocol.parse_offer(data + b"more").version == 6
    assert milter_protocol.parse_offer(data).encode() == b"\0\0\0\x0dO" + data
    with pytest.raises(MilterProtocolError):
        milter_protocol.parse_offer(data[:11])


def test_what_is_agreed_on_is_never_more_than_was_offered():
    best = milter_protocol.negotiate(Offer(6, ALL_ACTIONS, ALL_STEPS), Actions.QUARANTINE)
    assert best.actions == Actions.ADD_FIELDS | Actions.CHANGE_FIELDS | Actions.QUARANTINE
    assert not any(best.answers(command) for command in MilterCommand)
    assert best.steps & Steps.LEADING_SPACE
    poor = milter_protocol.negotiate(Offer(2, Actions(0x1F), Steps(0x7F)), Actions.QUARANTINE)
    assert (poor.version, poor.actions, poor.steps) == (
        2,
        Actions.ADD_FIELDS | Actions.CHANGE_FIELDS,
        Steps(0),
    )
    assert poor.answers(MilterCommand.FIELD)
    assert not any(
        poor.answers(one)
        for one in (
            MilterCommand.MACROS,
            MilterCommand.ABORT,
            MilterCommand.QUIT,
            MilterCommand.NEXT_CLIENT,
            MilterCommand.OFFER,
        )
    )
    assert (
        milter_protocol.negotiate(Offer(99, ALL_ACTIONS, ALL_STEPS), Actions(0)).version
        == milter_protocol.VERSION
    )
    for offer in (
        Offer(1, ALL_ACTIONS, ALL_STEPS),
        Offer(6, Actions.ADD_FIELDS, ALL_STEPS),
        Offer(6, Actions.CHANGE_FIELDS, ALL_STEPS),
    ):
        with pytest.raises(MilterProtocolError):
            milter_protocol.negotiate(offer, Actions(0))


def test_replies():
    assert milter_protocol.CONTINUE == b"\0\0\0\1c"
    assert (
        milter_protocol.encode_insert_field(b"X-Spam-Flag", b" YES")
        == b"\0\0\0\x16i\0\0\0\0X-Spam-Flag\0 YES\0"
    )
    assert (
        milter_protocol.encode_remove_field(b"X-Spam-Flag", 2)
        == b"\0\0\0\x12m\0\0\0\2X-Spam-Flag\0\0"
    )
    assert milter_protocol.encode_quarantine("spam") == b"\0\0\0\6qspam\0"
    assert (
        milter_protocol.encode_refusal(Reply.from_text(550, "5.7.1 No"))
        == b"\0\0\0\x0ey550 5.7.1 No\0"
    )
