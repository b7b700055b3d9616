"""More classes than two: how well they are told apart, and what sorting good or bad mail costs the
verdict.

    python tests/bench/bench_classes.py [--spamassassin INDEX] [--lists INDEX] [--only PART]

The same mail is sorted in several ways, and each is judged by the same measures: SpamAssassin's by
what it is (feeds, newsletters, mailing lists, personal mail), by list, or its spam by what it asks
for; the lists' ham by list, with only the header fields that tell of no list. In "ham never taught"
the class "ham" stays empty. Parts: `online` (judge, then teach, every message); `split` (the first
70 % taught, the rest judged) and `few` (10, 20, 50, 100 of each class, as far as there are so many,
drawn from the first 70 %, then the rest judged; means of four draws), both as far as mail is of a
class that was taught, and beside scikit-learn's MultinomialNB and LogisticRegression over hashed
words; `rare` (a class of 20 messages; one that is made after 2,000).
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import keys
from spamguard.engine.filter import Filter
from spamguard.engine.measures import log_loss, roca, sm_at
from spamguard.engine.prepare import Example, ExampleReader

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import streams
from tests.bench.rivals import KEY, text_of

UNWANTED = frozenset({"spam", "swindle"})
SHARE = 0.7
SIZES = (10, 20, 50, 100)
DRAWS = 4
COLUMNS = 1 << 18  # that the words of scikit-learn's estimators are hashed into
LATE, RARE = 2000, 20
HEADER = (
    "| sort | classes | class right % | label right % | unsure % | log-loss | 1-ROCA % | sm % at "
    "hm 0.5 % | hm % | its log-loss |"
)
_FIELD_END = re.compile(rb"\r?\n(?![ \t])")
_NO_LIST = re.compile(
    rb"(from|date|message-id|subject|mime-version|content-.*|user-agent|x-mailer|in-reply-to|references)$"
)
_FOOTER = re.compile(rb"\r?\n_{40,}")
_SWINDLES = (b"credit card", b"nigeria", b"million")


class Mail(NamedTuple):
    """One message: its class, its bytes, and its features for teaching."""

    label: str
    raw: bytes
    ready: Example


class Answer(NamedTuple):
    """The verdict on a message, beside its class: a label, probabilities of classes, log-odds of
    being unwanted.
    """

    gold: str
    label: str
    probabilities: dict[str, float]
    log_odds: float


Sort = Callable[[bytes, str], str]
Judge = Callable[[Sequence[Mail]], list[Answer]]


# ---- sorts


def head_of(raw: bytes) -> list[bytes]:
    """All of its header fields."""
    return _FIELD_END.split(re.split(rb"\r?\n\r?\n", raw, maxsplit=1)[0])


def field(raw: bytes, *names: bytes) -> bytes:
    """The value of the first field with any of these names, in lower case."""
    return next((line.lower() for line in head_of(raw) if line.lower().startswith(names)), b"")


def as_it_is(_raw: bytes, label: str) -> str:
    """Ham and spam."""
    return label


def by_kind(raw: bytes, label: str) -> str:
    """Ham in kinds: mailing lists, feeds, mail with an unsubscribe link, and the rest."""
    if label != "ham":
        return label
    if field(raw, b"list-id:", b"x-beenthere:", b"mailing-list:") or b"mailing list" in field(
        raw, b"delivered-to:"
    ):
        return "list"
    if b"rssfeeds@" in field(raw, b"from:"):
        return "feed"
    return "newsletter" if b"unsub" in raw.lower() else "ham"


def only(*kept: str) -> Sort:
    """By kind, but only these kinds are classes of their own."""
    return lambda raw, label: kind if (kind := by_kind(raw, label)) in (*kept, "spam") else "ham"


def without_ham(raw: bytes, label: str) -> str:
    """By kind; the rest is a class of its own, too."""
    return "personal" if (kind := by_kind(raw, label)) == "ham" else kind


def by_list(*names: bytes) -> Sort:
    """Ham by the lists of these names."""

    def sort(raw: bytes, label: str) -> str:
        place = field(raw, b"list-id:")
        return (
            next((name.decode() for name in names if b"<" + name in place), label)
            if label == "ham"
            else label
        )

    return sort


def swindles(raw: bytes, label: str) -> str:
    """Spam about money is a second unwanted class."""
    text = raw.lower() if label == "spam" else b""
    found = any(word in text for word in _SWINDLES) or (b"account" in text and b"verify" in text)
    return "swindle" if found else label


SPAMASSASSIN: dict[str, Sort] = {
    "two classes": as_it_is,
    "lists apart": only("list"),
    "newsletters apart": only("newsletter"),
    "by kind": by_kind,
    "by kind, ham never taught": without_ham,
    "four lists apart": by_list(b"fork", b"ilug", b"rpm-zzzlist", b"razor-users"),
    "swindles apart": swindles,
}
LISTS: dict[str, Sort] = {
    "two classes": as_it_is,
    "two lists apart": by_list(b"linux-ntfs-dev", b"openipmi-developer"),
    "three lists apart": by_list(b"linux-ntfs-dev", b"openipmi-developer", b"tipc-discussion"),
}


def unmarked(raw: bytes) -> bytes:
    """Without fields, subject mark and footer that name the list it came by."""
    head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    fields = [
        one for one in _FIELD_END.split(head) if _NO_LIST.match(one.partition(b":")[0].lower())
    ]
    fields = [
        re.sub(rb"\[[^\]]{1,30}\]", b"", field) if field.lower().startswith(b"subject:") else field
        for field in fields
    ]
    tail = _FOOTER.search(body, max(len(body) - 1500, 0))
    return b"\n".join(fields) + b"\n\n" + (body[: tail.start()] + b"\n" if tail else body)


def read(index: Path, change: Callable[[bytes], bytes] = bytes) -> list[tuple[Mail, bytes]]:
    """Messages with their features, each with its present class."""
    preparer = ExampleReader(KEY)
    found = []
    for label, path in streams.labelled(index):
        was = path.read_bytes()
        raw = change(was)
        found.append((Mail(label, raw, preparer.read_example(raw)), was))
    return found


def sorted_by(sort: Sort, mail: Sequence[tuple[Mail, bytes]]) -> list[Mail]:
    """The same messages in other classes."""
    return [message._replace(label=sort(was, message.label)) for message, was in mail]


# ---- filters


@contextmanager
def pupil(labels: set[str]) -> Iterator[Filter]:
    """A new filter with these classes."""
    with tempfile.TemporaryDirectory(prefix="spamguard-bench-") as directory:
        keys.store_key(Path(directory) / "key", KEY)
        with Filter.open(directory, _durable=False) as spam_filter:
            for label in labels - {"ham", "spam"}:
                spam_filter.define_class(label, unwanted=label in UNWANTED)
            yield spam_filter


def judged(spam_filter: Filter, message: Mail) -> Answer:
    """Its verdict on a message."""
    verdict = spam_filter.judge_features(message.ready.features)
    return Answer(message.label, verdict.label, dict(verdict.probabilities), verdict.log_odds)


def online(mail: Sequence[Mail]) -> list[Answer]:
    """Judge, then teach, every message."""
    answers = []
    with pupil({message.label for message in mail}) as spam_filter:
        for message in mail:
            answers.append(judged(spam_filter, message))
            spam_filter.learn_examples([message.ready], message.label)
            spam_filter.settle_if_due()
    return answers


def ours(lessons: Sequence[Mail]) -> Judge:
    """Our filter, taught these and settled."""

    def judge(mail: Sequence[Mail]) -> list[Answer]:
        with pupil({message.label for message in lessons}) as spam_filter:
            for message in lessons:
                spam_filter.learn_examples([message.ready], message.label)
            spam_filter.settle()
            return [judged(spam_filter, message) for message in mail]

    return judge


def scikit_learn(name: str) -> Callable[[Sequence[Mail]], Judge]:
    """An estimator of scikit-learn over hashed words of header and decoded text: counts, or counts
    scaled to length 1.
    """

    def taught(lessons: Sequence[Mail]) -> Judge:
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.naive_bayes import MultinomialNB

        bayes = name == "MultinomialNB"
        words = HashingVectorizer(
            n_features=COLUMNS, alternate_sign=False, norm=None if bayes else "l2"
        )
        estimator: Any = (
            MultinomialNB(alpha=0.1) if bayes else LogisticRegression(C=100.0, max_iter=1000)
        )
        estimator.fit(
            words.transform([text_of(message.raw) for message in lessons]),
            [message.label for message in lessons],
        )

        def judge(mail: Sequence[Mail]) -> list[Answer]:
            scores = estimator.predict_log_proba(
                words.transform([text_of(message.raw) for message in mail])
            )
            return [
                _answer(message.label, list(estimator.classes_), row)
                for message, row in zip(mail, scores, strict=True)
            ]

        return judge

    return taught


def _answer(gold: str, classes: list[str], logs: NDArray[np.float64]) -> Answer:
    bad = np.array([name in UNWANTED for name in classes])
    odds = np.logaddexp.reduce(logs[bad]) - np.logaddexp.reduce(logs[~bad])
    return Answer(
        gold,
        classes[int(logs.argmax())],
        dict(zip(classes, np.exp(logs).tolist(), strict=True)),
        float(odds.clip(-700, 700)),
    )


FILTERS: dict[str, Callable[[Sequence[Mail]], Judge]] = {
    "spamguard": ours,
    "MultinomialNB": scikit_learn("MultinomialNB"),
    "LogisticRegression": scikit_learn("LogisticRegression"),
}


# ---- measures and tables


def right(answers: Sequence[Answer]) -> float:
    """Percent of messages whose likeliest class is the true one."""
    return 100 * float(
        np.mean(
            [
                max(answer.probabilities, key=lambda name: answer.probabilities[name])
                == answer.gold
                for answer in answers
            ]
        )
    )


def class_loss(answers: Sequence[Answer]) -> float:
    """Mean negative logarithm of the probability of the true class."""
    return float(
        -np.mean(
            [np.log(max(answer.probabilities.get(answer.gold, 0.0), 1e-9)) for answer in answers]
        )
    )


def measured(answers: Sequence[Answer]) -> list[float]:
    """All measures of one run, as under HEADER."""
    gold, score = (
        np.array([answer.gold in UNWANTED for answer in answers]),
        np.array([answer.log_odds for answer in answers]),
    )
    chance = 1 / (1 + np.exp(-score.clip(-700, 700)))
    labelled = 100 * float(np.mean([answer.label == answer.gold for answer in answers]))
    unsure = 100 * float(np.mean([answer.label == "unsure" for answer in answers]))
    wrong = 100 * float(
        np.mean([answer.label in UNWANTED for answer in answers if answer.gold not in UNWANTED])
    )
    of_classes = right(answers), labelled, unsure, class_loss(answers)
    return [
        *of_classes,
        roca(gold, score),
        sm_at(gold, score, 0.005),
        wrong,
        log_loss(gold, chance),
    ]


def row(name: str, *runs: Sequence[Answer]) -> str:
    """The means of some runs."""
    digits = 2, 2, 2, 4, 3, 2, 2, 4
    found = np.mean([measured(answers) for answers in runs], axis=0)
    cells = [f"{value:.{number}f}" for value, number in zip(found, digits, strict=True)]
    return f"| {' | '.join([name, str(len({answer.gold for answer in runs[0]})), *cells])} |"


def tabled(title: str, rows: Iterator[str]) -> None:
    """Print rows as they are made."""
    print(f"\n{title}\n\n{HEADER}\n|{'---|' * HEADER.count(' | ')}---|", flush=True)
    for line in rows:
        print(line, flush=True)


def drawn(mail: Sequence[Mail], each: int, seed: int) -> list[Mail]:
    """So many messages of each class, or all there are, drawn and mixed."""
    chance = random.Random(seed)
    by_class = [
        [message for message in mail if message.label == label]
        for label in sorted({message.label for message in mail})
    ]
    chosen = [
        message for group in by_class for message in chance.sample(group, min(each, len(group)))
    ]
    return chance.sample(chosen, len(chosen))


def later(mail: Sequence[Mail], border: int, lessons: Sequence[Mail]) -> list[Mail]:
    """The messages behind the border whose class was taught."""
    known = {lesson.label for lesson in lessons}
    return [message for message in mail[border:] if message.label in known]


def few(mail: Sequence[Mail]) -> Iterator[str]:
    """Every filter after a few lessons of each class."""
    border = int(SHARE * len(mail))
    for each in SIZES:
        draws = [drawn(mail[:border], each, seed) for seed in range(DRAWS)]
        for name, taught in FILTERS.items():
            yield row(
                f"{name}, {each} of each",
                *(taught(lessons)(later(mail, border, lessons)) for lessons in draws),
            )


def split(mail: Sequence[Mail]) -> Iterator[str]:
    """Every filter after most of the stream."""
    border = int(SHARE * len(mail))
    for name, taught in FILTERS.items():
        yield row(name, taught(mail[:border])(later(mail, border, mail[:border])))


def rare(mail: Sequence[Mail], label: str) -> Iterator[str]:
    """Online: a class of which few messages are kept; a class that is ham until it is made; beside
    the whole.
    """
    places = [place for place, message in enumerate(mail) if message.label == label]
    kept = {places[number * len(places) // RARE] for number in range(RARE)}
    thinned = [
        message for place, message in enumerate(mail) if message.label != label or place in kept
    ]
    late = [
        message._replace(label="ham") if message.label == label and place < LATE else message
        for place, message in enumerate(mail)
    ]
    for name, some in (
        (f"{label}: {RARE} messages", thinned),
        (f"{label}: from message {LATE:,} on", late),
    ):
        answers = online(some)
        own, named = (
            [answer for answer in answers if answer.gold == label],
            [answer for answer in answers if answer.label == label],
        )
        found = sum(vote.label == label for vote in own)
        yield row(
            f"{name}: {found} of {len(own)} found, {len(named) - found} others called so", answers
        )


PARTS = ("online", "split", "few", "rare")


def main() -> None:
    """Run the parts and print their tables."""
    options = arguments()
    for name, index, sorts, change in (
        ("SpamAssassin", options.spamassassin, SPAMASSASSIN, bytes),
        ("lists, unmarked", options.lists, LISTS, unmarked),
    ):
        if index:
            measure(name, read(index, change), sorts, options.only)


def measure(
    corpus: str, mail: Sequence[tuple[Mail, bytes]], sorts: dict[str, Sort], part: str
) -> None:
    """Every part, or one."""
    finest = list(sorts)[-1] if corpus != "SpamAssassin" else "by kind"
    fine = sorted_by(sorts[finest], mail)
    if part in ("", "online"):
        tabled(
            f"{corpus}, online",
            (row(name, online(sorted_by(sort, mail))) for name, sort in sorts.items()),
        )
    if part in ("", "split"):
        tabled(f"{corpus}, {finest}, 70:30", split(fine))
    if part in ("", "few"):
        tabled(f"{corpus}, {finest}, few lessons", few(fine))
        tabled(f"{corpus}, two classes, few lessons", few(sorted_by(as_it_is, mail)))
    if part in ("", "rare") and corpus == "SpamAssassin":
        tabled(f"{corpus}, online", rare(sorted_by(only("newsletter"), mail), "newsletter"))


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--spamassassin", type=Path, metavar="INDEX", help="TREC index of prepared mail"
    )
    parser.add_argument(
        "--lists", type=Path, metavar="INDEX", help="TREC index of prepared mail of mailing lists"
    )
    parser.add_argument("--only", choices=PARTS, default="", metavar="PART")
    options = parser.parse_args()
    if not (options.spamassassin or options.lists):
        parser.error("name at least one corpus: `python corpora/fetch.py` gets one")
    return options


if __name__ == "__main__":
    main()
