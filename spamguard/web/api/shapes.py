"""What the API answers, as JSON: the layout of each value, and how it is made from what the service says.

Names are those of the commands' --json, where they tell the same. Times are UTC (RFC 3339). The description of the API is made from
these layouts (`schema`): a key must never be in one and not in the other, which mypy sees to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from spamguard import explained
from spamguard.records import LATEST, Explanation, Verdict, Word
from spamguard.web.service.values import (
    Counted,
    Found,
    Held,
    Judgement,
    Model,
    Opinion,
    Preview,
    Receipt,
    Released,
    Today,
    Why,
)

WORDS = 30  # of an explanation, each way


class VerdictShape(TypedDict):
    """label: a class or "unsure". probability: of being unwanted. log_odds: the same, in nats. probabilities: by class."""

    label: str
    probability: float
    log_odds: float
    probabilities: dict[str, float]


class WordShape(TypedDict):
    """part: what a word adds to the log-odds of being unwanted."""

    text: str
    part: float


class OpinionShape(VerdictShape):
    """digest: names the message, for forget. taught: the class that holds for it, "" for none; own: what you have said."""

    digest: str
    taught: str
    own: str
    words: list[WordShape]


_Envelope = TypedDict("_Envelope", {"from": str, "to": list[str]})


class JudgementShape(_Envelope):
    """A message that passed. label, probability, log_odds: what was said then, personal: to whom something else. taught, own: what people
    and you say. next_hop: its answer. can_teach: its features are kept. to: of others than operators their own addresses only."""

    id: str
    time: str
    listener: str
    client: str
    subject: str
    size: int
    label: str
    probability: float
    log_odds: float
    personal: dict[str, str]
    action: str
    next_hop: str
    taught: str
    own: str
    can_teach: bool


class KnownShape(JudgementShape):
    """The same with its strongest words."""

    words: list[WordShape]


class HistoryShape(TypedDict):
    """Newest first. following: `before` of the next page, "" when this is the last."""

    judgements: list[JudgementShape]
    following: str


class ShareShape(TypedDict):
    """score: an expert's log-odds; share: what it adds to the sum."""

    score: float
    share: float


class ClueShape(TypedDict):
    """messages: taught ones that have the word, by class."""

    text: str
    part: float
    messages: dict[str, int]


class ExplanationShape(VerdictShape):
    """prior and shares of the experts sum to `sum`; so do words, other_words, traits, numbers, biases and prior. flip: how many of the
    strongest words would have to go for another label, null: all together do not do it."""

    favoured: str
    against: str
    sum: float
    prior: float
    experts: dict[str, ShareShape]
    words: list[ClueShape]
    other_words: float
    traits: dict[str, float]
    numbers: dict[str, float]
    biases: float
    to_threshold: float
    flip: int | None


class WhyShape(TypedDict):
    """then: what was said when the message passed, null for one that was handed over. now: what would be said now."""

    then: KnownShape | None
    now: ExplanationShape


class ReceiptShape(TypedDict):
    """label: the class, "" when taken back. changed: false if it was so already. was: what had been said before. now: what the message
    would be called now."""

    digest: str
    label: str
    changed: bool
    was: str
    now: VerdictShape | None


class FlipShape(TypedDict):
    """A message that a lesson would change."""

    judgement: JudgementShape
    before: VerdictShape
    after: VerdictShape


class PreviewShape(TypedDict):
    """What a lesson would do. looked_at: how many of the last messages were looked at."""

    digest: str
    before: VerdictShape
    after: VerdictShape
    looked_at: int
    flips: list[FlipShape]


class UndoneShape(TypedDict):
    """taken_back: votes. dry_run: they still stand."""

    user: str
    since: str
    dry_run: bool
    taken_back: int
    receipts: list[ReceiptShape]


class HeldShape(_Envelope):
    """waiting: who has not got it yet."""

    id: str
    time: str
    subject: str
    size: int
    reason: str
    waiting: list[str]
    released: bool


class ShownShape(HeldShape):
    """header: the whole header section."""

    header: str


class QuarantineShape(TypedDict):
    """Newest first."""

    messages: list[HeldShape]


class ReplyShape(TypedDict):
    """What the next hop has answered for a recipient."""

    address: str
    reply: str


class ReleasedShape(TypedDict):
    """released: everybody has it. taught: it was learnt as ham."""

    id: str
    released: bool
    recipients: list[ReplyShape]
    taught: bool


class DeletedShape(TypedDict):
    """It is gone."""

    id: str
    deleted: bool


class HourShape(TypedDict):
    """mail: messages by label. corrections: lessons against what had been said."""

    start: str
    mail: dict[str, int]
    lessons: int
    corrections: int


class WrongShape(TypedDict):
    """said: our label; taught: what people say."""

    said: str
    taught: str
    messages: int


class TodayShape(TypedDict):
    """hours: oldest first. wrong: of messages that people have spoken about, agreement included."""

    hours: list[HourShape]
    passed: int
    lessons: int
    wrong: list[WrongShape]


class ClassShape(TypedDict):
    """messages: lessons."""

    messages: int
    unwanted: bool


class TableShape(TypedDict):
    """used: buckets in use, load: their share."""

    used: int
    load: float


class GrowthShape(TypedDict):
    """lessons: in all, at the end of that day."""

    day: str
    lessons: int


class BinShape(TypedDict):
    """Of what was predicted between low and high: messages people have spoken about, mean prediction, share of unwanted."""

    low: float
    high: float
    messages: int
    predicted: float
    unwanted: float


class UserShape(TypedDict):
    """last: when they last taught, null for never."""

    user: str
    lessons: dict[str, int]
    last: str | None


class ModelShape(TypedDict):
    """What has been learnt. tables: by set of tokens."""

    classes: dict[str, ClassShape]
    tables: dict[str, TableShape]
    events: int
    unsettled: int
    extractor: int
    key: str
    growth: list[GrowthShape]
    calibration: list[BinShape]
    users: list[UserShape]


class CountedShape(TypedDict):
    """text: as explanations name it. part: what it adds, alone, to the log-odds of spam."""

    text: str
    messages: dict[str, int]
    part: float


class WordsShape(TypedDict):
    """As all the tokens that the word may become."""

    words: list[CountedShape]


class ClassesShape(TypedDict):
    """What mail may be taught as, and whether that is unwanted."""

    classes: dict[str, bool]


class HealthShape(TypedDict):
    """wrong: a line for each thing, for operators."""

    alive: bool
    wrong: list[str]


# ---- how they are made


def verdict(found: Verdict) -> VerdictShape:
    """Of a verdict."""
    return {
        "label": found.label,
        "probability": found.probability,
        "log_odds": found.log_odds,
        "probabilities": dict(found.probabilities),
    }


def opinion(found: Opinion) -> OpinionShape:
    """Of a message that was handed over."""
    return {
        **verdict(found.verdict),
        "digest": found.digest,
        "taught": found.taught,
        "own": found.own,
        "words": _words(found.words),
    }


def judgement(found: Judgement) -> JudgementShape:
    """Of a message that passed."""
    return {
        "id": found.id,
        "time": time(found.time),
        "listener": found.listener,
        "client": found.client,
        "from": found.sender,
        "to": list(found.recipients),
        "subject": found.subject,
        "size": found.size,
        "label": found.label,
        "probability": found.probability,
        "log_odds": found.log_odds,
        "personal": dict(found.personal),
        "action": found.action,
        "next_hop": found.reply,
        "taught": found.taught,
        "own": found.own,
        "can_teach": found.can_teach,
    }


def known(found: Judgement) -> KnownShape:
    """The same with words."""
    return {**judgement(found), "words": _words(found.words)}


def history(found: Found) -> HistoryShape:
    """A page of them."""
    return {"judgements": [judgement(one) for one in found.judgements], "following": found.following}


def explanation(why: Explanation) -> ExplanationShape:
    """Parts that sum to the score."""
    shown, other = explained.strongest(why, WORDS)
    return {
        **verdict(why.verdict),
        "favoured": why.favoured,
        "against": why.against,
        "sum": why.log_odds,
        "prior": why.prior,
        "experts": {name: {"score": why.scores[name], "share": share} for name, share in why.shares.items()},
        "words": [{"text": clue.text, "part": clue.part, "messages": dict(clue.counts)} for clue in shown],
        "other_words": other,
        "traits": dict(why.traits),
        "numbers": dict(why.numbers),
        "biases": why.biases,
        "to_threshold": why.to_threshold,
        "flip": why.flip,
    }


def why(found: Why) -> WhyShape:
    """Then and now."""
    return {"then": None if found.then is None else known(found.then), "now": explanation(found.now)}


def receipt(found: Receipt) -> ReceiptShape:
    """Of a lesson."""
    now = None if found.now is None else verdict(found.now)
    return {"digest": found.digest, "label": found.label, "changed": found.changed, "was": found.was, "now": now}


def preview(found: Preview) -> PreviewShape:
    """Of what a lesson would do."""
    return {
        "digest": found.digest,
        "before": verdict(found.before),
        "after": verdict(found.after),
        "looked_at": found.looked_at,
        "flips": [
            {"judgement": judgement(one.judgement), "before": verdict(one.before), "after": verdict(one.after)} for one in found.flips
        ],
    }


def undone(user: str, since: float, done: Sequence[Receipt], *, dry: bool) -> UndoneShape:
    """Of what was taken back."""
    receipts = [receipt(one) for one in done]
    return {"user": user, "since": time(since), "dry_run": dry, "taken_back": len(receipts), "receipts": receipts}


def held(found: Held) -> HeldShape:
    """Of a message in quarantine."""
    return {
        "id": found.id,
        "time": time(found.time),
        "from": found.sender,
        "to": list(found.recipients),
        "subject": found.subject,
        "size": found.size,
        "reason": found.reason,
        "waiting": list(found.waiting),
        "released": found.released,
    }


def released(found: Released) -> ReleasedShape:
    """Of what became of it."""
    told: list[ReplyShape] = [{"address": address, "reply": reply} for address, reply in found.replies.items()]
    return {"id": found.id, "released": found.complete, "recipients": told, "taught": found.taught}


def today(found: Today) -> TodayShape:
    """Of the last hours."""
    hours: list[HourShape] = [
        {"start": time(one.start), "mail": dict(one.mail), "lessons": one.lessons, "corrections": one.corrections} for one in found.hours
    ]
    wrong: list[WrongShape] = [
        {"said": said, "taught": taught, "messages": number} for (said, taught), number in sorted(found.wrong.items())
    ]
    return {"hours": hours, "passed": found.passed, "lessons": found.lessons, "wrong": wrong}


def model(found: Model) -> ModelShape:
    """Of what was learnt."""
    return {
        "classes": {name: {"messages": number, "unwanted": name in found.unwanted} for name, number in found.classes.items()},
        "tables": {name: {"used": found.vocabulary.get(name, 0), "load": load} for name, load in found.load.items()},
        "events": found.events,
        "unsettled": found.unsettled,
        "extractor": found.extractor,
        "key": found.fingerprint,
        "growth": [{"day": time(day)[:10], "lessons": number} for day, number in found.growth],
        "calibration": [
            {"low": one.low, "high": one.high, "messages": one.messages, "predicted": one.predicted, "unwanted": one.unwanted}
            for one in found.calibration
        ],
        "users": [{"user": one.user, "lessons": dict(one.lessons), "last": time(one.last) if one.last else None} for one in found.users],
    }


def words(found: Sequence[Counted]) -> WordsShape:
    """Of a word."""
    return {"words": [{"text": one.where, "messages": dict(one.counts), "part": one.part} for one in found]}


def classes(found: Mapping[str, bool]) -> ClassesShape:
    """Of all classes."""
    return {"classes": dict(found)}


def time(seconds: float) -> str:
    """A moment as RFC 3339 writes it; bounded to what has a date."""
    return datetime.fromtimestamp(min(max(seconds, 0), LATEST), UTC).isoformat(timespec="seconds")


def _words(found: Sequence[Word]) -> list[WordShape]:
    return [{"text": word.text, "part": word.part} for word in found]
