"""The quarantine, as those may see it whose mail it is. Must never show a recipient who is not theirs, nor unprintable text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from spamguard.errors import BusyError, NotAllowedError, NotThereError, QuarantineError, UsageError
from spamguard.history.row import printable, readable
from spamguard.hostname import hostname
from spamguard.log import word
from spamguard.proxy.journal import author_of, subject_of
from spamguard.quarantine import DIRECTORY, Entry, Quarantine
from spamguard.relay.factory import next_hop
from spamguard.settings import Hop, Settings
from spamguard.spool import Spool
from spamguard.web.service.index import Index
from spamguard.web.service.paging import beginning, page
from spamguard.web.service.scope import Scope, operators_only
from spamguard.web.service.values import Held, HeldBack, Person, Released, Reply, Shown

_TEXT = 1000  # characters of one that is told

_log = logging.getLogger("spamguard.web")


class Holding:
    """What is held back. hops: from listeners to their next hops."""

    def __init__(self, settings: Settings, scope: Scope) -> None:
        self._quarantine = Quarantine(settings.state / DIRECTORY)
        self._hops = {str(listener.endpoint): listener.next_hop for listener in settings.listeners}
        self._scope = scope
        self._index = Index(self._quarantine)

    # These block.

    def list(self, person: Person, before: str, limit: int) -> HeldBack:
        """A page."""

        def theirs(address: str) -> bool:
            return self._scope.may_see(person, [address])

        def look(before: str, limit: int) -> tuple[list[Held], str]:
            names, seen = self._index.newest(before, limit, theirs)
            return [self._held(person, entry, self._head(entry)) for entry in self._quarantine.of(names)], seen

        return HeldBack(*page(look, beginning(before), limit))

    def one(self, person: Person, name: str) -> Shown:
        """A message with its header section."""
        entry = self.entry(person, name)
        head = self._head(entry)
        lines = head.decode("utf-8", "replace").split("\r\n")  # nothing else ends a line here, whatever Unicode says
        header = "\n".join(readable(line.replace("\t", " "), _TEXT) for line in lines)
        return Shown(**asdict(self._held(person, entry, head)), header=header)

    def entry(self, person: Person, name: str) -> Entry:
        """NotThereError: there is none, or it is not theirs."""
        with suppress(QuarantineError):
            entry = self._quarantine.entry(name)
            if self._scope.may_see(person, _recipients(entry)):
                return entry
        raise NotThereError("no message with that id is held here, or it is not yours")

    def waits(self, name: str) -> bool:
        """Whether a message is held that somebody has not got. What cannot be read is left to the list, which says so."""
        with suppress(QuarantineError, OSError):
            return not self._quarantine.entry(name).released
        return False

    def may_release(self, person: Person, entry: Entry) -> None:
        """NotAllowedError if others wait for it too, whose mail it is as well."""
        waiting = _waiting(entry)
        if len(self._scope.theirs(person, waiting)) < len(waiting):
            raise NotAllowedError("others wait for this message too: ask an operator to release it")

    def delete(self, person: Person, name: str) -> None:
        """For good."""
        operators_only(person)
        entry = self.entry(person, name)
        with _told_to_wait(entry):
            self._quarantine.delete(entry.id)
        _log.info("quarantine id=%s by=%s: deleted", name, word(person.name))

    def message(self, entry: Entry) -> Spool:
        """The message, the caller's to close. QuarantineError, OSError."""
        return self._quarantine.open(entry.id).spool

    # This does not.

    async def release(self, person: Person, entry: Entry) -> tuple[Entry, Released]:
        """Hand it on; how it is held then. UsageError: it is not known where to."""
        hop = next_hop(self._hop(entry), hostname())
        try:
            with _told_to_wait(entry):
                replies = await self._quarantine.release(entry.id, hop)
                now = self._quarantine.entry(entry.id)
        finally:
            await hop.close()
        _log.info("quarantine id=%s by=%s: released to %d, %d wait", entry.id, word(person.name), len(replies), len(now.waiting))
        told = [Reply(printable(one.address, _TEXT), printable(f"{reply.code} {_text(reply.lines)}", _TEXT)) for one, reply in replies]
        return now, Released(entry.id, told, now.released, taught=False)

    def _hop(self, entry: Entry) -> Hop:
        if entry.listener in self._hops:
            return self._hops[entry.listener]
        if len(set(map(str, self._hops.values()))) == 1:
            return next(iter(self._hops.values()))
        raise UsageError(f"it is not known where {entry.id} was to go: `spamguard quarantine release --next-hop` takes it there")

    def _held(self, person: Person, entry: Entry, head: bytes) -> Held:
        return Held(
            entry.id,
            entry.when,
            printable(entry.envelope.sender.address, _TEXT),
            readable(author_of(head), _TEXT),
            tuple(printable(one, _TEXT) for one in self._scope.theirs(person, _recipients(entry))),
            tuple(printable(one, _TEXT) for one in self._scope.theirs(person, _waiting(entry))),
            readable(subject_of(head), _TEXT),
            entry.size,
            printable(entry.reason, _TEXT),
            entry.released,
        )

    def _head(self, entry: Entry) -> bytes:
        try:
            return self._quarantine.header(entry.id)
        except (QuarantineError, OSError):  # it was deleted meanwhile
            return b""


def _recipients(entry: Entry) -> list[str]:
    return [one.address for one in entry.envelope.recipients]


def _waiting(entry: Entry) -> list[str]:
    """Those who have not got it."""
    recipients = _recipients(entry)
    return [recipients[number] for number in entry.waiting]


@contextmanager
def _told_to_wait(entry: Entry) -> Iterator[None]:
    """BusyError: somebody else is at this message, or has been."""
    try:
        yield
    except QuarantineError as error:
        raise BusyError(f"{entry.id}: is being released at this moment, or is gone: look again") from error


def _text(lines: Sequence[bytes]) -> str:
    return b" ".join(lines).decode("utf-8", "replace")
