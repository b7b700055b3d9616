"""Losses by evasion and poisoning, ours and those of Debian's bogofilter on the same mail.

    python tests/bench/bench_evasion.py [--corpus INDEX] [--teach N] [--words FILE] [--only TEXT]

Both filters are taught the first N messages and judge the rest, spam attacked and ham unchanged;
nothing is taught meanwhile. Without --corpus the mail is made up. Needs the command `bogofilter`
(its stock settings: spam from 0.99, ham up to 0.45). The attacks are in `attacks.py`. Attackers
know the taught mail: good words speak most for its ham, telltale words for its spam. Random words
are from the dictionary FILE (default: /usr/share/dict/words), or made up without one. A loss is the
rise of a measure above the run without attack, a ratio our loss over bogofilter's. A ratio means
nothing where bogofilter loses next to nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spamguard import keys, sources
from spamguard.engine.filter import Filter
from spamguard.engine.measures import roca, sm_at
from spamguard.engine.prepare import ExampleReader, batch_by_size
from spamguard.errors import SpamguardError

sys.path.insert(0, str(Path(__file__).parents[2]))

from corpora.synthetic import generate
from tests.bench import attacks
from tests.bench.rivals import KEY

STUFFED = 150  # words, as issue and literature have it
POISON = (0.01, 0.02, 0.05)  # of the teaching mail
SLICE = 1000  # words: about as much of one message as we look at
DICTIONARY = 30_000
Labelled = list[tuple[str, bytes]]
Attack = Callable[[bytes], bytes]


class Words(NamedTuple):
    """An attacker's words. good: speak most for ham; telltale: for spam; random: of a dictionary;
    ham: all of ham, most frequent first.
    """

    good: list[str]
    telltale: frozenset[str]
    random: list[str]
    ham: list[str]


class Answer(NamedTuple):
    """score: log-odds of spam, any scale."""

    score: float
    label: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One filter's answers to the ham and the spam of one run, as rates in per cent."""

    roca: float
    sm_at_hm_05: float
    spam_as_ham: float
    spam_unsure: float
    ham_as_spam: float
    ham_unsure: float

    @property
    def measures(self) -> tuple[float, float, float, float]:
        """The measures of losses: area, sm at hm 0.5 %, spam not caught, ham not let through."""
        return (
            self.roca,
            self.sm_at_hm_05,
            self.spam_as_ham + self.spam_unsure,
            self.ham_as_spam + self.ham_unsure,
        )

    @classmethod
    def of(cls, ham: Sequence[Answer], spam: Sequence[Answer]) -> Outcome:
        gold = [False] * len(ham) + [True] * len(spam)
        scores = [answer.score for answer in (*ham, *spam)]
        return cls(
            roca(gold, scores),
            sm_at(gold, scores, 0.005),
            _share(spam, "ham"),
            _share(spam, "unsure"),
            _share(ham, "spam"),
            _share(ham, "unsure"),
        )


def _share(answers: Sequence[Answer], label: str) -> float:
    return 100 * sum(answer.label == label for answer in answers) / len(answers)


# ---- the filters: a directory each, taught and asked


def teach_spamguard(place: Path, mail: Labelled) -> None:
    """Teach and settle."""
    if not place.exists():
        place.mkdir()
        keys.store_key(place / "key", KEY)
    preparer = ExampleReader(KEY)
    with Filter.open(place, _durable=False) as spam_filter:
        for label in ("ham", "spam"):
            for some in batch_by_size([raw for wanted, raw in mail if wanted == label]):
                spam_filter.learn_examples(list(map(preparer.read_example, some)), label)
        spam_filter.settle()


def ask_spamguard(place: Path, mail: Sequence[bytes]) -> list[Answer]:
    """Log-odds and label of each message."""
    with Filter.open(place, _durable=False) as spam_filter:
        return [Answer(verdict.log_odds, verdict.label) for verdict in spam_filter.judge_all(mail)]


def teach_bogofilter(place: Path, mail: Labelled) -> None:
    """Count every message, as `bogofilter -s` and `-n` do."""
    place.mkdir(exist_ok=True)
    for label, option in (("spam", "-s"), ("ham", "-n")):
        _bogofilter(place, [raw for wanted, raw in mail if wanted == label], option)


def ask_bogofilter(place: Path, mail: Sequence[bytes]) -> list[Answer]:
    """Probability with all digits, and the label that stock settings give to it."""
    scores = [
        float(line.rpartition(b" ")[2]) for line in _bogofilter(place, mail, "-TT").splitlines()
    ]
    return [
        Answer(score, "spam" if score >= 0.99 else "ham" if score <= 0.45 else "unsure")
        for score in scores
    ]


def _bogofilter(place: Path, mail: Sequence[bytes], option: str) -> bytes:
    """Its bulk mode: names of files on standard input, answers in the same order."""
    with tempfile.TemporaryDirectory() as directory:
        names = [Path(directory) / f"{number:06d}" for number in range(len(mail))]
        for name, raw in zip(names, mail, strict=True):
            name.write_bytes(raw)
        command = ["bogofilter", "-C", "-d", str(place), option, "-b"]
        done = subprocess.run(
            command,
            input="".join(f"{name}\n" for name in names).encode(),
            capture_output=True,
            check=False,
        )
    if done.returncode > 2:
        raise SystemExit(f"bench_evasion: bogofilter failed: {done.stderr.decode()}")
    return done.stdout


FILTERS = {
    "bogofilter": (teach_bogofilter, ask_bogofilter),
    "spamguard": (teach_spamguard, ask_spamguard),
}


# ---- what attackers know


def known_words(taught: Labelled, dictionary: Path) -> Words:
    """The words of an attacker who knows the taught mail and a dictionary."""
    seen = {"ham": Counter[str](), "spam": Counter[str]()}
    size = Counter(label for label, _ in taught)
    for label, raw in taught:
        seen[label].update(attacks.words_of(raw))
    good = _telling(seen["ham"], size["ham"], seen["spam"], size["spam"], 0.02)
    telltale = _telling(seen["spam"], size["spam"], seen["ham"], size["ham"], 0.01)
    return Words(
        good=list(good)[:STUFFED],
        telltale=frozenset(word for word, ratio in telltale.items() if ratio > 3),
        random=_dictionary(dictionary),
        ham=[word for word, _ in seen["ham"].most_common(DICTIONARY)],
    )


def _telling(
    seen: Counter[str], size: int, elsewhere: Counter[str], other_size: int, share: float
) -> dict[str, float]:
    """Words in at least this share of one class, the most typical first, with their ratio to the
    other class.
    """

    def ratio(word: str) -> float:
        return (seen[word] + 0.5) / (size + 1) / ((elsewhere[word] + 0.5) / (other_size + 1))

    common = sorted(
        (word for word, count in seen.items() if count >= share * size),
        key=lambda word: (-ratio(word), word),
    )
    return {word: ratio(word) for word in common}


def _dictionary(path: Path) -> list[str]:
    """Its plain words; without one, words of mail that was not taught, and as many made-up ones."""
    if path.exists():
        return sorted(
            {
                word
                for word in path.read_text("utf-8").splitlines()
                if re.fullmatch("[a-z]{4,10}", word)
            }
        )
    print(f"no dictionary {path}: words of made-up mail instead")
    return sorted(set().union(*[attacks.words_of(raw) for _, raw in generate(1000, 77)]))


# ---- the attacks


def evasions(words: Words) -> dict[str, Attack]:
    """Attacks on judged messages, by name."""
    disguises = {
        "spaced out": attacks.spaced,
        "Cyrillic look-alikes": attacks.lookalikes,
        "one look-alike a word": attacks.one_lookalike,
        "one digit a word": attacks.with_digit,
        "zero-width spaces": attacks.zero_width,
        "cut by empty markup": attacks.cut_by_markup,
    }
    return {
        "good words, visible": lambda raw: attacks.appended(raw, words.good, len(words.good)),
        **{f"good words, {place}": _hiding(words, place) for place in attacks.HIDING_PLACES},
        **{f"padded by {kind}": partial(attacks.padded, kind=kind) for kind in attacks.PADDINGS},
        "random words of a dictionary": lambda raw: attacks.appended(raw, words.random, STUFFED),
        "random letters": lambda raw: attacks.gibberish(raw, STUFFED),
        **{
            f"telltale words {name}": partial(disguise, telltale=words.telltale)
            for name, disguise in disguises.items()
        },
        "image only": attacks.image_only,
        "base64": attacks.in_base64,
        "base64, damaged": attacks.in_damaged_base64,
        "UTF-16": attacks.in_utf16,
        "UTF-7": attacks.in_utf7,
        "character references": attacks.in_entities,
    }


def _hiding(words: Words, place: str) -> Attack:
    return lambda raw: attacks.hidden(raw, words.good, len(words.good), place)


def poison(taught: Labelled, words: Words, share: float, *, sliced: bool) -> Labelled:
    """Spam that carries a dictionary, as this share of all taught mail. sliced: each carries a part
    only, so that no limit on the length of a text helps.
    """
    spam = [raw for label, raw in taught if label == "spam"]
    count = round(share / (1 - share) * len(taught))
    parts = (
        [words.ham[start : start + SLICE] for start in range(0, len(words.ham), SLICE)]
        if sliced
        else [words.ham]
    )
    return [
        ("spam", attacks.dictionary_mail(spam[number % len(spam)], parts[number % len(parts)]))
        for number in range(count)
    ]


# ---- runs


def main() -> None:
    """Teach, attack, judge, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", metavar="INDEX", help="TREC index of prepared mail")
    parser.add_argument(
        "--teach", type=int, default=2500, metavar="N", help="messages taught (default: 2500)"
    )
    parser.add_argument(
        "--words",
        type=Path,
        default=Path("/usr/share/dict/words"),
        metavar="FILE",
        help="a dictionary, a word on a line",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="attacks whose name has this in it"
    )
    options = parser.parse_args()
    if shutil.which("bogofilter") is None:
        raise SystemExit("bench_evasion: needs bogofilter beside it: apt-get install bogofilter")
    mail = corpus(options.corpus)
    taught, rest = mail[: options.teach], mail[options.teach :]
    for name, part in (("taught", taught), ("judged", rest)):
        kinds = Counter(label for label, _ in part)
        print(f"{name}: {kinds['ham']} ham, {kinds['spam']} spam")
        if not kinds["ham"] or not kinds["spam"]:
            raise SystemExit(
                f"bench_evasion: of what is {name} there must be both ham and spam; choose "
                "another --teach"
            )
    with tempfile.TemporaryDirectory() as place:
        run(Path(place), taught, rest, known_words(taught, options.words), options.only)


def corpus(index: str | None) -> Labelled:
    """The mail of an index, or made-up mail."""
    if index is None:
        return list(generate(5000, 1))
    if not Path(index).exists():
        raise SystemExit(
            f"bench_evasion: no corpus at {index}; `python corpora/fetch.py` gets one, "
            "without --corpus mail is made up"
        )
    try:
        return [(str(message.label), message.raw) for message in sources.read_messages(index)]
    except SpamguardError as error:
        raise SystemExit(f"bench_evasion: {error}") from error


def run(place: Path, taught: Labelled, rest: Labelled, words: Words, only: str) -> None:
    """One line for each attack."""
    ham = [raw for label, raw in rest if label == "ham"]
    spam = [raw for label, raw in rest if label == "spam"]
    heading()
    answers: dict[str, list[Answer]] = {}
    plain: dict[str, Outcome] = {}
    for name, (teach, ask) in FILTERS.items():
        teach(place / name, taught)
        answers[name] = ask(place / name, ham)
        plain[name] = Outcome.of(answers[name], ask(place / name, spam))
    line("no attack", "", plain, plain)
    for attack, function in evasions(words).items():
        if only in attack:
            attacked = [function(raw) for raw in spam]
            changed = sum(
                new != attacks.rebuilt(raw) for new, raw in zip(attacked, spam, strict=True)
            )
            found = {
                name: Outcome.of(answers[name], ask(place / name, attacked))
                for name, (_, ask) in FILTERS.items()
            }
            line(attack, f"{100 * changed / len(spam):.0f}", found, plain)
    for share, sliced in [(share, sliced) for sliced in (False, True) for share in POISON]:
        attack = f"dictionary{' in slices' if sliced else ''}, {share:.0%} of what is taught"
        if only in attack:
            more = poison(taught, words, share, sliced=sliced)
            found = {name: poisoned(place, name, more, ham, spam) for name in FILTERS}
            line(attack, f"{len(more)}", found, plain)


def poisoned(
    place: Path, name: str, more: Labelled, ham: list[bytes], spam: list[bytes]
) -> Outcome:
    """The answers of a filter that was taught the poison as well."""
    teach, ask = FILTERS[name]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(place / name, copy)
        teach(copy, more)
        return Outcome.of(ask(copy, ham), ask(copy, spam))


def heading() -> None:
    """Two lines of a table."""
    for name in FILTERS:
        print(
            f"{name}: 1-ROCA %, sm % at hm 0.5 %; of spam % called ham, unsure; of ham % "
            "called spam, unsure"
        )
    print("changed: % of the spam, or number of messages taught besides")
    print(
        f"| attack | changed | {' | | | | '.join(FILTERS)} | | | | ratio: 1-ROCA | sm at hm "
        "0.5 % | spam not caught | ham not let through |"
    )
    print(f"|---|---|{'---|' * 12}")


def line(attack: str, changed: str, found: dict[str, Outcome], plain: dict[str, Outcome]) -> None:
    """A row: for each filter area, sm, spam as ham and unsure, ham as spam and unsure; then our
    losses over those of bogofilter.
    """
    cells = []
    for outcome in found.values():
        cells += [f"{outcome.roca:.3f}", f"{outcome.sm_at_hm_05:.1f}"]
        cells += [
            f"{outcome.spam_as_ham:.1f}, {outcome.spam_unsure:.1f}",
            f"{outcome.ham_as_spam:.2f}, {outcome.ham_unsure:.1f}",
        ]
    lost = [
        [
            after - before
            for after, before in zip(found[name].measures, plain[name].measures, strict=True)
        ]
        for name in FILTERS
    ]
    for theirs, ours in zip(*lost, strict=True):
        cells.append(f"{ours / theirs:.2f}" if theirs > 0 and attack != "no attack" else "")
    print(f"| {attack} | {changed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
