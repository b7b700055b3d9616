"""The quarantine as a person may see it: its pages, release and deletion.

Nobody may be shown a recipient that is not theirs, when mail of others came, or unprintable text.
"""

from __future__ import annotations

import logging
import subprocess
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from math import inf
from pathlib import Path

from spamguard.config.options import Settings
from spamguard.delivery.quarantine import DIRECTORY, Quarantine, QuarantineEntry
from spamguard.delivery.smtp import create_next_hop
from spamguard.errors import BusyError, NotAllowedError, NotThereError, QuarantineError, UsageError
from spamguard.log import hostname, quote_value
from spamguard.process import start_process
from spamguard.proxy.history import (
    decode_author,
    decode_subject,
    fold_text,
    printable,
    readable,
)
from spamguard.web import models
from spamguard.web.auth import Person, require_operator
from spamguard.web.history import Reader, Search, find_page
from spamguard.web.models import HeldMessage

_log = logging.getLogger("spamguard.web")

MAX_READS = 500  # notes that one search reads, in about 20 ms
_MAX_TEXT = 1000  # characters
_PREVIEW_SECONDS = 5.0  # for the process that reads a message


def list_held(reader: Reader, person: Person, search: Search) -> models.QuarantinePage:
    """Return a page of the held messages that a search finds; label and taught do not count."""
    is_theirs = cache(lambda address: reader.may_see(person, [address]))

    def look(before: str, limit: int) -> tuple[list[HeldMessage], str]:
        """Look at the newest ids with a visible recipient, and read `MAX_READS` notes at most."""
        ids = sorted(reader.quarantine.ids())
        known = reader.held_recipients
        if len(known) > 2 * len(ids) + MAX_READS:  # most are gone
            known.clear()
        visible: list[str] = []
        reads, searched_to = 0, ""
        for at in range(bisect_left(ids, before) - 1, -1, -1):
            if len(visible) == limit or reads == MAX_READS:
                searched_to = ids[at + 1]
                break
            recipients = known.get(ids[at])
            if recipients is None:
                reads += 1
                recipients = []  # if it is damaged, or gone meanwhile
                for entry in reader.quarantine.read_entries([ids[at]]):
                    recipients = known[ids[at]] = _recipient_addresses(entry)
            if any(map(is_theirs, recipients)):
                visible.append(ids[at])
        probabilities = reader.history.find_probabilities(visible)
        held = [
            _held_message(reader, person, entry, probabilities)
            for entry in reader.quarantine.read_entries(visible)
        ]
        return [message for message in held if _matches(message, search)], searched_to

    return models.QuarantinePage(*find_page(look, search.before, search.limit, search.seconds))


def get_held(reader: Reader, person: Person, verdict_id: str) -> models.HeldMessageDetails:
    entry = find_entry(reader, person, verdict_id)
    # Only CR LF ends a line here, whatever else ends one in Unicode.
    lines = _header(reader, entry).decode("utf-8", "replace").split("\r\n")
    text = "\n".join(readable(line.replace("\t", " "), _MAX_TEXT) for line in lines)
    held = _held_message(reader, person, entry, reader.history.find_probabilities([verdict_id]))
    return models.HeldMessageDetails(**asdict(held), header=text)


def find_entry(reader: Reader, person: Person, verdict_id: str) -> QuarantineEntry:
    """Return the note of a message. NotThereError: there is none, or it is not theirs."""
    with suppress(QuarantineError):
        entry = reader.quarantine.entry(verdict_id)
        if reader.may_see(person, _recipient_addresses(entry)):
            return entry
    raise NotThereError("no message with that verdict id is held here, or it is not yours")


def find_releasable(reader: Reader, person: Person, verdict_id: str) -> QuarantineEntry:
    """As `find_entry`. NotAllowedError: other people wait for the message too."""
    entry = find_entry(reader, person, verdict_id)
    waiting = _waiting_addresses(entry)
    if len(reader.visible_addresses(person, waiting)) < len(waiting):
        raise NotAllowedError(
            "other people wait for this message too: ask an operator to release it"
        )
    return entry


async def release(
    settings: Settings, person: Person, entry: QuarantineEntry
) -> tuple[QuarantineEntry, models.ReleaseResult]:
    """Deliver a message to the recipients that lack it, and return its new note.

    UsageError: the next hop is unknown.
    """
    hops = {str(listener.listen): listener.next_hop for listener in settings.listeners}
    if entry.listener not in hops and len(set(map(str, hops.values()))) != 1:
        raise UsageError(
            f"the next hop of {entry.id} is unknown: "
            "name it with `spamguard quarantine release --next-hop`"
        )
    hop = create_next_hop(hops.get(entry.listener) or next(iter(hops.values())), hostname())
    held = Quarantine(settings.state / DIRECTORY)
    try:
        with _as_busy_error(entry):
            replies = await held.release(entry.id, hop)
            now = held.entry(entry.id)
    finally:
        await hop.close()
    by, waiting = quote_value(person.name), len(now.waiting)
    text = "quarantine id=%s by=%s: released to %d, %d wait"
    _log.info(text, entry.id, by, len(replies), waiting)
    recipients = []
    for recipient, reply in replies:
        lines = b" ".join(reply.lines).decode("utf-8", "replace")
        reply_text = printable(f"{reply.code} {lines}", _MAX_TEXT)
        address = printable(recipient.address, _MAX_TEXT)
        recipients.append(models.RecipientReply(address, reply_text))
    return now, models.ReleaseResult(entry.id, recipients, now.released, taught=False)


def delete(reader: Reader, person: Person, verdict_id: str) -> None:
    require_operator(person)
    entry = find_entry(reader, person, verdict_id)
    with _as_busy_error(entry):
        reader.quarantine.delete(entry.id)
    _log.info("quarantine id=%s by=%s: deleted", verdict_id, quote_value(person.name))


def preview(file: Path) -> str:
    """Return the text of a message, or "" if it has none, or none within the time."""
    words = ["-m", "spamguard.web.preview", str(file)]
    try:
        with start_process(words, stdout=subprocess.PIPE) as child:
            try:
                return child.communicate(timeout=_PREVIEW_SECONDS)[0].decode("utf-8", "replace")
            finally:
                child.kill()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _held_message(
    reader: Reader, person: Person, entry: QuarantineEntry, probabilities: Mapping[str, float]
) -> HeldMessage:
    header = _header(reader, entry)

    def visible(addresses: Sequence[str]) -> tuple[str, ...]:
        addresses = reader.visible_addresses(person, addresses)
        return tuple(printable(address, _MAX_TEXT) for address in addresses)

    return HeldMessage(
        entry.id,
        entry.when,
        printable(entry.envelope.sender.address, _MAX_TEXT),
        readable(decode_author(header), _MAX_TEXT),
        visible(_recipient_addresses(entry)),
        visible(_waiting_addresses(entry)),
        readable(decode_subject(header), _MAX_TEXT),
        entry.size,
        printable(entry.reason, _MAX_TEXT),
        entry.released,
        probabilities.get(entry.id),
    )


def _header(reader: Reader, entry: QuarantineEntry) -> bytes:
    try:
        return reader.quarantine.header(entry.id)
    except (QuarantineError, OSError):  # deleted meanwhile
        return b""


def _matches(message: HeldMessage, search: Search) -> bool:
    sender, recipients, subject = (
        fold_text("\n".join(texts))
        for texts in ((message.sender, message.author), message.recipients, (message.subject,))
    )
    return (
        fold_text(search.sender) in sender
        and fold_text(search.recipient) in recipients
        and fold_text(search.subject) in subject
        and all(fold_text(word) in f"{sender}\n{recipients}\n{subject}" for word in search.words)
        and search.since <= message.time < (search.until or inf)
    )


def _recipient_addresses(entry: QuarantineEntry) -> list[str]:
    return [recipient.address for recipient in entry.envelope.recipients]


def _waiting_addresses(entry: QuarantineEntry) -> list[str]:
    recipients = _recipient_addresses(entry)
    return [recipients[number] for number in entry.waiting]


@contextmanager
def _as_busy_error(entry: QuarantineEntry) -> Iterator[None]:
    try:
        yield
    except QuarantineError as error:
        raise BusyError(f"{entry.id} is being released now, or is gone: look again") from error
