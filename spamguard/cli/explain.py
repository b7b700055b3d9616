"""`explain`: why a message gets its verdict, as parts that sum to the score. Never judges otherwise than `judge` does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from spamguard.cli import remembered, rim, usage
from spamguard.errors import SourceError, UsageError
from spamguard.explained import OTHERS, STEPS, asked, flip, rounded, strongest
from spamguard.ids import is_id
from spamguard.times import moment, rfc3339

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.history import Row
    from spamguard.records import Explanation, Vote

ABOUT = """Explain a verdict. The log-odds as a sum, first by expert, then by word, trait and number of the message;
the numbers behind a word are the messages of each class that have it. Who has taught the message itself is told first.

In place of PATH, the ID of a message that passed, as X-Spamguard has it. What was said and done then, and the verdict by what is
known now; its words are told as far as they were among the strongest then. One that another version has read has no now: it is told
why."""
EXAMPLE = """  spamguard explain message.eml
  spamguard explain --words 30 message.eml
  spamguard explain --json message.eml
  spamguard explain 0iq5r8jo4c1n2f3g
  spamguard explain --user anna 0iq5r8jo4c1n2f3g"""

_BAR = 24  # letters of the longest bar
_VOTES = 20  # in the text: a circular may have those of thousands

Part = tuple[float, str, str]
"""A part, what it is of, and a remark."""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "explain", run, ABOUT, EXAMPLE)
    parser.add_argument("--words", type=usage.whole, default=10, metavar="N", help="how many words each way (default: 10)")
    usage.add_user(parser)
    usage.add_json(parser, usage.ONE_FOR_EACH)
    parser.add_argument("paths", nargs="+", metavar="PATH|ID", help=f"{usage.PATHS}; or the id of a message that passed")


def run(options: argparse.Namespace) -> int:
    """Explain every message: first those named by an id."""
    from spamguard.prepare import Preparer

    names = [path for path in options.paths if is_id(path) and not Path(path).exists()]
    paths = [path for path in options.paths if path not in names]
    known = remembered.rows(options, names)
    found = rim.messages(paths)
    told = len(known)
    with rim.open_to_ask(options) as spam_filter:
        preparer = Preparer(spam_filter.key)
        for row in known:
            _explain_row(spam_filter, row, options)
        for message in found:
            why = spam_filter.explain(message.raw, user=options.user)
            votes = list(spam_filter.ledger.users.of_message(preparer.digest(message.raw)))
            rim.answer(options, _text(message.name, why, votes, options.words), _values(message.name, why, votes, options.words))
            told += 1
    if not told:
        raise SourceError(f"{', '.join(paths)}: no message there to explain; check the path")
    return 0


def _explain_row(spam_filter: Filter, row: Row, options: argparse.Namespace) -> None:
    """Then, and now. A message that was not scanned has no now; of one that cannot be compared it is told why not."""
    then = {"name": row.id, "then": remembered.as_values(row)}
    if not row.was_scanned:
        rim.answer(options, remembered.as_text(row, options.words), then)
        return
    from spamguard.remembered import lesson

    try:
        features = lesson(spam_filter, row).features
    except UsageError as error:
        told = rim.in_words(error)
        rim.answer(options, f"{remembered.as_text(row, options.words)}\nnow: cannot be told. {told}\n", then | {"no_now": told})
        return
    texts = {word.token: word.text for word in row.words}
    why = spam_filter.explain_features(features, texts, options.user)
    votes = list(spam_filter.ledger.users.of_message(row.digest))
    text = f"{remembered.as_text(row, options.words)}\n{_text('now', why, votes, options.words)}"
    rim.answer(options, text, then | _values(row.id, why, votes, options.words))


def _values(name: str, why: Explanation, votes: Sequence[Vote], words: int) -> dict[str, object]:
    from spamguard.web.api import shapes

    taught = [{"class": one.label, "user": one.user, "origin": one.origin, "time": rfc3339(one.time)} for one in votes]
    return {"name": name, "taught": taught, **shapes.explanation(why, words)}


# ---- the report


def _text(name: str, why: Explanation, votes: Sequence[Vote], words: int) -> str:
    verdict = why.verdict
    return "\n".join(
        (
            name,
            f"{verdict.label}: probability {verdict.probability:.4f} of being unwanted, log-odds {verdict.log_odds:+.3f}",
            flip(why),
            *map(_taught, votes[:_VOTES]),
            *([f"and by {len(votes) - _VOTES:,} more (--json shows all)"] if len(votes) > _VOTES else ()),
            "",
            f"by expert: log-odds of {asked(why)}",
            *_table([(why.prior, "prior", ""), *_sorted(why.shares)], why.log_odds),
            "",
            f"by feature: log-odds of {asked(why)}",
            *_table(_features(why, words), why.log_odds),
            "",
        )
    )


def _taught(vote: Vote) -> str:
    """Who says what it is, from where and when."""
    return rim.printable(f"taught as {vote.label} by {vote.user or usage.SITE}: {vote.origin}, {moment(vote.time)}")


def _features(why: Explanation, words: int) -> list[Part]:
    shown, other = strongest(why, words)
    return [
        *((clue.part, rim.printable(clue.text), _counts(clue.counts)) for clue in shown),
        (other, OTHERS, f"{len(why.clues) - len(shown):,} of them"),
        *((part, f"trait: {name}", "") for part, name, _ in _sorted(why.traits)),
        *((part, f"number: {name}", "") for part, name, _ in _sorted(why.numbers)),
        (why.biases, "biases of the experts", ""),
        (why.prior, "prior", ""),
    ]


def _sorted(parts: Mapping[str, float]) -> list[Part]:
    return [(part, name, "") for name, part in sorted(parts.items(), key=lambda item: -abs(item[1]))]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())


def _table(rows: Sequence[Part], whole: float) -> list[str]:
    """Lines of a sum, each with a bar; what is printed adds up."""
    steps = rounded([part for part, _, _ in rows], whole)
    longest = max(1, *(abs(step) for step, row in zip(steps, rows, strict=True) if row[1] != OTHERS))
    wide = min(40, max(_width(name) for _, name, _ in rows))
    lines = [_row(step, longest, wide, *row[1:]) for step, row in zip(steps, rows, strict=True) if step]
    return [*lines, f"  {sum(steps) / STEPS:+9.3f}  sum"]


def _row(step: int, longest: int, wide: int, name: str, remark: str) -> str:
    padding = " " * (wide - _width(name))
    bar = "" if name == OTHERS else _bar(step, longest)
    return f"  {step / STEPS:+9.3f}  {name}{padding}  {bar:{_BAR}}  {remark}".rstrip()


def _width(text: str) -> int:
    """Columns that a text takes on a terminal; ideographs take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _bar(step: int, longest: int) -> str:
    return ("+" if step > 0 else "-") * -(-abs(step) * _BAR // longest)
