"""`import` of another filter's word list: what it knew about words, taken in as a standing start. Never counts as mail."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from spamguard.cli import rim
from spamguard.errors import UsageError

if TYPE_CHECKING:
    from spamguard.bayes.prior import WordOdds
    from spamguard.ledger.wordlists import About
    from spamguard.moving_in.formats import Kind

HEAD_BYTES = 4096  # by which a file is recognised


def run(options: argparse.Namespace, head: bytes, path: Path | None, stream: BinaryIO) -> int:
    """Recognise, read, take in, settle; say how much of it is of use. head: its first bytes; path: None for standard input."""
    from spamguard.ledger import wordlists
    from spamguard.moving_in.formats import Kind, recognise

    kind = recognise(options.file, head, path) if options.source is None else Kind(options.source)
    name = options.name or kind.value
    if not wordlists.NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a word list: use up to 64 letters, digits and . @ _ -")
    new = None
    if options.dry_run:
        about, _ = _read(options, kind, path, stream, secrets.token_bytes(32))
    else:
        about, new = _take_in(options, kind, name, path, stream)
    rim.answer(options, _summary(about, name, new), _values(about, name, new))
    return 0


def _take_in(options: argparse.Namespace, kind: Kind, name: str, path: Path | None, stream: BinaryIO) -> tuple[About, bool]:
    from spamguard.moving_in import taking
    from spamguard.policy import missing

    if not rim.has_filter(options):  # what is no word list must leave none behind either
        _read(options, kind, path, stream, secrets.token_bytes(32))
        stream.seek(0)
    with rim.open_filter(options) as spam_filter:
        about, odds = _read(options, kind, path, stream, spam_filter.key)
        new = taking.take_in(spam_filter, name, about, odds)
        known = spam_filter.status()
    if lacking := missing(known.classes, known.unwanted):
        rim.say(f"note: {lacking}")
    return about, new


def _read(options: argparse.Namespace, kind: Kind, path: Path | None, stream: BinaryIO, key: bytes) -> tuple[About, WordOdds]:
    from spamguard.moving_in import formats, taking

    return taking.known_words(rim.with_progress(formats.entries(kind, path, stream), None, " words"), f"{kind.value} ({options.file})", key)


def _summary(about: About, name: str, new: bool | None) -> str:
    unit = "words" if about.source.startswith("popfile") else "messages"
    learnt = f"learnt there from {about.ham:,} {unit} of good mail and {about.spam:,} of spam"
    what = f"{rim.counted(about.used, 'word')} of {about.words:,} from {rim.printable(about.source)}, {learnt}"
    if new is None:
        return f"would import {what}"
    return f"imported {what}, as {name!r}" if new else f"{name!r} had been imported already: {what}"


def _values(about: About, name: str, new: bool | None) -> dict[str, object]:
    counts = {"ham": about.ham, "spam": about.spam, "words": about.words, "used": about.used}
    return {"name": name, "source": about.source, **counts, "new": new, "dry_run": new is None}
