"""The types of the options: each says what it expects, in words, and how its value is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from spamguard.config import files, places, units
from spamguard.config.units import shown, unquoted
from spamguard.settings import Action, Endpoint, OddBytes, OnError, Place, Position, TeachingUser, Tls
from spamguard.teaching.lesson import NO_CLASSES, is_class

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
_BELOW = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,60}){1,9}")  # stands in addresses of pages as it is
_HTTP_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,69}")
_MAIL_USER = re.compile(r"(?! )[ -~\u00a1-\U0010ffff]{1,255}(?<! )")  # blanks within it only
ROLES = ("neutral", "trash", "ignored")  # of folders that teach nothing
FIXED = "fixed"
AUTO = "auto"
_AN_ADDRESS = r"([0-9.]+|\[[0-9A-Fa-f:.]+\])"  # of these and what follows editors are told


def near(word: object, known: list[str]) -> str:
    """`: did you mean 'x'?`, or nothing."""
    found = get_close_matches(str(word).lower(), known, 1, 0.6)
    return f": did you mean {found[0]!r}?" if found else ""


@dataclass(frozen=True, slots=True, eq=False)  # what annotates a type must be hashable
class Option:
    """How the values of an option are written. check: from what the file says to what the settings hold; ValueError, with the whole
    sentence. editors: the JSON Schema of it, as much of it as a pattern can say. written: back to what the file says, if that differs."""

    check: Callable[[object], Any]
    editors: JsonSchemaValue
    written: Callable[[Any], str] | None = None

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(self.written) if self.written else None
        return core_schema.no_info_plain_validator_function(self.check, serialization=serialization)

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        return dict(self.editors)  # whoever asks adds to it


def _text(pattern: str) -> JsonSchemaValue:
    return {"type": "string", "pattern": f"^({pattern})$"}


_A_PATH = _text("/.*")
_MODE: JsonSchemaValue = {"type": ["integer", "string"], "pattern": f"^({files.MODE.pattern})$", "minimum": 0, "maximum": 777}


def _one_of(kind: type[StrEnum], unset: str = "") -> Option:
    """unset: the word for None, if there is one."""
    names = [*([unset] if unset else []), *(one.value for one in kind)]

    def check(given: object) -> StrEnum | None:
        if isinstance(given, str) and given in names:
            return None if given == unset else kind(given)
        raise ValueError(f"expected one of {', '.join(names)}, found {shown(given)}{near(given, names)}")

    return Option(check, {"enum": names}, lambda value: str(value or unset))


def _matching(pattern: re.Pattern[str], expected: str, *, empty: bool = False, editors: str = "") -> Option:
    """Texts. empty: or nothing. editors: their pattern where it is another one."""

    def check(given: object) -> str:
        if isinstance(given, str) and (pattern.fullmatch(given) or (empty and not given)):
            return given
        raise ValueError(f"expected {expected}, found {shown(given)}")

    return Option(check, _text(editors or (f"({pattern.pattern})?" if empty else pattern.pattern)))


def _whole(least: int, most: int) -> Option:
    def check(given: object) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
            return given
        raise ValueError(f"expected a whole number from {least} to {most:,}, found {shown(given)}{unquoted(given)}")

    return Option(check, {"type": "integer", "minimum": least, "maximum": most})


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


def _class(*others: str) -> Option:
    """A class, or one of these words."""
    expected = "a class such as spam or ham" + (f", or one of {', '.join(others)}" if others else "")

    def check(given: object) -> str:
        if isinstance(given, str) and (given in others or (is_class(given) and given != "class")):
            return given
        raise ValueError(f"expected {expected}, found {shown(given)}{near(given, ['spam', 'ham', *others])}")

    return Option(check, _text(_LABEL.pattern))


# ---- the types


Seconds = Annotated[float, Option(units.seconds, _text(units.DURATION), units.duration_text)]
Days = Annotated[int, Option(units.days, _text(units.DURATION), units.days_text)]
Size = Annotated[int, Option(units.size, _text(units.SIZE), units.size_text)]
Count = Annotated[int, _whole(1, 1_000_000)]
Allowance = Annotated[int, _whole(0, 1_000_000)]
Processes = Annotated[int, _whole(0, 1024)]
Flag = Annotated[bool, Option(_flag, {"type": "boolean"})]
Probability = Annotated[float, Option(_probability, {"type": "number", "minimum": 0, "maximum": 1})]
OneWrongIn = Annotated[int, Option(_one_wrong_in, _text(f"{FIXED}|{_ONE_IN.pattern}"), _one_wrong_in_text)]

Where = Annotated[Position, _one_of(Position)]
Secrecy = Annotated[Tls, _one_of(Tls)]
Deed = Annotated[Action, _one_of(Action)]
Trouble = Annotated[OnError, _one_of(OnError)]
Odd = Annotated[OddBytes | None, _one_of(OddBytes, AUTO)]
LessonOf = Annotated[TeachingUser, _one_of(TeachingUser)]

Network = Annotated[str, Option(places.network, _text(r"[0-9A-Fa-f:.]+(/[0-9]+)?"))]
Monitored = Annotated[Place, Option(places.place, _text(places.PLACE.pattern), str)]
Host = Annotated[str, Option(places.host_name, _text(rf"{places.NAME.pattern}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*"))]
HostName = Annotated[str, _matching(places.NAME, "a host name", empty=True)]
Address = Annotated[Endpoint, Option(places.listen, _text(rf"(smtp|lmtp)://{_AN_ADDRESS}:[0-9]+"), str)]
Asked = Annotated[Endpoint, Option(places.scanner, _text(rf"(rspamd|spamd|milter)://{_AN_ADDRESS}:[0-9]+|milter:/.*"), str)]
Target = Annotated[
    Endpoint, Option(places.endpoint, _text(r"(smtp|lmtp)://(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):[0-9]+|(lmtp|maildir):/.*"), str)
]

Directory = Annotated[Path, Option(files.path, _A_PATH, str)]
File = Annotated[Path, Option(files.file, _A_PATH, str)]
Secret = Annotated[Path, Option(files.secret, _A_PATH, str)]
SocketPath = Annotated[Path, Option(files.socket, _A_PATH, str)]
MaildirPattern = Annotated[str, Option(files.maildir, _text(rf"/(?!.*{files.VARIABLE.pattern}).*"))]
Mode = Annotated[int, Option(files.mode, _MODE, lambda value: f"{value:04o}")]

Label = Annotated[str, _matching(_VERDICT, "the name of a class, spam or unsure", editors=_LABEL.pattern)]
Class = Annotated[str, _class()]
Role = Annotated[str, _class(*ROLES)]
UserName = Annotated[str, _matching(_USER, "the name of a user", empty=True)]
Account = Annotated[str, _matching(_USER, "the name of a user")]
MailUser = Annotated[str, _matching(_MAIL_USER, "the name of a user of mail", empty=True, editors=r"(\S(.*\S)?)?")]
Somebody = Annotated[str, _matching(_MAIL_USER, "the name of somebody", editors=r"\S(.*\S)?")]
Mailbox = Annotated[str, _matching(_MAILBOX, "an address such as held@example.org", empty=True)]
TeachingAddress = Annotated[str, _matching(_MAILBOX, "an address such as spam@example.org")]
Senders = Annotated[str, _matching(_SENDER, "an address such as anna@example.org, or *@example.org for all of a domain")]
Alias = Annotated[str, _matching(_ALIAS, "an address, *@example.org for all of a domain, or what stands before the @")]
Keyword = Annotated[str, _matching(_KEYWORD, "a keyword of IMAP such as $Junk")]
HttpField = Annotated[str, _matching(_HTTP_FIELD, "the name of a field such as X-Remote-User", empty=True)]
Below = Annotated[str, _matching(_BELOW, "a path such as /spam, without / at its end", empty=True)]
FieldName = Annotated[str, _matching(_FIELD, "the name of a header field, * at its end for any")]
Prefix = Annotated[str, _matching(_PREFIX, "at most 60 characters of ASCII", empty=True)]
