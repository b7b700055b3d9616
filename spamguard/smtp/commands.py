"""What a client says: MAIL, RCPT, XFORWARD and XCLIENT with their arguments, and the message.

MAIL and RCPT follow RFC 5321 (section 4.1.1), RFC 6531, RFC 3461, RFC 1870 and RFC 6152; XFORWARD
and XCLIENT follow Postfix's XFORWARD_README and XCLIENT_README. Nothing gets through that could end
a command, begin another one or be read in two ways: no control character, no open quote or bracket,
no unknown parameter. Whether an address exists is for the next hop to say. Only CRLF.CRLF ends a
message, and what is sent on must never hold anything that a more lenient server takes for an end
(SMTP smuggling).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from spamguard.smtp.envelope import (
    Client,
    EsmtpParameter,
    Recipient,
    RefusedError,
    Replies,
    Reply,
    Sender,
)

# RFC 5321 (section 4.5.3.1.3) asks for 256 octets; addresses that carry another one are longer.
MAX_PATH_BYTES = 512

# Beyond ASCII: everything but C1 controls, the two Unicode line ends, and bytes that are no UTF-8
# (they come as surrogates).
_WIDE = r"\u00a0-\u2027\u202a-\ud7ff\ue000-\U0010ffff"
_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~.{_WIDE}-]++"
_QUOTED = rf'"(?:[ !#-\[\]-~{_WIDE}]++|\\[ -~]|)*+"'
_DOMAIN = rf"(?:[A-Za-z0-9._{_WIDE}-]++|\[[!-Z^-~]++\])"
_ROUTE = rf"(?:@{_DOMAIN}(?:,@{_DOMAIN}|)*+:|)?+"
_MAILBOX = rf"(?:{_ATOM}|{_QUOTED})(?:{_ATOM}|{_QUOTED}|)*+(?:@{_DOMAIN}|)?+"
# Many programs leave the brackets out, and mail servers accept that and pass it on to us.
_PATH = re.compile(rf"<>|<{_ROUTE}({_MAILBOX})>|({_MAILBOX})")
_PARAMETER = re.compile(rf"([A-Za-z0-9][A-Za-z0-9-]*+)(?:=([!-~{_WIDE}]++)|)?+")
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_XTEXT = r"(?:[!-*,-~]|\+[0-9A-Fa-f]{2})"  # a bare "=" is wrong, frequent, and accepted everywhere
_UNITEXT = rf"[!-~{_WIDE}]"  # RFC 6533, section 3
_ADDRESS_TYPE = r"[!#-'*+./0-9=?A-Z^-~-]{1,60}"  # an atom
_NOTIFY = r"(?:SUCCESS|FAILURE|DELAY)"

# Accepted whether they were announced or not: Postfix sends them to filters that announce nothing.
_MAIL_PARAMETERS = {
    "SIZE": re.compile(r"[0-9]{1,20}"),
    "BODY": re.compile(r"7BIT|8BITMIME", re.I),
    "SMTPUTF8": re.compile(""),  # no value
    "RET": re.compile(r"FULL|HDRS", re.I),
    "ENVID": re.compile(rf"{_XTEXT}{{1,100}}"),
    "AUTH": re.compile(rf"{_XTEXT}{{1,500}}"),  # RFC 4954, section 5
}
_RCPT_PARAMETERS = {
    "NOTIFY": re.compile(rf"NEVER|{_NOTIFY}(?:,{_NOTIFY}){{0,2}}", re.I),
    "ORCPT": re.compile(rf"(?:utf-8;{_UNITEXT}{{1,500}}|{_ADDRESS_TYPE};{_XTEXT}{{0,500}})", re.I),
}

_UNKNOWN_PARAMETER = Reply.from_text(555, "5.5.4 Unknown parameter")
_NOT_ASCII = Reply.from_text(553, "5.6.7 Address is not ASCII, and SMTPUTF8 was not given")


def parse_mail(argument: bytes, *, smtputf8: bool = False) -> Sender:
    """The sender in the argument of MAIL, without a source route; RefusedError if there is none.

    With `smtputf8` it may go beyond ASCII without that parameter, as from a server that has let its
    client do so.
    """
    return Sender(*_parse_path(argument, b"FROM:", _MAIL_PARAMETERS, smtputf8=smtputf8))


def parse_rcpt(argument: bytes, *, smtputf8: bool = False) -> Recipient:
    """The recipient in the argument of RCPT; RefusedError if there is none.

    An address without domain is accepted: `<Postmaster>` must be (RFC 5321, section 4.1.1.3), and
    an LMTP server knows others. With `smtputf8`, MAIL had that parameter or need not.
    """
    return Recipient(*_parse_path(argument, b"TO:", _RCPT_PARAMETERS, smtputf8=smtputf8))


def _parse_path(
    argument: bytes, start: bytes, forms: Mapping[str, re.Pattern[str]], *, smtputf8: bool
) -> tuple[str, tuple[EsmtpParameter, ...]]:
    bad = RefusedError(Replies.BAD_ARGUMENT)
    if argument[: len(start)].upper() != start:
        raise bad
    try:
        text = argument[len(start) :].lstrip(b" ").decode()
    except UnicodeDecodeError:
        raise RefusedError(_NOT_ASCII) from None
    match = _PATH.match(text)
    if match is None or len(match[0].encode()) > MAX_PATH_BYTES:
        raise bad
    address, rest = match[1] or match[2] or "", text[match.end() :]
    # Only a sender may be null, and nothing may stick to the closing bracket.
    if not (address or start == b"FROM:") or (rest and not rest.startswith(" ")):
        raise bad
    parameters: dict[str, EsmtpParameter] = {}
    for word in filter(None, rest.split(" ")):
        match = _PARAMETER.fullmatch(word)
        if match is None:
            raise bad
        keyword, value = match[1].upper(), match[2]
        if keyword not in forms:
            raise RefusedError(_UNKNOWN_PARAMETER)
        if not forms[keyword].fullmatch(value or "") or keyword in parameters:
            raise bad
        parameters[keyword] = EsmtpParameter(keyword, value)
    if not (smtputf8 or "SMTPUTF8" in parameters or text.isascii()):
        raise RefusedError(_NOT_ASCII)
    return address, tuple(parameters.values())


def write_command(path: Sender | Recipient) -> bytes:
    """The MAIL or RCPT command with its line end; ValueError if it holds a control character."""
    verb = "MAIL FROM" if isinstance(path, Sender) else "RCPT TO"
    words = [f"{verb}:<{path.address}>"]
    words += [key if value is None else f"{key}={value}" for key, value in path.parameters]
    line = " ".join(words)
    if _CONTROL_CHARACTER.search(line):
        raise ValueError("a control character in an address or a parameter")
    return line.encode() + b"\r\n"


# ---- XFORWARD and XCLIENT

CLIENT_FIELDS: Mapping[str, str] = {
    "NAME": "name",
    "ADDR": "address",
    "PORT": "port",
    "PROTO": "protocol",
    "HELO": "helo",
    "IDENT": "ident",
    "SOURCE": "source",
    "LOGIN": "login",
}
"""The field of `Client` that holds each attribute."""

_MAX_LINE_BYTES = 512  # line end included (RFC 5321, section 4.5.3.1.4)

_ATTRIBUTE = re.compile(rb"([A-Za-z_]++)=([!-<>-~\x80-\xff]*+)")
_ENCODED = re.compile(rb"\+([0-9A-Fa-f]{2})")
_TO_ENCODE = re.compile(rb"[^!-*,-<>-~]")
_VALUE_FORMS = {"PORT": re.compile("[0-9]{1,5}"), "SOURCE": re.compile("LOCAL|REMOTE")}

XFORWARD_FEATURE = "XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE"
XCLIENT_FEATURE = "XCLIENT NAME ADDR PORT PROTO HELO LOGIN"


def apply_attributes(client: Client, argument: bytes, feature: str) -> Client:
    """The client after one XFORWARD or XCLIENT; RefusedError if the argument is none.

    The client is that after the commands before it, or the peer itself. What the peer does not say
    stays unknown: its own values are not those of its client. Values are free text of strangers,
    encoded; decoded they hold no control characters.
    """
    values: dict[str, Any] = {}
    for word in filter(None, argument.split(b" ")):
        match = _ATTRIBUTE.fullmatch(word)
        name = match[1].decode("ascii").upper() if match else ""
        if match is None or name not in feature.split()[1:]:
            raise RefusedError(Replies.BAD_ARGUMENT)
        raw = _ENCODED.sub(lambda code: bytes.fromhex(code[1].decode("ascii")), match[2])
        # No host name has more than 255 characters.
        text = _CONTROL_CHARACTER.sub("?", raw.decode("utf-8", "replace"))[:255]
        if text.upper() in ("[UNAVAILABLE]", "[TEMPUNAVAIL]"):
            text = ""
        elif name == "ADDR" and text:
            try:
                text = str(ip_address(text[5:] if text[:5].upper() == "IPV6:" else text))
            except ValueError:
                raise RefusedError(Replies.BAD_ARGUMENT) from None
        elif text and name in _VALUE_FORMS and not _VALUE_FORMS[name].fullmatch(text):
            raise RefusedError(Replies.BAD_ARGUMENT)
        values[CLIENT_FIELDS[name]] = text
    if not values:
        raise RefusedError(Replies.BAD_ARGUMENT)
    before = client if client.forwarded else Client(peer=client.peer, forwarded=True)
    return replace(before, **values)


def xforward_commands(client: Client, announced: str) -> list[bytes]:
    """XFORWARD commands, line ends included, with every attribute that EHLO announced.

    A value that is unknown, or does not fit, goes out as unavailable: the peer would keep that of
    the message before otherwise.
    """
    lines: list[bytes] = []
    line = b"XFORWARD"
    offered = announced.upper().split()
    for name in XFORWARD_FEATURE.split()[1:]:
        if name not in offered:
            continue
        value = getattr(client, CLIENT_FIELDS[name])
        if name == "ADDR" and ":" in value:
            value = f"IPV6:{value}"
        encoded = _TO_ENCODE.sub(lambda m: b"+%02X" % m[0][0], value.encode("utf-8", "replace"))
        if not value or len(encoded) > 472:  # with its name, beyond a line
            encoded = b"[UNAVAILABLE]"
        word = name.encode() + b"=" + encoded
        if len(line) + len(word) + 3 > _MAX_LINE_BYTES:
            lines.append(line + b"\r\n")
            line = b"XFORWARD"
        line += b" " + word
    return [*lines, line + b"\r\n"] if line != b"XFORWARD" else []


# ---- the message after 354 (RFC 5321, section 4.5.2)
#
# Works on whole pieces, without a loop over lines, so short lines cost no more than long ones.

_ODD_BYTES = (("bare-cr", b"\r"), ("bare-lf", b"\n"), ("nul", b"\0"))

_CRLF = b"\r\n"
_DOT_LINE = b"\r\n."
_END = b"\r\n.\r\n"
_BLANK_FOR_CR = bytes.maketrans(b"\r", b" ")


class DataReader:
    """Reads one message in chunks of any size; where they are cut makes no difference.

    With `normalise` a bare CR comes out as a blank, a bare LF as CRLF, a NUL not at all; otherwise
    they stay, and are no line ends. `oddities` says which of "bare-cr", "bare-lf" and "nul" the
    message holds so far, `rest` is what came behind the end: the next commands.
    """

    def __init__(self, *, normalise: bool = False) -> None:
        self.oddities: set[str] = set()
        self.is_finished = False
        self.rest = b""
        self._normalise = normalise
        # A message begins at the beginning of a line, as if behind a line end. That line end is
        # not part of the message: `_skip` bytes are dropped from the first output.
        self._held = _CRLF
        self._skip = len(_CRLF)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of the message, dots taken off, that are certain now.

        Raises ValueError if the message has ended already.
        """
        if self.is_finished:
            raise ValueError("the message has ended")
        text = self._held + chunk
        end = text.find(_END)
        if end < 0:  # hold back what the next chunk may turn into an end
            piece, self._held = _hold_back(text, _END)
        else:
            self.is_finished, self.rest, self._held = True, text[end + len(_END) :], b""
            piece = text = text[: end + len(_CRLF)]
        oddities = _find_oddities(text)
        self.oddities |= oddities
        piece = piece.replace(_DOT_LINE, _CRLF)
        if oddities and self._normalise:
            piece = _normalise(piece)
        if piece and self._skip:
            piece, self._skip = piece[self._skip :], 0
        return piece


def dot_stuff(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A message with CRLF line ends as it goes over the wire: dots put on, CRLF.CRLF at the end.

    Raises ValueError before a bare CR, a bare LF or a NUL is given out: a server that takes one for
    a line end, or drops it, might see an end of the message there. Close the session to which
    earlier pieces were sent.

    >>> b"".join(dot_stuff([b"a\\r\\n.b\\r\\n"]))
    b'a\\r\\n..b\\r\\n.\\r\\n'
    """
    held, skip = _CRLF, len(_CRLF)  # as if behind a line end, which is not given out
    for chunk in chunks:
        text = held + chunk
        if oddities := _find_oddities(text):
            raise ValueError(f"a message to be sent holds {', '.join(sorted(oddities))}")
        piece, held = _hold_back(text, _DOT_LINE)
        if piece:
            yield piece.replace(_DOT_LINE, b"\r\n..")[skip:]
            skip = 0
    if held == b"\r":
        raise ValueError("a message to be sent holds bare-cr")
    yield (held or _CRLF)[skip:] + b".\r\n"


def _find_oddities(text: bytes) -> set[str]:
    """A CR at the end of the text may be half of a line end, and is not odd yet."""
    rest = text.removesuffix(b"\r").replace(_CRLF, b"")
    return {name for name, byte in _ODD_BYTES if byte in rest}


def _normalise(text: bytes) -> bytes:
    return text.replace(_CRLF, b"\n").translate(_BLANK_FOR_CR, b"\0").replace(b"\n", _CRLF)


def _hold_back(text: bytes, sought: bytes) -> tuple[bytes, bytes]:
    """The text without the longest end that `sought` may begin with, and that end."""
    for length in range(min(len(sought) - 1, len(text)), 0, -1):
        if text.endswith(sought[:length]):
            return text[:-length], text[-length:]
    return text, b""
