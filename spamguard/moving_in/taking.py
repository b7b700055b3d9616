"""Word counts of another filter, made log-odds and taken in. The counts themselves are not kept: no message of ours stands behind them.

Memory: some 70 bytes for each word of the list while it works (three million words: 330 MB in all, 20 s); what is kept is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from spamguard import secret
from spamguard.batches import batches
from spamguard.bayes.prior import STEPS, WordOdds
from spamguard.engine import Filter
from spamguard.errors import SourceError, UsageError
from spamguard.ledger import wordlists
from spamguard.ledger.wordlists import About, WordList
from spamguard.mail.listed import ListedWords
from spamguard.moving_in.words import Entry, Sizes, Word
from spamguard.records import EXTRACTOR

_CHUNK = 8192  # words hashed together
_PSEUDO_COUNT = 0.5  # of mail, in each class: a word seen once says less than one seen often
_HIGHEST = 127  # of an int8: some 8 nats

Counts = NDArray[np.int64]


def known_words(entries: Iterable[Entry], source: str, key: bytes) -> tuple[About, WordOdds]:
    """What a list knows of words that have a counterpart here, the most telling `wordlists.MOST`. key: the installation's.

    SourceError: it does not say how much mail was taught, knows but one class, or no word.
    """
    sizes = Sizes(0, 0)
    listed = ListedWords(secret.derived(key, b"tokens"))
    parts: list[tuple[NDArray[np.uint32], Counts, Counts]] = []
    words = 0
    for chunk in batches(entries, _CHUNK):
        found = [entry for entry in chunk if isinstance(entry, Word)]
        sizes = next((entry for entry in chunk if isinstance(entry, Sizes)), sizes)
        words += len(found)
        parts += _placed(listed, found)
    if min(sizes) < 1:
        raise SourceError(f"this word list of {source} does not tell of both good mail and spam: it is cut off, or only one was taught")
    if not words:
        raise SourceError(f"no word can be read in this list of {source}: it is cut off, or is of another kind")
    tokens, ham, spam = _summed(parts)
    odds = _odds(tokens, ham, spam, sizes)
    digest = blake2b(b"".join(array.tobytes() for array in (tokens, ham, spam, np.array(sizes))), digest_size=16).hexdigest()
    return About(source, digest, sizes.ham, sizes.spam, words, len(odds.tokens)), odds


def _placed(listed: ListedWords, words: list[Word]) -> Iterator[tuple[NDArray[np.uint32], Counts, Counts]]:
    """Tokens and counts of the words that have a counterpart."""
    ours = [(word.section, word.text, word.ham, word.spam) for word in words if word.section is not None]
    if ours:
        sections, texts, ham, spam = zip(*ours, strict=True)
        tokens, found = listed.tokens(list(zip(sections, texts, strict=True)))
        yield tokens[found], np.array(ham, np.int64)[found], np.array(spam, np.int64)[found]


def _summed(parts: list[tuple[NDArray[np.uint32], Counts, Counts]]) -> tuple[NDArray[np.uint32], Counts, Counts]:
    """Words that are one token here (they differ in case, for example) counted together."""
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64)
    tokens, ham, spam = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
    distinct, where = np.unique(tokens, return_inverse=True)
    sums = np.zeros((2, len(distinct)), np.int64)
    for total, counts in zip(sums, (ham, spam), strict=True):
        np.add.at(total, where, counts)
    return distinct, sums[0], sums[1]


def _odds(tokens: NDArray[np.uint32], ham: Counts, spam: Counts, sizes: Sizes) -> WordOdds:
    smoothing = 2 * _PSEUDO_COUNT / (sizes.ham + sizes.spam)
    good = np.minimum(ham / sizes.ham, 1.0)
    bad = np.minimum(spam / sizes.spam, 1.0)
    ratio = np.log((bad + smoothing) / (good + smoothing))
    steps = np.rint(np.clip(ratio * STEPS, -_HIGHEST, _HIGHEST)).astype(np.int8)
    telling = (bad - good) * ratio  # of Jeffreys' divergence, a word's share
    order = np.lexsort((tokens, -telling))
    chosen = np.sort(order[steps[order] != 0][: wordlists.MOST])
    return WordOdds(tokens[chosen], steps[chosen])


def take_in(spam_filter: Filter, name: str, about: About, odds: WordOdds) -> bool:
    """Keep a list under a name, in force from the settling that follows; whether it is new. UsageError: another one has the name."""
    spam_filter.refuse_without_receipts()
    standing = next((one for one in spam_filter.ledger.word_lists() if one.name == name), None)
    if standing is not None and standing.about.digest != about.digest:
        raise UsageError(f"another word list is called {name!r}: choose a name with --name, or take it back with `undo --import {name}`")
    new = [wordlists.vote(name, about, odds.tokens, odds.log_odds, int(time.time()), EXTRACTOR)]
    changed = standing is None and spam_filter.ledger.append(new)[0]
    spam_filter.settle()  # also when it is not new: whoever brought it may have been interrupted
    return changed


def take_back(spam_filter: Filter, name: str, origin: str, *, dry: bool = False) -> WordList:
    """As if the list had never come; what it was. dry: change nothing. UsageError: there is none of that name."""
    lists = spam_filter.ledger.word_lists()
    standing = next((one for one in lists if one.name == name), None)
    if standing is None:
        there = ", ".join(repr(one.name) for one in lists) or "none"
        raise UsageError(f"no word list is called {name!r}: `spamguard status` lists them ({there})")
    if not dry:
        spam_filter.ledger.append([wordlists.tombstone(standing, origin, int(time.time()))])
        spam_filter.settle()
    return standing
