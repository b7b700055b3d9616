"""Messages that are held back, each with its envelope and why: two files named by its id, ID.eml and ID.json.

Must never say that a message is held before it is on the disk, never show half of one, and never forget which recipients have
got it already. Nothing here ever expires: discarding mail is the operator's decision.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.errors import QuarantineError
from spamguard.files import create_private, nameless, sweep_drafts, sync_directory
from spamguard.ids import is_id
from spamguard.relay.whole import hand_on
from spamguard.spool import Content, Spool
from spamguard.wire.values import Client, Envelope, Parameter, Recipient, Reply, Sender

if TYPE_CHECKING:
    from spamguard.relay.contract import NextHop, Transaction

DIRECTORY = "quarantine"
"""Its name in the state directory."""
MOST = 1000  # entries that are listed at once

_log = logging.getLogger("spamguard.quarantine")
_HEADER = 64 << 10
_ABANDONED = 86_400.0  # seconds that a message is without its note, which follows at once or never; versions before this one hold no lock
_MESSAGE, _NOTE, _DRAFT, _DELETED = ".eml", ".json", ".new", ".deleted"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message that is held. reason: label of the verdict, or whatever the policy said. when: seconds since 1970. size: bytes.

    delivered: numbers, from 0, of the envelope's recipients that have got it since. listener: where it came in, which tells where it
    was to go; "" where that was not noted.
    """

    id: str
    envelope: Envelope
    reason: str
    when: float
    size: int
    delivered: frozenset[int] = frozenset()
    listener: str = ""

    @property
    def waiting(self) -> tuple[int, ...]:
        """Numbers of the recipients that have not got it."""
        return tuple(number for number in range(len(self.envelope.recipients)) if number not in self.delivered)

    @property
    def released(self) -> bool:
        """Whether there is nobody left to give it to."""
        return not self.waiting


class Quarantine:
    """The messages held in one directory, which is made when the first one comes. Any number of processes may use it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cleared = False  # of what was stored or deleted by half
        self._swept = False  # of what was written by half, where files need names for that

    def store(self, name: str, content: Content, envelope: Envelope, reason: str, when: float, listener: str = "") -> None:
        """Hold a message: all of it is on the disk afterwards, or OSError, and nothing is. Blocks.

        name: a new one (`ids.new_id`). content: as it would have been handed on, kept byte for byte. when: seconds since 1970.
        listener: its address.
        """
        self._make()
        with self._linked(content.chunks(), self._path(name, _MESSAGE)):
            note = _encoded(Entry(name, envelope, reason, when, content.size, listener=listener))
            with self._linked([note], self._path(name, _NOTE)):  # last: what has no note is not there
                sync_directory(self._directory)

    def entries(self, limit: int = MOST, before: str = "") -> Iterator[Entry]:
        """The newest messages, newest first; those of them older than `before`, an id. A damaged one is a line in the log."""
        return self.of(heapq.nlargest(limit, (name for name in self.ids() if not before or name < before)))

    def of(self, names: Iterable[str]) -> Iterator[Entry]:
        """The messages of these ids that are there, as of `entries`."""
        for name in names:
            try:
                yield self.entry(name)
            except QuarantineError as error:
                if self._path(name, _NOTE).exists():  # else it was deleted meanwhile
                    _log.warning("%s", error)

    def ids(self) -> Iterator[str]:
        """Of all messages, in any order."""
        return self._named(_NOTE)

    def changed(self) -> int:
        """When what `ids` gives last changed, nanoseconds since 1970; 0: nothing has ever been held."""
        try:
            return self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def entry(self, name: str) -> Entry:
        """One message. QuarantineError: there is none of that id, or its note is damaged."""
        note = self._path(name, _NOTE)
        try:
            values = json.loads(note.read_bytes())
            if not self._path(name, _MESSAGE).exists():
                raise _unknown(name)
            return _decoded(name, values)
        except FileNotFoundError:
            raise _unknown(name) from None
        except (ValueError, TypeError, KeyError) as error:
            raise QuarantineError(
                f"{note}: is damaged ({error!r}): its message is beside it, delete both once it is taken care of"
            ) from error

    def file(self, name: str) -> Path:
        """Where the message lies. QuarantineError: it has no such name."""
        return self._path(name, _MESSAGE)

    def open(self, name: str) -> Content:
        """The message, to be read as it was stored; its `spool` is the caller's to close. QuarantineError."""
        self.entry(name)
        return self._open(name)

    def header(self, name: str) -> bytes:
        """Its header section, as far as the first 64 KiB go. QuarantineError."""
        with closing(self.open(name).spool) as spool:
            return spool.head(_HEADER).partition(b"\r\n\r\n")[0]

    def delete(self, name: str) -> None:
        """Throw a message away, for good. QuarantineError: there is none, or somebody is at it at this moment."""
        with self._alone(name):
            self._path(name, _NOTE).rename(self._path(name, _DELETED))  # without its note it is gone
            left = set() if self._cleared else self._left()
            for one in left | {name}:
                for ending in (_MESSAGE, _DRAFT, _DELETED):
                    self._path(one, ending).unlink(missing_ok=True)
            self._cleared = True
            sync_directory(self._directory)

    async def release(self, name: str, next_hop: NextHop) -> Sequence[tuple[Recipient, Reply]]:
        """Hand a message on to all recipients that have not got it yet; each with the next hop's reply. Again: nothing, `()`.

        Who got it is noted, durably, after the next hop has said so. When this process dies in between, the next release
        hands the message on once more: at least once, never not at all. Both copies bear the same id in X-Spamguard.
        QuarantineError: there is no such message, or somebody is at it at this moment.
        """
        with self._alone(name) as entry:
            if entry.released:
                return ()
            transaction = next_hop.transaction(entry.envelope.client)
            content = self._open(name)
            try:
                replies = await _handed_on(transaction, entry, content)
            finally:
                content.spool.close()
                await transaction.end()
            self._note(entry, [number for number, reply in replies.items() if reply.positive])
            return [(entry.envelope.recipients[number], reply) for number, reply in replies.items()]

    # Files

    def _path(self, name: str, ending: str) -> Path:
        if not is_id(name):
            raise QuarantineError(f"{name!r} is no id: it has 16 characters of 0-9 and a-v")
        return self._directory / (name + ending)

    def _named(self, ending: str) -> Iterator[str]:
        with suppress(FileNotFoundError), os.scandir(self._directory) as found:
            for one in found:  # a Path for each of many would be slow
                if one.name.endswith(ending) and is_id(name := one.name.removesuffix(ending)):
                    yield name

    def _left(self) -> set[str]:
        """What others did not live to finish: deleting, and storing, which has then not said that it holds the message."""
        unlisted = set(self._named(_MESSAGE)) - set(self.ids())
        return {name for name in unlisted if self._abandoned(name)} | set(self._named(_DELETED))

    def _abandoned(self, name: str) -> bool:
        """Whether a message got no note and gets none; what cannot be looked at stays. Looked at by name: what a release renames meanwhile
        may be missing in a list."""
        with suppress(OSError), self._path(name, _MESSAGE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody is storing it, whatever the clock says
            if time.time() - os.fstat(file.fileno()).st_ctime < _ABANDONED:
                return False
            try:
                self._path(name, _NOTE).stat()  # `exists` takes trouble with the disk for a no, from Python 3.14 on
            except FileNotFoundError:
                return True
        return False

    def _make(self) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self._directory.parent)
        if not self._swept:
            sweep_drafts(self._directory)
            self._swept = True

    def _open(self, name: str) -> Content:
        return Content(b"", Spool.reading(self._path(name, _MESSAGE)), 0)

    @contextmanager
    def _linked(self, chunks: Iterable[bytes], path: Path) -> Iterator[None]:
        """A new file, whole and on the disk before it has its name; it loses that again when what follows fails. Locked until then."""
        with nameless(path) as (file, named):
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX)
            named()
            try:
                yield
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    @contextmanager
    def _alone(self, name: str) -> Iterator[Entry]:
        """The entry, while no other process stores, releases or deletes it."""
        self.entry(name)
        try:
            opened = self._path(name, _MESSAGE).open("rb")
        except FileNotFoundError:
            raise _unknown(name) from None
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise QuarantineError(f"{name} is being stored, released or deleted at this moment: look at it again later") from None
            yield self.entry(name)

    def _note(self, entry: Entry, numbers: Iterable[int]) -> None:
        """More recipients have got it. The draft has one name for all, since only one process at a time gets here."""
        draft = self._path(entry.id, _DRAFT)
        draft.unlink(missing_ok=True)  # left behind by one that was killed
        with create_private(draft) as file:
            file.write(_encoded(replace(entry, delivered=entry.delivered | frozenset(numbers))))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path(entry.id, _NOTE))
        sync_directory(self._directory)


async def _handed_on(transaction: Transaction, entry: Entry, content: Content) -> dict[int, Reply]:
    """The reply for each recipient that is waiting, by its number."""
    sender = entry.envelope.sender
    size_told = tuple(one for one in sender.parameters if one.keyword != "SIZE")  # it was that of the message as it came in
    recipients = [entry.envelope.recipients[number] for number in entry.waiting]
    replies = await hand_on(transaction, replace(sender, parameters=size_told), recipients, content)
    return dict(zip(entry.waiting, replies, strict=True))


def _unknown(name: str) -> QuarantineError:
    return QuarantineError(f"{name}: no such message in the quarantine; `spamguard quarantine list` shows what there is")


# ---- notes


def _encoded(entry: Entry) -> bytes:
    values = asdict(entry) | {"delivered": sorted(entry.delivered)}
    return json.dumps(values, indent=1).encode("ascii") + b"\n"


def _decoded(name: str, values: dict[str, Any]) -> Entry:
    told = values["envelope"]
    recipients = tuple(Recipient(one["address"], _parameters(one)) for one in told["recipients"])
    envelope = Envelope(Sender(told["sender"]["address"], _parameters(told["sender"])), recipients, Client(**told["client"]))
    delivered, listener = frozenset(values["delivered"]), str(values.get("listener", ""))
    return Entry(name, envelope, values["reason"], float(values["when"]), int(values["size"]), delivered, listener)


def _parameters(values: dict[str, Any]) -> tuple[Parameter, ...]:
    return tuple(Parameter(*one) for one in values["parameters"])
