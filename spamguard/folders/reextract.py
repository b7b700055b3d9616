"""After an upgrade that reads mail otherwise: messages that were taught before and still lie in
watched folders are read anew, once.

Goes through the log of votes by and by, when nothing else is to be done, and notes in the ledger
how far it has come. Must never teach anything that is not in force (`renewal`), and never take more
than some tenths of a second at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from math import inf

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.folders.lessons import STEP_SECONDS
from spamguard.folders.mailboxes import Folder, Mailbox, MessageFile
from spamguard.folders.scan import FolderScanner
from spamguard.folders.sightings import Sightings
from spamguard.learning.reextract import reextract_votes
from spamguard.records import EXTRACTOR
from spamguard.storage import batches

_log = logging.getLogger("spamguard.folders")


_PROGRESS_KEY = f"renewed.{EXTRACTOR}"
_EVENT_BATCH_SIZE = 1000  # that are looked through at once
_LOOKUP_BATCH_SIZE = (
    256  # messages; as many of their folders as there is time for are listed for them
)
_VOTE_BATCH_SIZE = 32  # messages
_MAX_COPIES = 4  # where one message is looked for


class Reextractor:
    """Of one watcher. due: when the next step is to be taken, on the clock of `time.monotonic`."""

    def __init__(self, spam_filter: Filter, sightings: Sightings, scanner: FolderScanner) -> None:
        self._filter = spam_filter
        self._sightings = sightings
        self._scanner = scanner
        self._done = int(
            spam_filter.ledger.get_meta(_PROGRESS_KEY) or 0
        )  # event up to which everything was looked at
        self._read_up_to, self._end = self._done, spam_filter.ledger.last_seq()
        self._waiting: list[bytes] = []  # messages of the events behind `_done`, up to `_looked`
        self._renewed = 0
        self.due = 0.0 if self._done < self._end else inf

    def step(self, boxes: Collection[Mailbox]) -> int:
        """How many votes were cast anew. SpamguardError: what was not is found again by the next
        step.
        """
        began = time.monotonic()
        while not self._waiting and self._read_up_to < self._end:
            self._done, self._read_up_to = (
                self._read_up_to,
                min(self._read_up_to + _EVENT_BATCH_SIZE, self._end),
            )
            self._waiting = self._filter.ledger.users.outdated_digests(
                EXTRACTOR, self._done, self._read_up_to
            )
            if time.monotonic() > began + STEP_SECONDS:
                break
        renewed = (
            self._reextract({box.path: box for box in boxes}, began + STEP_SECONDS)
            if self._waiting
            else 0
        )
        self._renewed += renewed
        if not self._waiting and (renewed or self._read_up_to == self._end):
            self._save_progress(self._read_up_to)
        now = time.monotonic()
        self.due = (
            inf if self._done == self._end else 2 * now - began
        )  # as long a pause as that took
        return renewed

    def _save_progress(self, event: int) -> None:
        """So far it is done; a crash before this finds the same votes again, renewed."""
        self._filter.ledger.set_meta(_PROGRESS_KEY, str(event))
        self._done = event
        if event == self._end and self._renewed:
            told = "%d votes by an older version were read anew from the mail in watched folders; `spamguard status` tells what is left"
            _log.info(told, self._renewed)

    def _reextract(self, boxes: Mapping[str, Mailbox], until: float) -> int:
        """Some of those that wait, as many as there is time for. boxes: by path."""
        some = self._waiting[:_LOOKUP_BATCH_SIZE]
        seen: set[bytes] = set()
        renewed = 0
        for chunk in batches(self._read_examples(some, boxes, seen, until), _VOTE_BATCH_SIZE):
            renewed += len(reextract_votes(self._filter, chunk))
            if time.monotonic() > until:
                break
        self._waiting = [digest for digest in self._waiting if digest not in seen]
        return renewed

    def _read_examples(
        self, digests: list[bytes], boxes: Mapping[str, Mailbox], seen: set[bytes], until: float
    ) -> Iterator[Example]:
        """Those that still lie somewhere and can be read. seen: gets all that were looked at; not
        those for which another folder would have to be listed when time is over.
        """
        places: dict[bytes, list[tuple[Folder, int]]] = {}
        for digest, (path, folder, name) in self._sightings.find_present(digests, _MAX_COPIES):
            if path in boxes:
                places.setdefault(digest, []).append((Folder(boxes[path], folder), name))
        wanted = {name for some in places.values() for _, name in some}
        listed: dict[Folder, dict[int, MessageFile]] = {}
        for digest in digests:
            copies = places.get(digest, [])
            if (
                seen
                and time.monotonic() > until
                and not listed.keys() >= {place for place, _ in copies}
            ):
                continue
            seen.add(digest)
            for place in {place for place, _ in copies} - listed.keys():
                listed[place] = self._scanner.find_files(place, wanted)
            there = (
                (place, listed[place][name]) for place, name in copies if name in listed[place]
            )
            read = (self._scanner.read_example(place, file, digest) for place, file in there)
            yield from islice((example for example in read if example is not None), 1)
