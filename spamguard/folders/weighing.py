"""Looking for evidence: messages that somebody answered, flagged, read and left, or gave a keyword, taught once as that says.

It is weaker than any word of a person: of a message about which its user has ever said anything, or taken back what was said, it
teaches nothing. Only names of files tell it; a message is read when it is to be taught, and at no other time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spamguard.batches import batches
from spamguard.folders import names
from spamguard.folders.contract import Mailbox, Mailboxes, Place
from spamguard.folders.evidence import Asked, says, signs
from spamguard.folders.lessons import Teacher
from spamguard.folders.once import Matter, Once
from spamguard.folders.scan import Found, Scanner, told
from spamguard.folders.sightings import DONE, Sightings
from spamguard.folders.teaches import EVIDENCE, Into, Sign
from spamguard.folders.values import Copy, Lesson
from spamguard.ledger import SqliteLedger

STEP = 200  # messages asked about, and taught, at once
_NAMELESS = (
    "%s: messages have keywords, but no dovecot-keywords says which: spam_evidence teaches nothing there. Dovecot's CONTROL= (since 2.4 "
    "mail_control_path) keeps that file elsewhere: leave it out, or let Dovecot tell by IMAPSieve"
)


class _Shown(NamedTuple):
    """A message and what it shows."""

    found: Found
    signs: frozenset[Sign]


class Weigher:
    """Weighs the evidence in mailboxes."""

    def __init__(
        self, mailboxes: Mailboxes, ledger: SqliteLedger, sightings: Sightings, scanner: Scanner, teacher: Teacher, once: Once
    ) -> None:
        self._mailboxes = mailboxes
        self._ledger = ledger
        self._sightings = sightings
        self._scanner = scanner
        self._teacher = teacher
        self._once = once
        self._nameless: set[Place] = set()  # with keywords, whose names are not there
        self._told: set[int] = set()  # entries of `watch` of which that was said

    def prepare(self, place: Place, what: Asked) -> None:
        """Before a look: where messages were read long enough ago, all names are to be told."""
        long_ago = time.time() - what.read_after
        if Sign.READ in what.signs and self._sightings.marked_before(place.mailbox.path, place.directory, long_ago):
            self._scanner.look_anew(place)

    def weigh(
        self, mailbox: Mailbox, renamed: Mapping[Place, Sequence[Found]], into: Callable[[Place], Into], what: Asked, *, everything: bool
    ) -> Generator[None, None, None]:
        """Teach what the messages of changed names show, some at a step. everything: they are all that there are.

        What is there when all of a mailbox is looked at for this evidence for the first time teaches nothing.
        LedgerError, SightingsError: what was not taught shows again once `Scanner.forget` was called.
        """
        begun = self._sightings.weighed(mailbox.path) == str(what)
        for place, found in renamed.items():
            for some in batches(list(self._shown(place, found, into(place), what)), STEP):
                marks = dict.fromkeys((one.found.name for one in some), DONE)
                if begun:
                    marks = yield from self._weighed(place, some, into(place), what)
                self._sightings.mark(mailbox.path, place.directory, marks, ())
                yield
        if everything and not begun:
            self._sightings.mark_weighed(mailbox.path, str(what))

    def done(self, mailbox: Mailbox, copies: Iterable[Copy]) -> set[bytes]:
        """Of which messages the evidence teaches nothing any more, by what is remembered of them.

        New copies of them get the same mark (`Sightings.update`): what showed evidence before that was asked for teaches nothing
        wherever it is moved.
        """
        marks = self._sightings.marks
        return {one.digest for one in copies if marks(mailbox.path, one.folder, [one.name]).get(one.name) == DONE} - {b""}

    def _shown(self, place: Place, found: Sequence[Found], into: Into, what: Asked) -> Iterator[_Shown]:
        """Those of which anything may be learnt yet."""
        last = {one.name: one for one in found}  # of a name in `new` and in `cur` the latter
        keywords = self._keywords(place, last.values(), what)
        keys = np.fromiter(last, np.int64, len(last))
        there = keys[np.isin(keys, self._sightings.names(place.mailbox.path, place.directory))].tolist()
        marks = self._sightings.marks(place.mailbox.path, place.directory, there)
        over: set[int] = set()  # marks that are of no more use
        for key in there:
            if marks.get(key) == DONE:
                continue
            shows = frozenset(sign for sign in signs(_flags(last[key]), keywords, what) if (sign, into) in EVIDENCE)
            if Sign.READ not in shows and key in marks:
                over.add(key)
            if shows:
                yield _Shown(last[key], shows)
        self._sightings.mark(place.mailbox.path, place.directory, {}, over)

    def _keywords(self, place: Place, found: Iterable[Found], what: Asked) -> Mapping[str, str]:
        """Names of the keywords that these messages have. Where one is not known yet, all are told again at the next look."""
        letters = {letter for one in found for letter in _flags(one) if letter.islower()} if what.keywords else set()
        if not letters:
            return {}
        try:
            keywords = self._mailboxes.keywords(place)
        except FileNotFoundError:
            return {}
        except OSError as error:
            closed = "%s: keywords cannot be read (%s): they teach nothing"
            self._once.warn(Matter(place, "keywords", passing=True), closed, told(place), error.strerror)
            keywords = {}
        else:
            self._tell_nameless(place, keywords)
        if letters - keywords.keys():
            self._scanner.look_anew(place)
        return keywords

    def _tell_nameless(self, place: Place, keywords: Mapping[str, str]) -> None:
        """Once for each entry of `watch`, when there are no names at the second look either: at the first they may be on their way."""
        if keywords:
            self._nameless.discard(place)
        elif place not in self._nameless:
            self._nameless.add(place)
        elif place.mailbox.watch not in self._told:
            self._told.add(place.mailbox.watch)
            self._once.warn(Matter(place, "names", passing=True), _NAMELESS, told(place))

    def _weighed(self, place: Place, shown: Sequence[_Shown], into: Into, what: Asked) -> Generator[None, None, dict[int, int]]:
        """Teach them; the marks to be made."""
        user, now = place.mailbox.user, int(time.time())
        marks = self._read_since(place, shown, now)
        said = {one.found.name: _says(one, into, marks, now - what.read_after) for one in shown}
        digests = self._sightings.digests(place.mailbox.path, place.directory, [name for name, lesson in said.items() if lesson])
        heard = {digest for digest in digests.values() if self._ledger.vote(digest, user) is not None}
        lessons: dict[bytes, tuple[Lesson, Found]] = {}
        for one in shown:
            telling, digest = said[one.found.name], digests.get(one.found.name, b"")
            if telling and digest and digest not in heard:
                sign, label = telling
                lessons.setdefault(digest, (Lesson(digest, label, place.directory, one.found.name, str(sign), str(sign)), one.found))
        done = heard | (yield from self._teacher.weigh(place.mailbox, list(lessons.values())))
        return marks | {name: DONE for name, digest in digests.items() if digest in done}

    def _read_since(self, place: Place, shown: Sequence[_Shown], now: int) -> dict[int, int]:
        """When those that are read were first seen so; a clock that was wrong makes none wait for longer than it has to."""
        names_read = {one.found.name for one in shown if Sign.READ in one.signs}
        known = self._sightings.marks(place.mailbox.path, place.directory, names_read)
        return {name: min(known.get(name, now), now) for name in names_read}


def _says(one: _Shown, into: Into, read: Mapping[int, int], long_ago: float) -> tuple[Sign, str] | None:
    left = read.get(one.found.name, 0) <= long_ago
    return says(one.signs if left else one.signs - {Sign.READ}, into)


def _flags(found: Found) -> str:
    name = names.message(found.file.name)
    return name.flags if name else ""
