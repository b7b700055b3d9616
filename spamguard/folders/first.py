"""What people filed before anybody watched: lessons from where the mail of a mailbox lies, asked for by its owner. Writes nothing.

A message in a folder of a class is a lesson for it. Two exceptions: in INBOX only what was read and not marked as deleted, since what
nobody has looked at says nothing; and never what we filed ourselves, as our signature tells. A message that lies in several classes is
said to be of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from spamguard.folders import names
from spamguard.folders.contract import File, Mailbox, Mailboxes, Place, files
from spamguard.folders.rules import RoleOf
from spamguard.folders.scan import Message, Scanner, told
from spamguard.folders.values import Kind

_READ, _DELETED = "S", "T"

_log = logging.getLogger("spamguard.folders")


class Filed(NamedTuple):
    """A message where somebody has put it. label: the class of that folder."""

    place: Place
    file: File
    label: str


def filed(mailboxes: Mailboxes, mailbox: Mailbox, role: RoleOf) -> list[Filed]:
    """All messages that may teach, the folders of unwanted mail and other classes before those of ham.

    A folder that goes meanwhile, or all of the mailbox, has none, nor has one that cannot be looked at, which is logged.
    """
    found: list[Filed] = []
    with suppress(FileNotFoundError):
        for place in mailboxes.folders(mailbox):
            here = role(place.directory)
            if here.kind is Kind.CLASS:
                found += _filed_in(mailboxes, place, here.label)
    return sorted(found, key=lambda one: (one.label == "ham", one.place.directory, one.file.name))


def _filed_in(mailboxes: Mailboxes, place: Place, label: str) -> list[Filed]:
    try:
        return [Filed(place, file, label) for file in files(mailboxes.names(place)) if _counts(place, file)]
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.warning("%s: cannot be looked at (%s): it teaches nothing", told(place), error.strerror)
        return []


def _counts(place: Place, file: File) -> bool:
    name = names.message(file.name)
    if name is None or names.parts(place.directory) != names.INBOX:
        return name is not None
    return _READ in name.flags and _DELETED not in name.flags


def first_lessons(scanner: Scanner, found: Collection[Filed], unwanted: Collection[str]) -> Iterator[tuple[Filed, Message | None]]:
    """Each with its message, in the same order; None: it teaches nothing, or cannot be read."""
    said: dict[bytes, str] = {}
    for one in found:
        message = scanner.read_signed(one.place, one.file)
        if message is None:
            yield one, None
            continue
        first = said.setdefault(message.digest, one.label)
        yield one, None if first != one.label or message.is_our_own(one.label, unwanted) else message
