"""Messages that are held back: two files each, ID.eml the message and ID.json its note.

The note has the envelope, the reason, and the recipients that have got the message since. A message
is stored, released or deleted under a lock on ID.eml; a message without note is not listed.

Must never say that a message is held before it is on the disk, never show half of one, and never
forget who has got it already. Nothing here expires unless the operator says so
(`quarantine: {keep}`): discarding mail is the operator's decision.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from msgspec import ValidationError, convert

from spamguard.config.options import FORGED_FIELDS
from spamguard.delivery.next_hop import NextHop, deliver
from spamguard.engine import policy
from spamguard.errors import QuarantineError
from spamguard.keys import id_time, is_id
from spamguard.mail.message import OutgoingMessage
from spamguard.smtp.envelope import Envelope, Recipient, Reply
from spamguard.storage import (
    Spool,
    SpoolView,
    draft_file,
    remove_stale_drafts,
    replace_private,
    sync_directory,
    write_private,
)

_log = logging.getLogger("spamguard.quarantine")

DIRECTORY = "quarantine"
"""Its name in the state directory."""
REFUSED = "refused"
"""The reason of a copy of what was refused: its sender was told."""
MAX_ENTRIES = 1000
"""How many entries are listed at once."""

_MESSAGE, _NOTE = ".eml", ".json"


@dataclass(frozen=True)
class QuarantineEntry:
    """One message that is held."""

    id: str
    envelope: Envelope
    reason: str  # label of the verdict, or of the policy
    when: float  # seconds since 1970
    size: int  # in bytes
    delivered: frozenset[int]  # indices of the recipients that have got it since
    listener: str = ""  # where it came in, which tells where it was to go

    @property
    def waiting(self) -> tuple[int, ...]:
        """Indices of the recipients that have not got it."""
        recipients = self.envelope.recipients
        return tuple(at for at in range(len(recipients)) if at not in self.delivered)

    @property
    def released(self) -> bool:
        """Whether every recipient has got it."""
        return not self.waiting


@dataclass
class Quarantine:
    """The messages in one directory, made when the first one comes; for any number of processes."""

    _directory: Path
    _is_tidy: bool = False

    def store(
        self,
        name: str,
        content: SpoolView,
        envelope: Envelope,
        reason: str,
        when: float,
        listener: str = "",
    ) -> None:
        """Hold a message: all of it is on the disk afterwards, or nothing after an OSError. Blocks.

        The name is a new id (`keys.new_id`). The content is kept byte for byte, as it would have
        been sent.
        """
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self._directory.parent)
        with self._linked_file(content.chunks(), self.file(name)):
            entry = QuarantineEntry(
                name, envelope, reason, when, content.size, frozenset(), listener
            )
            with self._linked_file([encode_note(entry)], self.file(name, _NOTE)):
                sync_directory(self._directory)

    def entries(self, limit: int = MAX_ENTRIES, before: str = "") -> Iterator[QuarantineEntry]:
        """The newest messages, newest first; only those older than `before`, an id.

        A damaged note is a line in the log.
        """
        names = (name for name in self.ids() if not before or name < before)
        return self.read_entries(sorted(names, reverse=True)[:limit])

    def read_entries(self, names: Iterable[str]) -> Iterator[QuarantineEntry]:
        """The messages of these ids that are there. A damaged note is a line in the log."""
        for name in names:
            try:
                yield self.entry(name)
            except QuarantineError as error:
                if self.file(name, _NOTE).exists():  # else it was deleted meanwhile
                    _log.warning("%s", error)

    def ids(self, ending: str = _NOTE) -> Iterator[str]:
        """Ids of all messages, in any order."""
        with suppress(FileNotFoundError), os.scandir(self._directory) as files:
            for file in files:  # a Path for each of many would be slow
                if file.name.endswith(ending) and is_id(name := file.name.removesuffix(ending)):
                    yield name

    def entry(self, name: str) -> QuarantineEntry:
        """Raises QuarantineError if there is none of that id, or its note is damaged."""
        note = self.file(name, _NOTE)
        try:
            values = json.loads(note.read_bytes())
            self.file(name).stat()
            return convert(values | {"id": name}, QuarantineEntry)
        except FileNotFoundError:
            raise _unknown_message(name) from None
        except (ValueError, TypeError, ValidationError) as error:
            remedy = "its message is beside it, delete both once it is taken care of"
            raise QuarantineError(f"{note}: is damaged ({error!r}): {remedy}") from error

    def file(self, name: str, ending: str = _MESSAGE) -> Path:
        """Raises QuarantineError if that is no id."""
        if not is_id(name):
            raise QuarantineError(f"{name!r} is no id: it has 16 characters of 0-9 and a-v")
        return self._directory / (name + ending)

    def open(self, name: str) -> Spool:
        """The message as it was stored; the caller closes it."""
        self.entry(name)
        return Spool.open_file(self.file(name))

    def header(self, name: str) -> bytes:
        """Its header section, within the first 64 KiB."""
        with closing(self.open(name)) as spool:
            return spool.read_start(64 << 10).partition(b"\r\n\r\n")[0]

    def delete(self, name: str) -> None:
        """Delete a message for good.

        Raises QuarantineError if there is none of that id, or another process works with it now.
        """
        with self._locked(name):
            self.entry(name)
            self.file(name, _NOTE).unlink()  # without its note it is gone
            self.file(name).unlink()
            self._tidy_up()
            sync_directory(self._directory)

    def remove_older(self, seconds: float, reason: str = "") -> None:
        """Delete what has come before this time, in seconds since 1970, or of it what is held for
        one reason; each is a line in the log.

        What another process works with stays until the next time.
        """
        for name in sorted(name for name in self.ids() if id_time(name) < seconds):
            try:
                if reason and self.entry(name).reason != reason:
                    continue
                self.delete(name)
                _log.info("quarantine id=%s: removed, as it is too old", name)
            except QuarantineError as error:
                _log.warning("%s", error)

    async def release(self, name: str, next_hop: NextHop) -> Sequence[tuple[Recipient, Reply]]:
        """Deliver a message to all recipients that have not got it yet; the reply for each.

        Its verdict is *ham* now, said by a person.

        A recipient is noted, durably, after the next hop has said yes. When this process dies in
        between, the next release delivers once more. Once all have it, the answer is empty.

        Raises QuarantineError if there is none of that id, or another process works with it now.
        """
        with self._locked(name), closing(self.open(name)) as spool:
            entry = self.entry(name)
            if entry.released:
                return ()
            waiting, recipients = entry.waiting, entry.envelope.recipients
            envelope = replace(entry.envelope, recipients=tuple(recipients[at] for at in waiting))
            # Whatever files mail by our verdict behind us must not hold it once more.
            # No door lets 2 MiB of header section through.
            outgoing = OutgoingMessage(spool, b"", FORGED_FIELDS, 2 << 20)
            content = outgoing.tag(policy.released_fields(name))
            replies = await deliver(next_hop, envelope, content)
            accepted = [
                index for index, reply in zip(waiting, replies, strict=True) if reply.is_positive
            ]
            entry = replace(entry, delivered=entry.delivered.union(accepted))
            replace_private(self.file(name, _NOTE), [encode_note(entry)])
            return list(zip(envelope.recipients, replies, strict=True))

    # ---- files

    def _tidy_up(self) -> None:
        """Remove, once, what processes have left that did not live to store or to delete it."""
        if self._is_tidy:
            return
        remove_stale_drafts(self._directory)
        for name in set(self.ids(_MESSAGE)) - set(self.ids()):
            with suppress(OSError, QuarantineError), self._locked(name):  # else somebody is at it
                try:  # by name: the list may miss a note that a release renames meanwhile
                    self.file(name, _NOTE).stat()
                except FileNotFoundError:
                    self.file(name).unlink()
        self._is_tidy = True

    @contextmanager
    def _linked_file(self, chunks: Iterable[bytes], path: Path) -> Iterator[None]:
        """A new file, whole and on the disk before it has its name, and locked meanwhile.

        It loses the name again when the block fails.
        """
        with draft_file(path) as draft:
            write_private(draft, chunks)
            with draft.open("r+b") as file:  # NFS lets only those lock who may write
                fcntl.flock(file, fcntl.LOCK_EX)
                path.hardlink_to(draft)
                try:
                    yield
                except BaseException:
                    path.unlink(missing_ok=True)
                    raise

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        try:
            message = self.file(name).open("rb")
        except FileNotFoundError:
            raise _unknown_message(name) from None
        with message:
            try:
                fcntl.flock(message, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise QuarantineError(
                    f"{name} is being stored, released or deleted at this moment: "
                    "look at it again later"
                ) from None
            yield


def _unknown_message(name: str) -> QuarantineError:
    return QuarantineError(
        f"{name}: no such message in the quarantine; "
        "`spamguard quarantine list` shows what there is"
    )


def encode_note(entry: QuarantineEntry) -> bytes:
    return json.dumps(asdict(entry), indent=1, default=sorted).encode() + b"\n"
