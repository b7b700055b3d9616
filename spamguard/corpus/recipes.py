"""What is known of each public corpus. Data only.

A checksum stands here only if its publisher tells it or we have the archive; for all others `fetch` prints what it got, and --sha256
pins it the next time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import Pattern


@dataclass(frozen=True, slots=True)
class Archive:
    """One file to be fetched: its address, and its SHA-256 in hexadecimal if that is known."""

    url: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """Labels in a file of the archive: lines "label path". member: that file; base: what its paths are relative to, seen from it."""

    member: Pattern[str]
    base: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A corpus. labels: by the path of a member, the first that fits; or index. page: of one that must be fetched by hand.

    dated: finds the day of a message in its path, where messages have no header. licence: what one should know before using it.
    """

    name: str
    about: str
    licence: str
    archives: tuple[Archive, ...] = ()
    labels: tuple[tuple[Pattern[str], str], ...] = ()
    index: Index | None = None
    page: str = ""
    dated: Pattern[str] | None = None


_ASSASSIN = "https://spamassassin.apache.org/old/publiccorpus/20030228_"
_AUEB = "http://www.aueb.gr/users/ion/data/"
_TREC = "https://plg.uwaterloo.ca/~gvcormac/"
_TREC_INDEX = Index(re.compile(r".*full/index"))
_TREC_LICENCE = "for research, after agreeing to its terms on its page; may not be passed on"


def _trec(name: str, about: str, page: str) -> Recipe:
    return Recipe(name, about, _TREC_LICENCE, index=_TREC_INDEX, page=_TREC + page)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "spamassassin",
            "6,047 messages of 2001 and 2002 with all headers, one man's mail and some mailing lists",
            "the senders' copyright; given for testing filters; never send these messages through a live system",
            tuple(Archive(f"{_ASSASSIN}{part}.tar.bz2") for part in ("easy_ham", "easy_ham_2", "hard_ham", "spam", "spam_2")),
            ((re.compile(r"spam(?:_2)?/\d+\.[^/]+"), "spam"), (re.compile(r"(?:easy_ham|easy_ham_2|hard_ham)/\d+\.[^/]+"), "ham")),
        ),
        Recipe(
            "enron-spam",
            "33,716 messages of 1999 to 2005: the mail of six employees of Enron, spam from elsewhere; subjects and texts only",
            "the senders' copyright; published with Metsis, Androutsopoulos and Paliouras, CEAS 2006",
            tuple(Archive(f"{_AUEB}enron-spam/preprocessed/enron{number}.tar.gz") for number in range(1, 7)),
            ((re.compile(r"enron\d/spam/[^/]+"), "spam"), (re.compile(r"enron\d/ham/[^/]+"), "ham")),
            dated=re.compile(r"/\d+\.(\d{4}-\d\d-\d\d)\."),
        ),
        Recipe(
            "ling-spam",
            "2,893 messages: the Linguist list, and spam; subjects and texts only",
            "the senders' copyright; published with Androutsopoulos and others, 2000",
            (Archive(f"{_AUEB}lingspam_public.tar.gz"),),
            ((re.compile(r".*/bare/part\d+/spmsg[^/]*"), "spam"), (re.compile(r".*/bare/part\d+/[^/]+\.txt"), "ham")),
        ),
        Recipe(
            "csdmc2010",
            "4,327 labelled messages of the data mining competition at ICONIP 2010, with headers",
            "the senders' copyright; given for the competition",
            index=Index(re.compile(r".*SPAMTrain\.label"), "TRAINING"),
            page="http://csmining.org/index.php/spam-email-datasets-.html",
        ),
        _trec("trec05p", "92,189 messages of 2001 to 2005, mostly of Enron", "treccorpus/"),
        _trec("trec06p", "37,822 messages, English", "treccorpus06/"),
        _trec("trec06c", "64,620 messages, Chinese", "treccorpus06/"),
        _trec("trec07p", "75,419 messages of 2007, one server", "treccorpus07/"),
    )
}
