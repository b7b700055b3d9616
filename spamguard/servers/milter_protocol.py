"""The milter protocol, versions 2 to 6, from the filter's side. Pure.

Packets, the negotiation of actions and steps, commands taken apart, replies put together, and the
states of a connection as a table, as Sendmail's libmilter and Postfix speak it; there is no
standard. Numbers are big-endian, texts end in NUL. Input is hostile: every length is checked before
anything is kept for it, and nonsense is a `MilterProtocolError`.

It is written by hand because pymilter is Sendmail's libmilter, which opens the socket and runs
threads itself.

Must never be stricter than needed: a server that we hang up on defers the mail, or lets it through
unjudged. So steps that some servers leave out may be left out; but no message ends that has not
begun. Sendmail, once MAIL needs no reply, never says that a message was given up (RSET, or one too
large for it): the next MAIL or HELO is all that we hear.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntFlag, auto
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from spamguard.smtp.envelope import Client, Reply

VERSION = 6  # the newest
_MIN_VERSION = 2
# Of a packet with a piece of a message: Postfix cuts a header field at 102,400 bytes, and a body
# into pieces of 65,535.
MAX_LONG_PACKET_BYTES = 1 << 20
MAX_SHORT_PACKET_BYTES = 64 << 10  # of all other packets
_LENGTH = Struct("!I")
_HEAD = Struct("!Ic")  # length of what follows it, command
_OFFER = Struct("!III")
_PORT = Struct("!H")


class MilterProtocolError(ValueError):
    """The server does not keep to the protocol."""


class MilterCommand(Enum):
    """The commands of a mail server."""

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
    UNKNOWN = b"U"  # a command of its client that the server does not know
    QUIT = b"Q"
    NEXT_CLIENT = b"K"  # quit, but the connection stays for another client


_LONG_COMMANDS = frozenset((MilterCommand.FIELD, MilterCommand.BODY, MilterCommand.END_OF_MESSAGE))


class Packet(NamedTuple):
    """A command and its data."""

    command: MilterCommand
    data: bytes


class PacketReader:
    """Takes bytes cut anywhere and gives one packet after the other."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> None:
        self._unread += data

    def next_packet(self) -> Packet | None:
        """The next packet, None while it is incomplete.

        Raises
        ------
        MilterProtocolError
            As soon as the bytes can be no packet.
        """
        if len(self._unread) < _HEAD.size:
            return None
        length, letter = _HEAD.unpack_from(self._unread)
        try:
            command = MilterCommand(letter)
        except ValueError:
            raise MilterProtocolError(f"the unknown command {letter!r}") from None
        max_length = MAX_LONG_PACKET_BYTES if command in _LONG_COMMANDS else MAX_SHORT_PACKET_BYTES
        if not 1 <= length <= max_length:
            raise MilterProtocolError(f"a packet of {length} bytes")
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        data = bytes(memoryview(self._unread)[_HEAD.size : end])
        del self._unread[:end]
        return Packet(command, data)

    @property
    def has_partial_packet(self) -> bool:
        return bool(self._unread)


def encode_packet(command: bytes, data: bytes = b"") -> bytes:
    return _LENGTH.pack(1 + len(data)) + command + data


# ---- negotiation


class Actions(IntFlag):
    """What a filter may do with a message."""

    ADD_FIELDS = 0x01
    CHANGE_FIELDS = 0x10
    QUARANTINE = 0x20


class Steps(IntFlag):
    """Commands that the server leaves out (NO_…), or that we do not answer (NO_REPLY_TO_…)."""

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
    LEADING_SPACE = 0x100000  # values of fields keep the blanks behind the colon


_NO_REPLY_STEPS = {
    command: Steps[name]
    for command in MilterCommand
    if (name := f"NO_REPLY_TO_{command.name}") in Steps.__members__
}
"""Commands that are answered at once, unless this step was negotiated."""

_WANTED_STEPS = Steps(sum(Steps))
_NEEDED_ACTIONS = Actions.ADD_FIELDS | Actions.CHANGE_FIELDS


class Offer(NamedTuple):
    """What one side can do, or what was negotiated."""

    version: int
    actions: Actions
    steps: Steps

    def answers(self, command: MilterCommand) -> bool:
        """Whether this command is answered at once, as the end of a message always is."""
        return command in _NO_REPLY_STEPS and not self.steps & _NO_REPLY_STEPS[command]

    def encode(self) -> bytes:
        values = _OFFER.pack(self.version, self.actions, self.steps)
        return encode_packet(MilterCommand.OFFER.value, values)


def parse_offer(data: bytes) -> Offer:
    if len(data) < _OFFER.size:
        raise MilterProtocolError(f"an offer of {len(data)} bytes")
    version, actions, steps = _OFFER.unpack_from(data)
    return Offer(version, Actions(actions), Steps(steps))


def negotiate(offer: Offer, optional: Actions) -> Offer:
    """What we use of an offer: the needed actions, and those `optional` ones that there are.

    Raises
    ------
    MilterProtocolError
        We are of no use to this server.
    """
    if offer.version < _MIN_VERSION:
        raise MilterProtocolError(f"version {offer.version} of the protocol")
    if offer.actions & _NEEDED_ACTIONS != _NEEDED_ACTIONS:
        raise MilterProtocolError("a server that lets no filter add and remove header fields")
    actions = offer.actions & (_NEEDED_ACTIONS | optional)
    return Offer(min(offer.version, VERSION), actions, offer.steps & _WANTED_STEPS)


# ---- commands


def parse_connect(data: bytes) -> Client:
    """The client in CONNECT. Its name is from the DNS, or the address in brackets."""
    name, end, rest = data.partition(b"\0")
    if not end:
        raise MilterProtocolError("a text without its end")
    if rest[:1] not in (b"4", b"6") or len(rest) < 1 + _PORT.size:
        # A Unix socket of the server, or unknown.
        return Client(name=_decode_text(name))
    text = _split_texts(rest[1 + _PORT.size :])[0]
    plain = text.decode("ascii", "replace").removeprefix("IPv6:").partition("%")[0]
    try:
        address = str(ip_address(plain))
    except ValueError:
        address = ""
    return Client(address, _decode_text(name), str(_PORT.unpack_from(rest, 1)[0]))


def parse_words(data: bytes) -> list[str]:
    """The argument of HELO, or address and parameters of MAIL and RCPT."""
    return [_decode_text(word) for word in _split_texts(data)]


def parse_field(data: bytes) -> tuple[bytes, bytes]:
    """Name and value of a header field. Lines within end in LF or CRLF.

    The value has its leading blanks if `Steps.LEADING_SPACE` was negotiated.
    """
    name, *value = _split_texts(data, 1)
    if not value:
        raise MilterProtocolError("a field without a value")
    return name, value[0]


def parse_macros(data: bytes) -> Mapping[str, str]:
    """The macros that the server sends beside the next command, by name without braces."""
    texts = _split_texts(data[1:]) if data[1:] else []  # the first byte is that command
    return {
        _decode_text(name.strip(b"{}")): _decode_text(value)
        for name, value in zip(texts[::2], texts[1::2], strict=False)
    }


def _split_texts(data: bytes, count: int = -1) -> list[bytes]:
    if not data.endswith(b"\0"):
        raise MilterProtocolError("a text without its end")
    return data[:-1].split(b"\0", count)


def _decode_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


# ---- replies

CONTINUE = encode_packet(b"c")
PROGRESS = encode_packet(b"p")


def encode_insert_field(name: bytes, value: bytes) -> bytes:
    """Insert it on top of the header."""
    return encode_packet(b"i", _LENGTH.pack(0) + name + b"\0" + value + b"\0")


def encode_remove_field(name: bytes, occurrence: int) -> bytes:
    """Remove the field that is the first, second … of this name, from 1; case does not matter."""
    return encode_packet(b"m", _LENGTH.pack(occurrence) + name + b"\0\0")


def encode_quarantine(reason: str) -> bytes:
    return encode_packet(b"q", reason.encode("ascii", "replace") + b"\0")


def encode_refusal(reply: Reply) -> bytes:
    """Refuse the message with this 4xx or 5xx reply, which has an enhanced code."""
    return encode_packet(b"y", b"%d %s\0" % (reply.code, b" ".join(reply.lines)))


# ---- states


class MilterState(Enum):
    """How far a connection has come."""

    NEW = auto()  # before the negotiation
    READY = auto()  # no client
    CLIENT = auto()  # between messages
    ENVELOPE = auto()  # after MAIL
    HEADER = auto()
    BODY = auto()


MESSAGE_STATES = (MilterState.ENVELOPE, MilterState.HEADER, MilterState.BODY)
_CLIENT_STATES = (MilterState.CLIENT, *MESSAGE_STATES)
_NEGOTIATED_STATES = (MilterState.READY, *_CLIENT_STATES)

TRANSITIONS: Mapping[tuple[MilterState, MilterCommand], MilterState] = {
    (MilterState.NEW, MilterCommand.OFFER): MilterState.READY,
    (MilterState.READY, MilterCommand.CONNECT): MilterState.CLIENT,
    (MilterState.ENVELOPE, MilterCommand.RECIPIENT): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.DATA): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.HEADER, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.ENVELOPE, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.HEADER, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.BODY, MilterCommand.BODY): MilterState.BODY,
    (MilterState.BODY, MilterCommand.END_OF_MESSAGE): MilterState.CLIENT,
    (MilterState.READY, MilterCommand.ABORT): MilterState.READY,
    **{(state, MilterCommand.SENDER): MilterState.ENVELOPE for state in _CLIENT_STATES},
    **{
        (state, command): MilterState.CLIENT
        for state in _CLIENT_STATES
        for command in (MilterCommand.HELLO, MilterCommand.ABORT)
    },
    **{
        (state, command): state
        for state in _NEGOTIATED_STATES
        for command in (MilterCommand.MACROS, MilterCommand.UNKNOWN)
    },
    **{(state, MilterCommand.NEXT_CLIENT): MilterState.READY for state in _NEGOTIATED_STATES},
    **{(state, MilterCommand.QUIT): MilterState.NEW for state in MilterState},
}
"""State and command to the next state. A pair that is missing is out of order, and ends the
connection.
"""
