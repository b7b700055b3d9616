"""The milter protocol, versions 2 to 6, from the filter's side: packets, what is agreed on,
commands taken apart, replies put together.

As Sendmail's libmilter and Postfix speak it; nobody has written it up as a standard. Numbers are
big-endian, texts end in NUL. What comes in is hostile: every length is checked before anything is
kept for it, and what does not add up is a `MalformedError`.

What a mail server may say when: the states of a connection as a table. Pure.

Stricter than need be would cost mail: a server that we hang up on defers it, or lets it through
unjudged. So steps that some servers leave out may be left out; but no message ends that has not
begun. Sendmail, once it was agreed that MAIL gets no reply, never says that a message was given up
(RSET, or one that was too large for it): the next MAIL or HELO is all that is heard of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntFlag, auto
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from spamguard.smtp.envelope import Reply

VERSION = 6  # the newest there is
MAX_LONG_PACKET_BYTES = (
    1 << 20
    # of a packet that carries a piece of a message; Postfix cuts a header field at 102,400, and a body
    # into 65,535
)
MAX_SHORT_PACKET_BYTES = 64 << 10  # of all others
_MIN_VERSION = 2
_LENGTH = Struct("!I")
_OFFER = Struct("!III")
_PORT = Struct("!H")


class MilterProtocolError(ValueError):
    """What came is no milter protocol."""


class MilterCommand(Enum):
    """What a mail server says."""

    OFFER = b"O"
    MACROS = b"D"
    CONNECT = b"C"
    HELLO = b"H"
    SENDER = b"M"
    RECIPIENT = b"R"
    DATA = b"T"
    FIELD = b"L"
    END_OF_HEADER = b"N"
    BODY = b"B"
    END_OF_MESSAGE = b"E"
    ABORT = b"A"
    UNKNOWN = b"U"  # to the server, that is: a command of its client's
    QUIT = b"Q"
    NEXT_CLIENT = b"K"  # quit, but the connection stays for another client


_LONG_COMMANDS = frozenset((MilterCommand.FIELD, MilterCommand.BODY, MilterCommand.END_OF_MESSAGE))
_HEAD = Struct("!Ic")  # length of what follows it, command


class Packet(NamedTuple):
    """A command and what belongs to it."""

    command: MilterCommand
    data: bytes


class PacketReader:
    """Bytes as they come, packets as they are complete; where the bytes are cut makes no
    difference.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        self._bytes += data

    def next_packet(self) -> Packet | None:
        """The next packet, None while it is not complete. MalformedError as soon as it can be none."""
        if len(self._bytes) < _HEAD.size:
            return None
        length, letter = _HEAD.unpack_from(self._bytes)
        try:
            command = MilterCommand(letter)
        except ValueError:
            raise MilterProtocolError(f"the unknown command {letter!r}") from None
        if (
            not 1
            <= length
            <= (MAX_LONG_PACKET_BYTES if command in _LONG_COMMANDS else MAX_SHORT_PACKET_BYTES)
        ):
            raise MilterProtocolError(f"a packet of {length} bytes")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        data = bytes(memoryview(self._bytes)[_HEAD.size : end])
        del self._bytes[:end]
        return Packet(command, data)

    @property
    def has_partial_packet(self) -> bool:
        """Whether a part of a packet is there."""
        return bool(self._bytes)


def encode_packet(command: bytes, data: bytes = b"") -> bytes:
    """A packet as it goes over the wire."""
    return _LENGTH.pack(1 + len(data)) + command + data


# ---- what is agreed on


class Actions(IntFlag):
    """What a filter may do with a message."""

    ADD_FIELDS = 0x01
    CHANGE_FIELDS = 0x10
    QUARANTINE = 0x20


class Steps(IntFlag):
    """What a server leaves out, and which commands it wants no reply to."""

    NO_REPLY_TO_FIELD = 0x80
    NO_UNKNOWN = 0x100
    NO_DATA = 0x200
    NO_REPLY_TO_CONNECT = 0x1000
    NO_REPLY_TO_HELLO = 0x2000
    NO_REPLY_TO_SENDER = 0x4000
    NO_REPLY_TO_RECIPIENT = 0x8000
    NO_REPLY_TO_DATA = 0x10000
    NO_REPLY_TO_UNKNOWN = 0x20000
    NO_REPLY_TO_END_OF_HEADER = 0x40000
    NO_REPLY_TO_BODY = 0x80000
    LEADING_SPACE = 0x100000  # values of fields come and go with the blanks behind the colon


_NO_REPLY_STEPS: Mapping[MilterCommand, Steps] = {
    MilterCommand.CONNECT: Steps.NO_REPLY_TO_CONNECT,
    MilterCommand.HELLO: Steps.NO_REPLY_TO_HELLO,
    MilterCommand.SENDER: Steps.NO_REPLY_TO_SENDER,
    MilterCommand.RECIPIENT: Steps.NO_REPLY_TO_RECIPIENT,
    MilterCommand.DATA: Steps.NO_REPLY_TO_DATA,
    MilterCommand.FIELD: Steps.NO_REPLY_TO_FIELD,
    MilterCommand.END_OF_HEADER: Steps.NO_REPLY_TO_END_OF_HEADER,
    MilterCommand.BODY: Steps.NO_REPLY_TO_BODY,
    MilterCommand.UNKNOWN: Steps.NO_REPLY_TO_UNKNOWN,
}
"""Commands that are answered at once, unless it was agreed not to."""

_WANTED_STEPS = Steps(sum({step.value for step in Steps}))
_NEEDED_ACTIONS = Actions.ADD_FIELDS | Actions.CHANGE_FIELDS


class Offer(NamedTuple):
    """What one side can do, or what both have agreed on."""

    version: int
    actions: Actions
    steps: Steps

    def answers(self, command: MilterCommand) -> bool:
        """Whether this command wants a reply at once; not asked for the end of a message, which
        always gets one.
        """
        return command in _NO_REPLY_STEPS and not self.steps & _NO_REPLY_STEPS[command]

    def encode(self) -> bytes:
        """As a packet."""
        return encode_packet(
            MilterCommand.OFFER.value, _OFFER.pack(self.version, self.actions, self.steps)
        )


def parse_offer(data: bytes) -> Offer:
    """What a server can do."""
    if len(data) < _OFFER.size:
        raise MilterProtocolError(f"an offer of {len(data)} bytes")
    version, actions, steps = _OFFER.unpack_from(data)
    return Offer(version, Actions(actions), Steps(steps))


def negotiate(offer: Offer, wanted: Actions) -> Offer:
    """What we make use of. wanted: beside adding and removing fields, without which there is no
    use. MalformedError where there is none.
    """
    if offer.version < _MIN_VERSION:
        raise MilterProtocolError(f"version {offer.version} of the protocol")
    if offer.actions & _NEEDED_ACTIONS != _NEEDED_ACTIONS:
        raise MilterProtocolError("a server that lets no filter add and remove header fields")
    return Offer(
        min(offer.version, VERSION),
        offer.actions & (_NEEDED_ACTIONS | wanted),
        offer.steps & _WANTED_STEPS,
    )


# ---- commands


class ConnectingClient(NamedTuple):
    """A server's client. name: as the server found it in the DNS, or the address in brackets; ""
    for what is no name or address.
    """

    name: str
    address: str
    port: str


def parse_connect(data: bytes) -> ConnectingClient:
    """Whom a server is talking to."""
    name, rest = _split_text(data)
    if rest[:1] not in (b"4", b"6") or len(rest) < 1 + _PORT.size:
        return ConnectingClient(
            _decode_text(name), "", ""
        )  # a socket of the machine itself, or unknown
    address, _ = _split_text(rest[1 + _PORT.size :])
    try:
        plain = str(
            ip_address(address.decode("ascii", "replace").removeprefix("IPv6:").partition("%")[0])
        )
    except ValueError:
        plain = ""
    return ConnectingClient(_decode_text(name), plain, str(_PORT.unpack_from(rest, 1)[0]))


def parse_words(data: bytes) -> list[str]:
    """The argument of HELO, or address and parameters of MAIL and RCPT."""
    if not data.endswith(b"\0"):
        raise MilterProtocolError("a text without its end")
    return [_decode_text(word) for word in data[:-1].split(b"\0")]


def parse_field(data: bytes) -> tuple[bytes, bytes]:
    """Name and value of a header field; line ends within are LF or CRLF. The value holds its
    leading blanks where that was agreed on.
    """
    name, rest = _split_text(data)
    if not rest.endswith(b"\0"):
        raise MilterProtocolError("a header field without its end")
    return name, rest[:-1]


def parse_macros(data: bytes) -> Mapping[str, str]:
    """What the server tells beside the next command, by name, without braces."""
    texts = data[1:].split(b"\0")  # in front: the command
    if texts.pop():
        raise MilterProtocolError("a macro without its end")
    return {
        _decode_text(name.strip(b"{}")): _decode_text(value)
        for name, value in zip(texts[::2], texts[1::2], strict=False)
    }


def _split_text(data: bytes) -> tuple[bytes, bytes]:
    text, end, rest = data.partition(b"\0")
    if not end:
        raise MilterProtocolError("a text without its end")
    return text, rest


def _decode_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


# ---- replies

CONTINUE = encode_packet(b"c")
PROGRESS = encode_packet(b"p")


def encode_insert_field(position: int, name: bytes, value: bytes) -> bytes:
    """A new field before the one at this position of the header, 0 being the first."""
    return encode_packet(b"i", _LENGTH.pack(position) + name + b"\0" + value + b"\0")


def encode_remove_field(name: bytes, occurrence: int) -> bytes:
    """The field goes that is the first, second … with this name, counted from 1, case ignored."""
    return encode_packet(b"m", _LENGTH.pack(occurrence) + name + b"\0\0")


def encode_quarantine(reason: str) -> bytes:
    """The server is to hold the message back."""
    return encode_packet(b"q", reason.encode("ascii", "replace") + b"\0")


def encode_refusal(reply: Reply) -> bytes:
    """What the client is to be told; 4xx or 5xx, with an enhanced code."""
    return encode_packet(b"y", b"%d %s\0" % (reply.code, b" ".join(reply.lines)))


class MilterState(Enum):
    """How far a connection has come."""

    NEW = auto()  # nothing is agreed on yet
    READY = auto()  # no client
    CLIENT = auto()  # between messages
    ENVELOPE = auto()  # MAIL was said
    HEADER = auto()
    BODY = auto()


_NEGOTIATED_STATES = tuple(state for state in MilterState if state is not MilterState.NEW)
MESSAGE_STATES = (MilterState.ENVELOPE, MilterState.HEADER, MilterState.BODY)

TRANSITIONS: Mapping[tuple[MilterState, MilterCommand], MilterState] = {
    (MilterState.NEW, MilterCommand.OFFER): MilterState.READY,
    (MilterState.READY, MilterCommand.CONNECT): MilterState.CLIENT,
    **{
        (state, MilterCommand.HELLO): MilterState.CLIENT
        for state in (MilterState.CLIENT, *MESSAGE_STATES)
    },
    **{
        (state, MilterCommand.SENDER): MilterState.ENVELOPE
        for state in (MilterState.CLIENT, *MESSAGE_STATES)
    },
    (MilterState.ENVELOPE, MilterCommand.RECIPIENT): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.DATA): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.HEADER, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.ENVELOPE, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.HEADER, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.BODY, MilterCommand.BODY): MilterState.BODY,
    (MilterState.BODY, MilterCommand.END_OF_MESSAGE): MilterState.CLIENT,
    **{(state, MilterCommand.MACROS): state for state in _NEGOTIATED_STATES},
    **{(state, MilterCommand.UNKNOWN): state for state in _NEGOTIATED_STATES},
    **{
        (state, MilterCommand.ABORT): MilterState.CLIENT
        for state in (MilterState.CLIENT, *MESSAGE_STATES)
    },
    (MilterState.READY, MilterCommand.ABORT): MilterState.READY,
    **{(state, MilterCommand.NEXT_CLIENT): MilterState.READY for state in _NEGOTIATED_STATES},
    **{(state, MilterCommand.QUIT): MilterState.NEW for state in MilterState},
}
"""State and command to the state behind it. A pair that is missing is out of order, and ends the
connection.
"""
