"""The quarantine as a person may see it: its pages, release and deletion.

Recipients stay in memory, so each note is read once: the recipients of a message never change.

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

from spamguard.config.options import Hop, Settings
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
from spamguard.storage import Spool
from spamguard.web import models
from spamguard.web.auth import Person, require_operator
from spamguard.web.models import HeldMessage
from spamguard.web.queries import Search, find_page
from spamguard.web.workers import ReadConnection, Visibility

_log = logging.getLogger("spamguard.web")

MAX_READS = 500  # notes that one search reads, in about 20 ms
_MAX_TEXT = 1000  # characters
_PREVIEW_SECONDS = 5.0  # for the process that reads a message


class QuarantineQueries:
    """The quarantine as a person may see it. All but `release` blocks."""

    def __init__(self, settings: Settings, visibility: Visibility) -> None:
        self._quarantine = Quarantine(settings.state / DIRECTORY)
        self._hops = {str(listener.listen): listener.next_hop for listener in settings.listeners}
        self._visibility = visibility
        self._recipients: dict[str, Sequence[str]] = {}  # by id, of notes that were read

    def list_page(
        self, reading: ReadConnection, person: Person, search: Search
    ) -> models.QuarantinePage:
        """Return a page of the held messages that a search finds; label and taught do not count."""

        def look(before: str, limit: int) -> tuple[list[HeldMessage], str]:
            ids, searched_to = self._newest(before, limit, person)
            probabilities = reading.history.find_probabilities(ids)
            held = [
                self._held_message(person, entry, self._header(entry), probabilities)
                for entry in self._quarantine.read_entries(ids)
            ]
            return [message for message in held if _matches(message, search)], searched_to

        return models.QuarantinePage(*find_page(look, search.before, search.limit, search.seconds))

    def _newest(self, before: str, limit: int, person: Person) -> tuple[Sequence[str], str]:
        """Return the newest ids before `before` with a visible recipient, newest first.

        The second value is the id down to which it has searched, "" for everything. It stops after
        reading `MAX_READS` notes for the first time.
        """
        ids = sorted(self._quarantine.ids())
        is_theirs = cache(lambda address: self._visibility.may_see(person, [address]))
        if len(self._recipients) > 2 * len(ids) + MAX_READS:  # most are gone
            self._recipients = {}
        visible_ids: list[str] = []
        reads = 0
        for at in range(bisect_left(ids, before) - 1, -1, -1):
            if len(visible_ids) == limit or reads == MAX_READS:
                return visible_ids, ids[at + 1]
            recipients = self._recipients.get(ids[at])
            if recipients is None:
                reads += 1
                recipients = []  # if it is damaged, or gone meanwhile
                for entry in self._quarantine.read_entries([ids[at]]):
                    recipients = self._recipients[ids[at]] = _recipient_addresses(entry)
            if any(map(is_theirs, recipients)):
                visible_ids.append(ids[at])
        return visible_ids, ""

    def get(
        self, reading: ReadConnection, person: Person, verdict_id: str
    ) -> models.HeldMessageDetails:
        """Return a message with its header section."""
        entry = self.entry(person, verdict_id)
        header = self._header(entry)
        probabilities = reading.history.find_probabilities([verdict_id])
        # Only CR LF ends a line here, whatever else ends one in Unicode.
        lines = header.decode("utf-8", "replace").split("\r\n")
        text = "\n".join(readable(line.replace("\t", " "), _MAX_TEXT) for line in lines)
        return models.HeldMessageDetails(
            **asdict(self._held_message(person, entry, header, probabilities)), header=text
        )

    def preview(self, entry: QuarantineEntry) -> str:
        """Return the text of a message, or "" if it has none, or none within the time."""
        words = ["-m", "spamguard.web.preview", str(self._quarantine.file(entry.id))]
        try:
            with start_process(words, stdout=subprocess.PIPE) as child:
                try:
                    return child.communicate(timeout=_PREVIEW_SECONDS)[0].decode("utf-8", "replace")
                finally:
                    child.kill()
        except (OSError, subprocess.TimeoutExpired):
            return ""

    def entry(self, person: Person, verdict_id: str) -> QuarantineEntry:
        """Return the note of a message. NotThereError: there is none, or it is not theirs."""
        with suppress(QuarantineError):
            entry = self._quarantine.entry(verdict_id)
            if self._visibility.may_see(person, _recipient_addresses(entry)):
                return entry
        raise NotThereError("no message with that verdict id is held here, or it is not yours")

    def is_waiting(self, verdict_id: str) -> bool:
        """Whether a message still waits for release. Damaged notes do not."""
        with suppress(QuarantineError, OSError):
            return not self._quarantine.entry(verdict_id).released
        return False

    def check_release(self, person: Person, entry: QuarantineEntry) -> None:
        """Raise NotAllowedError if other people wait for the message too."""
        waiting = _waiting_addresses(entry)
        if len(self._visibility.visible_addresses(person, waiting)) < len(waiting):
            raise NotAllowedError(
                "other people wait for this message too: ask an operator to release it"
            )

    def delete(self, person: Person, verdict_id: str) -> None:
        """Delete a message for good; for operators only."""
        require_operator(person)
        entry = self.entry(person, verdict_id)
        with _as_busy_error(entry):
            self._quarantine.delete(entry.id)
        _log.info("quarantine id=%s by=%s: deleted", verdict_id, quote_value(person.name))

    def open_message(self, entry: QuarantineEntry) -> Spool:
        """Open the message; the caller closes it. QuarantineError, OSError."""
        return self._quarantine.open(entry.id).spool

    async def release(
        self, person: Person, entry: QuarantineEntry
    ) -> tuple[QuarantineEntry, models.ReleaseResult]:
        """Deliver a message to the recipients that lack it, and return its new note.

        UsageError: the next hop is unknown.
        """
        hop = create_next_hop(self._find_next_hop(entry), hostname())
        try:
            with _as_busy_error(entry):
                replies = await self._quarantine.release(entry.id, hop)
                now = self._quarantine.entry(entry.id)
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

    def _find_next_hop(self, entry: QuarantineEntry) -> Hop:
        if entry.listener in self._hops:
            return self._hops[entry.listener]
        if len(set(map(str, self._hops.values()))) == 1:
            return next(iter(self._hops.values()))
        raise UsageError(
            f"the next hop of {entry.id} is unknown: "
            "name it with `spamguard quarantine release --next-hop`"
        )

    def _held_message(
        self,
        person: Person,
        entry: QuarantineEntry,
        header: bytes,
        probabilities: Mapping[str, float],
    ) -> HeldMessage:
        def visible(addresses: Sequence[str]) -> tuple[str, ...]:
            addresses = self._visibility.visible_addresses(person, addresses)
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

    def _header(self, entry: QuarantineEntry) -> bytes:
        try:
            return self._quarantine.header(entry.id)
        except (QuarantineError, OSError):  # deleted meanwhile
            return b""


def _matches(message: HeldMessage, search: Search) -> bool:
    """Whether a search finds a message, by what the person may see of it."""
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
