"""JSON of the API and its schema (draft 2020-12), both made from the types of fields.

`to_json` writes a value by its type, `json_schema` describes that type, so what is written is what
is described. Types may be text, numbers, times, lists, mappings from text, and dataclasses.

The classes below are answers that differ from the values of the service. The commands' `--json`
uses some of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from spamguard.engine import explain_text
from spamguard.log import rfc3339
from spamguard.proxy.history_schema import HistoryRow
from spamguard.records import Explanation, Verdict, Word
from spamguard.web.models import (
    JSON_NAME,
    Counted,
    Day,
    JudgementDetails,
    LessonReceipt,
    MessageOutcome,
    Moment,
    WordPart,
)

_SCALARS: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Moment: {"type": "string"},
    Day: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
}
SCHEMA_PREFIX = "#/components/schemas/"
JsonWriter = Callable[[Any], Any]


def to_json(kind: Any, value: Any) -> Any:
    """Convert a value for JSON by its type; of a dataclass only the fields of that class."""
    return _json_writer(kind)(value)


@cache
def _json_writer(kind: Any) -> JsonWriter:
    if kind in (Moment, Day):
        return rfc3339 if kind == Moment else lambda seconds: rfc3339(seconds)[:10]
    if is_dataclass(kind):
        parts = [(key, name, _json_writer(hint)) for key, name, hint in _json_fields(kind)]
        return lambda value: {key: write(getattr(value, name)) for key, name, write in parts}
    inside = [_json_writer(argument) for argument in get_args(kind)]
    if _is_union(kind):
        return lambda value: None if value is None else inside[0](value)
    if _is_mapping(kind):
        return lambda value: {key: inside[1](argument) for key, argument in value.items()}
    return (
        (lambda value: [inside[0](argument) for argument in value])
        if inside
        else lambda value: value
    )


def json_schema(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Describe a type.

    Parameters
    ----------
    known
        Schemas of dataclasses by name; new ones are added, and referred to.
    """
    if is_dataclass(kind):
        return _named_schema(kind, known)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    inside = get_args(kind)
    if _is_union(kind):
        return {"anyOf": [json_schema(argument, known) for argument in inside]}
    if _is_mapping(kind):
        return {"type": "object", "additionalProperties": json_schema(inside[1], known)}
    if inside:
        return {"type": "array", "items": json_schema(inside[0], known)}
    raise TypeError(f"{kind} has no place in an answer")


def _named_schema(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = kind.__name__
    if name not in known:
        known[name] = {}  # for a type that contains itself
        keys = {key: json_schema(hint, known) for key, _, hint in _json_fields(kind)}
        known[name] |= {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": keys,
            "required": sorted(keys),
            "additionalProperties": False,
        }
    return {"$ref": f"{SCHEMA_PREFIX}{name}"}


def _json_fields(kind: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the JSON name, the name and the type of each field."""
    hints = get_type_hints(kind, include_extras=True)
    for member in fields(kind):
        yield member.metadata.get(JSON_NAME, member.name), member.name, hints[member.name]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping)


MAX_WORDS = 30  # of an explanation, for and against


@dataclass(frozen=True, slots=True)
class Share:
    """An expert's log-odds (score), and what it adds to the sum (share)."""

    score: float
    share: float


@dataclass(frozen=True, slots=True)
class ExplainedWord:
    """A word of an explanation. messages: taught messages with the word, by class; empty for a rare
    word, except for operators.
    """

    text: str
    part: float
    messages: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Explained(Verdict):
    """The parts of a verdict. Prior and shares of the experts sum to `sum`; so do words,
    other_words, traits, numbers, biases and prior.

    flip: how many of the strongest words would have to go for another label; null if all of them
    are not enough, or too little has been taught.
    """

    favoured: str
    against: str
    sum: float
    prior: float
    experts: Mapping[str, Share]
    words: Sequence[ExplainedWord]
    other_words: float
    traits: Mapping[str, float]
    numbers: Mapping[str, float]
    biases: float
    to_threshold: float
    flip: int | None


@dataclass(frozen=True, slots=True)
class WhyTold:
    """Why a verdict came about. then: the verdict when the message passed, null for an upload. now:
    the explanation of today's verdict.
    """

    then: JudgementDetails | None
    now: Explained


@dataclass(frozen=True, slots=True)
class Undone:
    """Votes that were taken back; with dry_run they still stand."""

    user: str
    since: Moment
    dry_run: bool
    taken_back: int
    receipts: Sequence[LessonReceipt]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The message was deleted."""

    id: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class Words:
    """All tokens that a word may become."""

    words: Sequence[Counted]


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that can be taught, and whether each is unwanted."""

    classes: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all processes work. wrong: a line for each fault, for operators."""

    alive: bool
    wrong: Sequence[str]


def to_explained(why: Explanation, words: int = MAX_WORDS) -> Explained:
    """Convert an explanation. words: for, and against."""
    shown, other = explain_text.strongest_clues(why, words)
    return Explained(
        why.verdict.label,
        why.verdict.probability,
        why.verdict.log_odds,
        why.verdict.probabilities,
        favoured=why.favoured,
        against=why.against,
        sum=why.log_odds,
        prior=why.prior,
        experts={name: Share(why.scores[name], share) for name, share in why.shares.items()},
        words=[ExplainedWord(clue.text, clue.part, clue.counts) for clue in shown],
        other_words=other,
        traits=why.traits,
        numbers=why.numbers,
        biases=why.biases,
        to_threshold=why.to_threshold,
        flip=why.flip,
    )


# ---- for the commands


def explanation_json(why: Explanation, words: int) -> dict[str, Any]:
    """Convert an explanation for `spamguard explain --json`."""
    return dict(to_json(Explained, to_explained(why, words)))


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Convert a verdict."""
    return dict(to_json(Verdict, verdict))


def outcome_json(row: HistoryRow) -> dict[str, Any]:
    """Convert the outcome of a message."""
    return dict(to_json(MessageOutcome, row))


def words_json(words: Sequence[Word]) -> list[dict[str, Any]]:
    """Convert the words of a verdict."""
    return [to_json(WordPart, word) for word in words]
