"""Packets, states and forged fields of the milter protocol; bad bytes are an error."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.servers import milter
from spamguard.servers.milter import (
    TRANSITIONS,
    MilterCommand,
    MilterProtocolError,
    MilterState,
    Packet,
    take_packet,
)
from spamguard.smtp.envelope import Client

COMMANDS = st.sampled_from(list(MilterCommand))
PACKETS = st.lists(st.builds(Packet, COMMANDS, st.binary(max_size=300)), max_size=12)


def written(packets):
    return b"".join(milter.encode_packet(command.value, data) for command, data in packets)


def read(unread):
    packets = []
    while (packet := take_packet(unread)) is not None:
        packets.append(packet)
    return packets


@given(PACKETS, st.lists(st.integers(0, 4000)))
def test_where_the_bytes_are_cut_makes_no_difference(packets, cuts):
    raw, unread, found = written(packets), bytearray(), []
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in pairwise(edges):
        unread += raw[start:end]
        found += read(unread)
    assert found == packets
    assert not unread


@given(st.binary(max_size=200))
def test_any_bytes_are_packets_or_malformed(raw):
    unread = bytearray(raw)
    with suppress(MilterProtocolError):
        assert written(read(unread)) + unread == raw


@given(
    st.binary(max_size=60),
    st.sampled_from([milter.parse_connect, milter.parse_argument, milter.parse_macros]),
)
def test_any_data_of_a_command_is_understood_or_malformed(data, parse):
    with suppress(MilterProtocolError):
        parse(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"mail.example\x004\x1f\x90192.0.2.1\0", Client("192.0.2.1", "mail.example", "8080")),
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
    assert milter.parse_connect(data) == told


# ---- forged fields


NAMES = st.sampled_from(
    [
        b"X-Spam-Flag",
        b"x-spam-FLAG",
        b"X-Spam-Status",
        b"X-Spamguard",
        b"X-Bogosity",
        b"X-Bogosity2",
        b"Subject",
        b"X-S",
    ]
)


def applied(names, removals):
    """As a server does it."""
    left = list(names)
    for packet in removals:
        occurrence, name = int.from_bytes(packet[5:9]), packet[9:].split(b"\0")[0]
        at = [number for number, one in enumerate(left) if one.lower() == name.lower()]
        del left[at[occurrence - 1]]
    return left


@given(st.lists(NAMES, max_size=30))
def test_all_forged_fields_go_and_no_others(names):
    message = milter.MilterMessage()
    for name in names:
        message.add_field(name)
    assert applied(names, message.removals[::-1]) == [
        name for name in names if name in (b"Subject", b"X-S", b"X-Bogosity2")
    ]


# ---- the table of states


MESSAGE = (
    MilterCommand.SENDER,
    MilterCommand.RECIPIENT,
    MilterCommand.DATA,
    MilterCommand.FIELD,
    MilterCommand.END_OF_HEADER,
    MilterCommand.BODY,
    MilterCommand.END_OF_MESSAGE,
)


def walk(state, *commands):
    for command in commands:
        state = TRANSITIONS[state, command]
    return state


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_a_message_may_be_given_up_at_any_point(length):
    begun = walk(MilterState.CLIENT, *MESSAGE[:length])
    assert walk(begun, MilterCommand.ABORT) is MilterState.CLIENT
    assert walk(begun, MilterCommand.NEXT_CLIENT) is MilterState.READY
    assert walk(begun, MilterCommand.QUIT) is MilterState.NEW
    # Sendmail says nothing of it.
    assert walk(begun, *MESSAGE) is MilterState.CLIENT
    assert walk(begun, MilterCommand.MACROS, MilterCommand.HELLO, *MESSAGE) is MilterState.CLIENT


@pytest.mark.parametrize(
    ("state", "command"),
    [
        *[
            (MilterState.NEW, command)
            for command in MilterCommand
            if command not in (MilterCommand.OFFER, MilterCommand.QUIT)
        ],
        *[(state, MilterCommand.OFFER) for state in MilterState if state is not MilterState.NEW],
        (MilterState.READY, MilterCommand.SENDER),
        (MilterState.CLIENT, MilterCommand.CONNECT),
        (MilterState.CLIENT, MilterCommand.RECIPIENT),
        (MilterState.CLIENT, MilterCommand.FIELD),
        (MilterState.CLIENT, MilterCommand.END_OF_MESSAGE),
        (MilterState.ENVELOPE, MilterCommand.BODY),
        (MilterState.ENVELOPE, MilterCommand.END_OF_MESSAGE),
        (MilterState.HEADER, MilterCommand.RECIPIENT),
        (MilterState.HEADER, MilterCommand.BODY),
        (MilterState.BODY, MilterCommand.FIELD),
        (MilterState.BODY, MilterCommand.END_OF_HEADER),
    ],
)
def test_out_of_order(state, command):
    assert (state, command) not in TRANSITIONS
