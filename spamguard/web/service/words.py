"""How a word counts, as all the tokens that the extractor makes of it wherever it may stand in a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from spamguard.engine import Filter
from spamguard.errors import UsageError
from spamguard.history.row import readable
from spamguard.mail.fields import joined
from spamguard.mail.traits import NUMBERS, TRAITS
from spamguard.prepare import Preparer
from spamguard.records import Explanation, Features
from spamguard.web.service.values import Counted

_LONGEST = 64  # characters
_MOST = 100  # tokens
_NO_TRAITS, _NO_NUMBERS = np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16)

# A message that has the word in every place that is read: what the extractor calls its tokens there is found, not known here.
_EVERYWHERE = """\
From: {0} <{0}@{0}>
To: {0} <{0}@{0}>
Cc: {0} <{0}@{0}>
Reply-To: {0} <{0}@{0}>
Sender: {0} <{0}@{0}>
Subject: {0}
Received: from {0} by {0}
Message-ID: <{0}@{0}>
List-Id: {0} <{0}>
Organization: {0}
User-Agent: {0}
X-Mailer: {0}
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="="

--=
Content-Type: text/plain; charset=utf-8

{0}

http://{0}/{0}

--=
Content-Type: text/html; charset=utf-8

<html><body><p>{0}</p><a href="http://{0}/{0}">{0}</a><{0} {0}="{0}"><img alt="{0}" src="{0}">
<span style="display:none">{0}</span></body></html>

--=
Content-Type: application/octet-stream; name="{0}"
Content-Disposition: attachment; filename="{0}"

--=--
"""


FEWEST = 5  # lessons that must have a word before who is no operator is told in how many it is: they may be other people's mail


def counted(spam_filter: Filter, word: str, fewest: int = 1) -> Sequence[Counted]:
    """All tokens of a word, or of two neighbours, that so many lessons have; most counted first. UsageError: it is no word."""
    wanted = " ".join(word.split())
    if not wanted or wanted != readable(wanted, _LONGEST):
        raise UsageError(f"a word has 1 to {_LONGEST} letters")
    found = [_one(spam_filter, token, text) for token, text in _tokens(Preparer(spam_filter.key), wanted).items()]
    return sorted((one for one in found if _lessons(one.messages) >= fewest), key=lambda one: (-_lessons(one.messages), one.text))


def without_few(why: Explanation) -> Explanation:
    """An explanation as who is no operator is told it: no counts of words that so few lessons have. What these add is left, as what a
    message of one word is called tells that too."""
    return replace(why, clues=[clue if _lessons(clue.counts) >= FEWEST else replace(clue, counts={}) for clue in why.clues])


def _lessons(counts: Mapping[str, int]) -> int:
    """In how many a word is, whatever their class."""
    return sum(counts.values())


def _tokens(preparer: Preparer, word: str) -> dict[int, str]:
    """By hash, what explanations call it."""
    extractor = preparer.extractor
    read = {text for text in extractor.texts(f"\n{word}\n".encode()).values() if ":" not in text}  # what becomes of it in a text
    neighbours = {text for text in read if " " in text}
    wanted = {*(neighbours or read), joined(word.lower().encode()).decode()}
    found = extractor.texts(_EVERYWHERE.format(word).encode())
    return dict(islice(((token, text) for token, text in found.items() if _last(text) in wanted), _MOST))


def _last(text: str) -> str:
    """A token's text without the name of its section."""
    return text.rpartition(":")[2]


def _one(spam_filter: Filter, token: int, text: str) -> Counted:
    """A message that is nothing but this token tells what it adds."""
    alone = Features(np.array([token], np.uint32), _NO_TRAITS, _NO_NUMBERS)
    (clue,) = spam_filter.explain_features(alone, {token: text}).clues
    return Counted(text, dict(clue.counts), clue.part)
