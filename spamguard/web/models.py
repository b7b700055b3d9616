"""The values that the service returns, shared by API, page and the commands' `--json`.

They are plain dataclasses. pydantic checks nothing here: it writes them as JSON (`to_json`) and
describes them in the OpenAPI document, with their docstrings. What differs from a field in JSON
stands in its annotation.

Texts are as strangers wrote them, made printable. Whoever shows them must still escape them. Must
never import FastAPI, because commands use this module too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, TypeAdapter

from spamguard.engine import explain_text
from spamguard.records import Clue, Explanation, Flip, Verdict, Word
from spamguard.times import rfc3339

if TYPE_CHECKING:
    from spamguard.proxy.history import HistoryRow

Moment = Annotated[float, PlainSerializer(rfc3339, return_type=str)]
"""Seconds since 1970; in JSON a time in UTC (RFC 3339)."""


def to_json(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).dump_python(value, mode="json", by_alias=True)


MAX_ROWS = 500  # of one page
MAX_HOURS = 31 * 24  # of the numbers of the last hours


@dataclass(frozen=True)
class WordPart:
    """A word, and what it adds to the log-odds of being unwanted (part)."""

    text: str
    part: float


def word_parts(words: Sequence[Word]) -> list[WordPart]:
    return [WordPart(word.text, word.part) for word in words]


def strongest_words(words: Iterable[Word]) -> tuple[Word, ...]:
    """Return the strongest words that a reader of the message sees in it, each said once.

    words: strongest first.
    """
    described = (
        (word, *explain_text.describe_clue(Clue(word.text, word.part, {}))) for word in words
    )
    named = ((word._replace(text=name), kind, name) for word, kind, name in described)
    return tuple(explain_text.readable_words(named))


@dataclass(frozen=True)
class MessageOutcome:
    """What became of a message, as `spamguard explain --json ID` tells it too. label, probability,
    log_odds: the verdict then; personal: other verdicts, by user. next_hop: its reply. from:
    envelope sender. author: the header's From, in which senders write what they like: "Name
    <address>" or the address alone, shortened where it is long, "" if unknown. to: people who are
    not operators see only their own addresses. message: its name in the log lines of lessons, "" if
    it was not scanned.
    """

    time: Moment
    listener: str
    client: str
    sender: Annotated[str, Field(serialization_alias="from")]
    author: str
    recipients: Annotated[tuple[str, ...], Field(serialization_alias="to")]
    subject: str
    size: int
    label: str
    probability: float
    log_odds: float
    personal: Mapping[str, str]
    action: str
    reply: Annotated[str, Field(serialization_alias="next_hop")]
    message: str


def outcome_fields(row: HistoryRow) -> dict[str, Any]:
    return _values(MessageOutcome, row)


def _values(kind: Any, source: Any) -> dict[str, Any]:
    """What a value has under the names of the fields of another type."""
    return {field.name: getattr(source, field.name) for field in fields(kind)}


@dataclass(frozen=True)
class Judgement(MessageOutcome):
    """A message that passed. taught: its class now, by all votes, or "". own: the class that the
    person has given it. can_teach: its features are there, in this version. held: it waits in the
    quarantine.
    """

    id: str
    taught: str
    own: str
    can_teach: bool
    held: bool


@dataclass(frozen=True)
class JudgementDetails(Judgement):
    """A message that passed, with its words, strongest first. authenticated: a word of the person
    about its sender would count. sender_word: that word, ham or spam, or "". domain: that of the
    sender, about which a word would count, too, or "". domain_word: as sender_word. line: the
    beginning of its text.
    """

    words: Sequence[WordPart]
    authenticated: bool = False
    sender_word: str = ""
    domain: str = ""
    domain_word: str = ""
    line: str = ""


@dataclass(frozen=True)
class JudgementPage:
    """A page of the history, newest first. following: `before` of the next page, "" on the last
    page. A page may be short, or empty, with more to follow: the search stops after some time.
    absent: names of nodes that did not answer, whose messages are missing.
    """

    rows: Annotated[Sequence[Judgement], Field(serialization_alias="judgements")]
    following: str = ""
    absent: Sequence[str] = ()


@dataclass(frozen=True)
class Waiting:
    """How many messages wait for a decision, as the navigation shows it: unsure, and held ones.

    "" for none, and where it is not known; "50+" for so many at least.
    """

    unsure: str = ""
    held: str = ""


@dataclass(frozen=True)
class Opinion(Verdict):
    """The verdict on an uploaded message. digest: the message digest, for `forget`. taught, own: as
    of a judgement. words: strongest first.
    """

    digest: str
    taught: str
    own: str
    words: Sequence[WordPart]


@dataclass(frozen=True)
class LessonReceipt:
    """What a lesson has done. digest: the message digest, with which to forget the lesson. label:
    the class, "" if it was taken back. changed: false if nothing changed. was: the person's class
    before. now: today's verdict on the message.
    """

    digest: str
    label: str
    changed: bool
    was: str
    now: Verdict | None = None
    # not in JSON: it waits in the quarantine all the same, though it was called wanted
    held: Annotated[bool, Field(exclude=True)] = False


@dataclass(frozen=True)
class Hour:
    """Numbers of an hour. mail: messages by label. lessons: votes."""

    start: Moment
    mail: Mapping[str, int]
    lessons: int


@dataclass(frozen=True)
class ConfusionCell:
    """The number of messages with a verdict (said) that were taught as a class (taught)."""

    said: str
    taught: str
    messages: int


@dataclass(frozen=True)
class Today:
    """Numbers of the last hours, oldest first, without gaps. passed: all messages. wrong: messages
    that people have taught, agreement included.
    """

    hours: Sequence[Hour]
    passed: int
    lessons: int
    wrong: Sequence[ConfusionCell]


@dataclass(frozen=True)
class HeldMessage:
    """A message in the quarantine. from, author, to: as of a judgement. waiting: recipients who
    have not got it. subject: "" if unknown. probability: of being unwanted; null if unknown.
    """

    id: str
    time: Moment
    sender: Annotated[str, Field(serialization_alias="from")]
    author: str
    recipients: Annotated[tuple[str, ...], Field(serialization_alias="to")]
    waiting: tuple[str, ...]
    subject: str
    size: int
    reason: str
    released: bool
    probability: float | None


@dataclass(frozen=True)
class HeldMessageDetails(HeldMessage):
    """A held message with its header section, whose lines end in LF."""

    header: str


@dataclass(frozen=True)
class QuarantinePage:
    """A page of the quarantine, newest first. following, absent: as of the history."""

    rows: Annotated[Sequence[HeldMessage], Field(serialization_alias="messages")]
    following: str = ""
    absent: Sequence[str] = ()


@dataclass(frozen=True)
class RecipientReply:
    """The reply of the next hop for a recipient."""

    address: str
    reply: str


@dataclass(frozen=True)
class ReleaseResult:
    """What a release has done. released: all recipients have the message now. taught: it was learnt
    as ham.
    """

    id: str
    recipients: Sequence[RecipientReply]
    released: bool
    taught: bool


@dataclass(frozen=True)
class Class:
    """A class, and the number of its lessons (messages)."""

    messages: int
    unwanted: bool


@dataclass(frozen=True)
class User:
    """The lessons in force of a user, by class, and the time of the last one, or None."""

    user: str
    lessons: Mapping[str, int]
    last: Moment | None


@dataclass(frozen=True)
class Model:
    """What has been learnt. missing: what leaves much mail unsure, or "". users: all for operators,
    others see themselves.
    """

    classes: Mapping[str, Class]
    missing: str
    unsettled: int
    users: Sequence[User]


@dataclass(frozen=True)
class Share:
    """An expert's log-odds (score), and what it adds to the sum (share)."""

    score: float
    share: float


@dataclass(frozen=True)
class ExplainedWord:
    """A word of an explanation. text: "" for words whose text was not kept. name: readable. kind,
    group: of the word. messages: taught messages with the word, by class; empty for a rare word,
    except for operators. tokens: how many words it stands for.
    """

    text: str
    part: float
    counts: Annotated[Mapping[str, int], Field(serialization_alias="messages")]
    name: str
    kind: str
    group: str
    tokens: int


@dataclass(frozen=True)
class ExplanationGroup:
    """What all features of a group add. features: how many there are."""

    name: str
    title: str
    part: float
    features: int


@dataclass(frozen=True)
class VerdictExplanation(Verdict):
    """The parts of a verdict. The groups' parts sum to `sum`; so do prior and shares of the
    experts, and so do words, other_words, traits, numbers, biases and prior. sentence: verdict and
    reasons in words. flip: how many of the strongest words for a class would have to go, and the
    label without them; null if no words would do, or too little has been taught.
    """

    sentence: str
    favoured: str
    against: str
    sum: float
    groups: Sequence[ExplanationGroup]
    prior: float
    experts: Mapping[str, Share]
    words: Sequence[ExplainedWord]
    other_words: float
    traits: Mapping[str, float]
    numbers: Mapping[str, float]
    biases: float
    flip: Flip | None


@dataclass(frozen=True)
class VerdictReasons:
    """Why a verdict came about. then: the verdict when the message passed, null for an upload. now:
    the explanation of today's verdict.
    """

    then: JudgementDetails | None
    now: VerdictExplanation


@dataclass(frozen=True)
class DeleteResult:
    """The message was deleted."""

    id: str
    deleted: bool


def summarize_explanation(why: Explanation, max_words: int | None = None) -> VerdictExplanation:
    """Convert an explanation. max_words: as of `explain_text.choose_features`."""
    features = explain_text.list_features(why)
    chosen = explain_text.choose_features(features, why.log_odds, max_words)
    return VerdictExplanation(
        **asdict(why.verdict),
        sentence=explain_text.describe_verdict(why, features),
        favoured=why.favoured,
        against=why.against,
        sum=why.log_odds,
        groups=[
            ExplanationGroup(**_values(ExplanationGroup, group))
            for group in explain_text.sum_groups(features)
        ],
        prior=why.prior,
        experts={name: Share(why.scores[name], share) for name, share in why.shares.items()},
        words=[
            ExplainedWord(**_values(ExplainedWord, word._replace(counts=word.counts or {})))
            for word in chosen.words
        ],
        other_words=chosen.other_words,
        traits=why.traits,
        numbers=why.numbers,
        biases=why.biases,
        flip=why.flip,
    )
