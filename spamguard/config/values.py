"""The types of the options: each says what it expects, in words, and how its value is written.

Every check takes one plain value of the file and returns what the settings hold, or raises ValueError with the whole sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from spamguard.config import files, places, units
from spamguard.config.units import shown, unquoted
from spamguard.settings import Action, Endpoint, OddBytes, OnError, Place, Position, TeachingUser, Tls
from spamguard.teaching.lesson import NO_CLASSES

Choice = TypeVar("Choice", bound=StrEnum)

_MAILBOX = re.compile(r"[!#-'*+\-./0-9=?A-Z^-~]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_VERDICT = re.compile(rf"unsure|(?!(?:{'|'.join(NO_CLASSES)})\Z){_LABEL.pattern}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
_FIELD = re.compile(r"[!-)+-9;-~]{1,70}\*?")
_PREFIX = re.compile(r"[ -~]{1,60}")
_ONE_IN = re.compile(r"1 in ([0-9]{1,3}(?:,?[0-9]{3}){0,2}|[0-9]{1,9})")
_SENDER = re.compile(rf"(?:\*|{_MAILBOX.pattern.partition('@')[0]})@{_MAILBOX.pattern.partition('@')[2]}")
_ALIAS = re.compile(rf"{_SENDER.pattern}|{_MAILBOX.pattern.partition('@')[0]}")
_KEYWORD = re.compile(r"[!#$&'+,\-./0-9:;<=>?@A-Z\[^_`a-z|}~]{1,200}")  # an atom (RFC 9051, section 9)
_HTTP_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,69}")
_MAIL_USER = re.compile(r"[!-~\u00a1-\U0010ffff]{1,255}")
ROLES = ("neutral", "trash", "ignored")  # of folders that teach nothing
_NO_CLASSES = (*NO_CLASSES, "class")
FIXED = "fixed"
AUTO = "auto"


def near(word: object, known: list[str]) -> str:
    """`: did you mean 'x'?`, or nothing."""
    found = get_close_matches(str(word).lower(), known, 1, 0.6)
    return f": did you mean {found[0]!r}?" if found else ""


def _one_of(kind: type[Choice], *unset: str) -> Callable[[object], Choice | None]:
    """unset: words for None."""
    names = [*unset, *(one.value for one in kind)]

    def check(given: object) -> Choice | None:
        if isinstance(given, str) and given in names:
            return None if given in unset else kind(given)
        raise ValueError(f"expected one of {', '.join(names)}, found {shown(given)}{near(given, names)}")

    return check


def _matching(pattern: re.Pattern[str], expected: str, *, empty: bool = False) -> Callable[[object], str]:
    def check(given: object) -> str:
        if isinstance(given, str) and (pattern.fullmatch(given) or (empty and not given)):
            return given
        raise ValueError(f"expected {expected}, found {shown(given)}")

    return check


def _whole(least: int, most: int) -> Callable[[object], int]:
    def check(given: object) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
            return given
        raise ValueError(f"expected a whole number from {least} to {most:,}, found {shown(given)}{unquoted(given)}")

    return check


def _flag(given: object) -> bool:
    if isinstance(given, bool):
        return given
    raise ValueError(f"expected true or false, found {shown(given)}{unquoted(given)}")


def _probability(given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1:
        return float(given)
    raise ValueError(f"expected a probability from 0 to 1 such as 0.95, found {shown(given)}{unquoted(given)}")


def in_one_word(key: str) -> Callable[[object], object]:
    """What is told in one word, as a next hop by its endpoint, is a mapping with one key."""
    return lambda given: given if isinstance(given, dict) else {key: given}


def _one_wrong_in(given: object) -> int:
    if given == FIXED:
        return 0
    match = _ONE_IN.fullmatch(given) if isinstance(given, str) else None
    number = int(match[1].replace(",", "")) if match else 0
    if number < 2:
        raise ValueError(f"expected {FIXED}, or such as 1 in 1000, found {shown(given)}")
    return number


def _one_wrong_in_text(value: int) -> str:
    return f"1 in {value}" if value else FIXED


def _role(given: object) -> str:
    if isinstance(given, str) and (given in ROLES or (_LABEL.fullmatch(given) and given not in _NO_CLASSES)):
        return given
    expected = f"a class such as spam or ham, or one of {', '.join(ROLES)}"
    raise ValueError(f"expected {expected}, found {shown(given)}{near(given, ['spam', 'ham', *ROLES])}")


def _class(given: object) -> str:
    if isinstance(given, str) and _LABEL.fullmatch(given) and given not in _NO_CLASSES:
        return given
    raise ValueError(f"expected a class such as spam or ham, found {shown(given)}{near(given, ['spam', 'ham'])}")


def _text(value: Any) -> str:
    return str(value)


_told = PlainSerializer(_text)


# ---- what editors are told: as much of it as a pattern can say


def _text_like(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _number(least: int, most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": most})


def _any_of(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"enum": [str(word) for word in words]})


# ---- the types


Seconds = Annotated[float, PlainValidator(units.seconds), PlainSerializer(units.duration_text), _text_like(units.DURATION)]
Days = Annotated[int, PlainValidator(units.days), PlainSerializer(units.days_text), _text_like(units.DURATION)]
Size = Annotated[int, PlainValidator(units.size), PlainSerializer(units.size_text), _text_like(units.SIZE)]
Count = Annotated[int, PlainValidator(_whole(1, 1_000_000)), _number(1, 1_000_000)]
Allowance = Annotated[int, PlainValidator(_whole(0, 1_000_000)), _number(0, 1_000_000)]
Processes = Annotated[int, PlainValidator(_whole(0, 1024)), _number(0, 1024)]
Flag = Annotated[bool, PlainValidator(_flag), WithJsonSchema({"type": "boolean"})]
Probability = Annotated[float, PlainValidator(_probability), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Network = Annotated[str, PlainValidator(places.network), _text_like(r"[0-9A-Fa-f:.]+(/[0-9]+)?")]
Monitored = Annotated[Place, PlainValidator(places.place), _told, _text_like(places.PLACE.pattern)]
Host = Annotated[str, PlainValidator(places.host_name), _text_like(rf"{places.NAME.pattern}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")]
HttpField = Annotated[
    str,
    PlainValidator(_matching(_HTTP_FIELD, "the name of a field such as X-Remote-User", empty=True)),
    _text_like(f"({_HTTP_FIELD.pattern})?"),
]
Somebody = Annotated[str, PlainValidator(_matching(_MAIL_USER, "the name of somebody")), _text_like(r"\S+")]
Directory = Annotated[Path, PlainValidator(files.path), _told, _text_like("/.*")]
File = Annotated[Path, PlainValidator(files.file), _told, _text_like("/.*")]
Address = Annotated[Endpoint, PlainValidator(places.listen), _told, _text_like(r"(smtp|lmtp)://([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]+")]
Asked = Annotated[
    Endpoint,
    PlainValidator(places.scanner),
    _told,
    _text_like(r"(rspamd|spamd|milter)://([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]+|milter:/.*"),
]
Secret = Annotated[Path, PlainValidator(files.secret), _told, _text_like("/.*")]
Target = Annotated[
    Endpoint,
    PlainValidator(places.endpoint),
    _told,
    _text_like(r"(smtp|lmtp)://(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):[0-9]+|(lmtp|maildir):/.*"),
]
Where = Annotated[Position, PlainValidator(_one_of(Position)), _told, _any_of(*Position)]
Secrecy = Annotated[Tls, PlainValidator(_one_of(Tls)), _told, _any_of(*Tls)]
Deed = Annotated[Action, PlainValidator(_one_of(Action)), _told, _any_of(*Action)]
Trouble = Annotated[OnError, PlainValidator(_one_of(OnError)), _told, _any_of(*OnError)]
Odd = Annotated[
    OddBytes | None, PlainValidator(_one_of(OddBytes, AUTO)), PlainSerializer(lambda value: str(value or AUTO)), _any_of(AUTO, *OddBytes)
]
OneWrongIn = Annotated[int, PlainValidator(_one_wrong_in), PlainSerializer(_one_wrong_in_text), _text_like(f"{FIXED}|{_ONE_IN.pattern}")]
Label = Annotated[str, PlainValidator(_matching(_VERDICT, "the name of a class, spam or unsure")), _text_like(_LABEL.pattern)]
Mailbox = Annotated[
    str, PlainValidator(_matching(_MAILBOX, "an address such as held@example.org", empty=True)), _text_like(f"({_MAILBOX.pattern})?")
]
HostName = Annotated[str, PlainValidator(_matching(places.NAME, "a host name", empty=True)), _text_like(f"({places.NAME.pattern})?")]
UserName = Annotated[str, PlainValidator(_matching(_USER, "the name of a user", empty=True)), _text_like(f"({_USER.pattern})?")]
MailUser = Annotated[str, PlainValidator(_matching(_MAIL_USER, "the name of a user of mail", empty=True)), _text_like(r"\S*")]
MaildirPattern = Annotated[str, PlainValidator(files.maildir), _text_like(rf"/(?!.*{files.VARIABLE.pattern}).*")]
Role = Annotated[str, PlainValidator(_role), _text_like(_LABEL.pattern)]
Keyword = Annotated[str, PlainValidator(_matching(_KEYWORD, "a keyword of IMAP such as $Junk")), _text_like(_KEYWORD.pattern)]
SocketPath = Annotated[Path, PlainValidator(files.socket), _told, _text_like("/.*")]
Mode = Annotated[
    int,
    PlainValidator(files.mode),
    PlainSerializer(lambda value: f"{value:04o}"),
    WithJsonSchema({"type": ["integer", "string"], "pattern": f"^({files.MODE.pattern})$", "minimum": 0, "maximum": 777}),
]
Class = Annotated[str, PlainValidator(_class), _text_like(_LABEL.pattern)]
Account = Annotated[str, PlainValidator(_matching(_USER, "the name of a user")), _text_like(_USER.pattern)]
Senders = Annotated[
    str,
    PlainValidator(_matching(_SENDER, "an address such as anna@example.org, or *@example.org for all of a domain")),
    _text_like(_SENDER.pattern),
]
Alias = Annotated[
    str,
    PlainValidator(_matching(_ALIAS, "an address, *@example.org for all of a domain, or what stands before the @")),
    _text_like(_ALIAS.pattern),
]
TeachingAddress = Annotated[str, PlainValidator(_matching(_MAILBOX, "an address such as spam@example.org")), _text_like(_MAILBOX.pattern)]
LessonOf = Annotated[TeachingUser, PlainValidator(_one_of(TeachingUser)), _told, _any_of(*TeachingUser)]
FieldName = Annotated[
    str, PlainValidator(_matching(_FIELD, "the name of a header field, * at its end for any")), _text_like(_FIELD.pattern)
]
Prefix = Annotated[
    str, PlainValidator(_matching(_PREFIX, "at most 60 characters of ASCII", empty=True)), _text_like(f"({_PREFIX.pattern})?")
]
