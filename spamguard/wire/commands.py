"""The arguments of MAIL and RCPT, and how the commands are written (RFC 5321, section 4.1.1; RFC 6531, RFC 3461, RFC 1870, RFC 6152).

Nothing gets through that could end a command, begin another one or be read in two ways: no control character, no quote or bracket
left open, no parameter that we do not understand. Whether an address exists is for the next hop to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spamguard.wire.values import Parameter, Recipient, Reply, Sender

LONGEST_PATH = 512  # octets: RFC 5321 (section 4.5.3.1.3) asks for 256, and addresses that carry another one in them are longer

# Beyond ASCII: everything but C1 controls, the two Unicode line ends, and bytes that are no UTF-8 (they come as surrogates).
_WIDE = r"\u00a0-\u2027\u202a-\ud7ff\ue000-\U0010ffff"
_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~.{_WIDE}-]++"
_QUOTED = rf'"(?:[ !#-\[\]-~{_WIDE}]++|\\[ -~]|)*+"'
_DOMAIN = rf"(?:[A-Za-z0-9._{_WIDE}-]++|\[[!-Z^-~]++\])"
_ROUTE = rf"(?:@{_DOMAIN}(?:,@{_DOMAIN}|)*+:|)?+"
_MAILBOX = rf"(?:{_ATOM}|{_QUOTED})(?:{_ATOM}|{_QUOTED}|)*+(?:@{_DOMAIN}|)?+"
# Many programs leave the brackets out, and mail servers take that: what they take and pass on to us as it came must not end here.
_PATH = re.compile(rf"<{_ROUTE}({_MAILBOX})>|({_MAILBOX})")
_PARAMETER = re.compile(rf"([A-Za-z0-9][A-Za-z0-9-]*+)(?:=([!-~{_WIDE}]++)|)?+")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_XTEXT = r"(?:[!-*,-~]|\+[0-9A-Fa-f]{2})"  # "=" should be encoded, often is not, and mail servers take it so
_UNITEXT = rf"[!-~{_WIDE}]"  # RFC 6533, section 3
_TYPE = r"[!#-'*+./0-9=?A-Z^-~-]{1,60}"  # of an address: an atom
_NOTIFY = r"(?:SUCCESS|FAILURE|DELAY)"

# Known whether they were announced or not: Postfix sends them to filters that announce nothing.
_OF_MAIL: Mapping[str, re.Pattern[str] | None] = {
    "SIZE": re.compile(r"[0-9]{1,20}"),
    "BODY": re.compile(r"7BIT|8BITMIME", re.I),
    "SMTPUTF8": None,
    "RET": re.compile(r"FULL|HDRS", re.I),
    "ENVID": re.compile(rf"{_XTEXT}{{1,100}}"),
    "AUTH": re.compile(rf"{_XTEXT}{{1,500}}"),  # RFC 4954, section 5
}
_OF_RCPT: Mapping[str, re.Pattern[str] | None] = {
    "NOTIFY": re.compile(rf"NEVER|{_NOTIFY}(?:,{_NOTIFY}){{0,2}}", re.I),
    "ORCPT": re.compile(rf"(?:utf-8;{_UNITEXT}{{1,500}}|{_TYPE};{_XTEXT}{{0,500}})", re.I),
}

_MAIL_SYNTAX = Reply.of(501, "5.5.4 Syntax: MAIL FROM:<address>")
_RCPT_SYNTAX = Reply.of(501, "5.5.4 Syntax: RCPT TO:<address>")
_BAD_SENDER = Reply.of(501, "5.1.7 Bad sender address syntax")
_BAD_RECIPIENT = Reply.of(501, "5.1.3 Bad recipient address syntax")
_BAD_PARAMETER = Reply.of(501, "5.5.4 Bad parameter")
_UNKNOWN_PARAMETER = Reply.of(555, "5.5.4 Unknown parameter")
_NOT_ASCII = Reply.of(553, "5.6.7 Address is not ASCII, and SMTPUTF8 was not given")


class _RefusedError(Exception):
    """Carries the reply out of the parser."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


def parse_mail(argument: bytes, *, smtputf8: bool = False) -> Sender | Reply:
    """The sender from what follows the verb, without the line end, or the refusal. A source route is dropped.

    smtputf8: whether it may go beyond ASCII without saying SMTPUTF8, as from a server that has let its client do so.
    """
    try:
        path = _after(argument, b"FROM:", _MAIL_SYNTAX)
        address, rest = ("", path[2:]) if path.startswith("<>") else _address(path, _BAD_SENDER)
        parameters = _parameters(rest, _OF_MAIL, _BAD_SENDER)
        _check_ascii(address, parameters, smtputf8=smtputf8 or any(one.keyword == "SMTPUTF8" for one in parameters))
    except _RefusedError as refused:
        return refused.reply
    return Sender(address, parameters)


def parse_rcpt(argument: bytes, *, smtputf8: bool = False) -> Recipient | Reply:
    """The recipient from what follows the verb, without the line end, or the refusal. smtputf8: whether MAIL had it, or need not.

    An address without domain is taken: `<Postmaster>` must be (RFC 5321, section 4.1.1.3), and an LMTP server knows others.
    """
    try:
        address, rest = _address(_after(argument, b"TO:", _RCPT_SYNTAX), _BAD_RECIPIENT)
        parameters = _parameters(rest, _OF_RCPT, _BAD_RECIPIENT)
        _check_ascii(address, parameters, smtputf8=smtputf8)
    except _RefusedError as refused:
        return refused.reply
    return Recipient(address, parameters)


def mail_command(sender: Sender) -> bytes:
    """The MAIL command, line end included. ValueError where that would be more than one command."""
    return _command("MAIL FROM", sender.address, sender.parameters)


def rcpt_command(recipient: Recipient) -> bytes:
    """The RCPT command, as `mail_command`."""
    return _command("RCPT TO", recipient.address, recipient.parameters)


def _after(argument: bytes, word: bytes, refusal: Reply) -> str:
    if argument[: len(word)].upper() != word:
        raise _RefusedError(refusal)
    return argument[len(word) :].lstrip(b" ").decode("utf-8", "surrogateescape")


def _address(text: str, refusal: Reply) -> tuple[str, str]:
    """The address at the beginning, without its brackets and source route, and what follows it."""
    if not text.isascii() and _not_utf8(text):
        raise _RefusedError(_NOT_ASCII)
    match = _PATH.match(text)
    if match is None or len(match[0].encode()) > LONGEST_PATH:
        raise _RefusedError(refusal)
    return match[1] or match[2], text[match.end() :]


def _parameters(text: str, known: Mapping[str, re.Pattern[str] | None], refusal: Reply) -> tuple[Parameter, ...]:
    if text and not text.startswith(" "):
        raise _RefusedError(refusal)  # something that is stuck to the closing bracket
    found: dict[str, Parameter] = {}
    for word in text.split(" "):
        parameter = _parameter(word, known) if word else None
        if parameter and found.setdefault(parameter.keyword, parameter) is not parameter:
            raise _RefusedError(_BAD_PARAMETER)
    return tuple(found.values())


def _parameter(word: str, known: Mapping[str, re.Pattern[str] | None]) -> Parameter:
    match = _PARAMETER.fullmatch(word)
    if match is None:
        raise _RefusedError(_BAD_PARAMETER)
    keyword, value = match[1].upper(), match[2]
    if keyword not in known:
        raise _RefusedError(_UNKNOWN_PARAMETER)
    pattern = known[keyword]
    if (pattern is None) != (value is None) or (pattern and value and not pattern.fullmatch(value)):
        raise _RefusedError(_BAD_PARAMETER)
    return Parameter(keyword, value)


def _check_ascii(address: str, parameters: Iterable[Parameter], *, smtputf8: bool) -> None:
    if smtputf8:
        return
    if not address.isascii():
        raise _RefusedError(_NOT_ASCII)
    if not all((one.value or "").isascii() for one in parameters):
        raise _RefusedError(_BAD_PARAMETER)


def _not_utf8(text: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def _command(verb: str, address: str, parameters: Iterable[Parameter]) -> bytes:
    words = [one.keyword if one.value is None else f"{one.keyword}={one.value}" for one in parameters]
    line = " ".join((f"{verb}:<{address}>", *words))
    if _CONTROL.search(line):
        raise ValueError("a control character in an address or a parameter")
    return line.encode() + b"\r\n"
