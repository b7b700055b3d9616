"""What the API answers, as JSON: the layout of each value. The description of the API is made from these (`schema`).

Names are those of the commands' --json, where they tell the same. Times are UTC (RFC 3339).
"""

from __future__ import annotations

from typing import TypedDict


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


class PassedShape(_Envelope):
    """What became of a message, as `spamguard explain --json ID` tells it too."""

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


class JudgementShape(PassedShape):
    """A message that passed. label, probability, log_odds: what was said then, personal: to whom something else. taught, own: what people
    and you say. next_hop: its answer. can_teach: its features are kept. to: of others than operators their own addresses only."""

    id: str
    taught: str
    own: str
    can_teach: bool


class KnownShape(JudgementShape):
    """The same with its strongest words."""

    words: list[WordShape]


class HistoryShape(TypedDict):
    """Newest first. following: `before` of the next page, "" when this is the last: a page may not be full, or empty, all the same."""

    judgements: list[JudgementShape]
    following: str


class ShareShape(TypedDict):
    """score: an expert's log-odds; share: what it adds to the sum."""

    score: float
    share: float


class ClueShape(TypedDict):
    """messages: taught ones that have the word, by class; of others than operators empty where they are few."""

    text: str
    part: float
    messages: dict[str, int]


class ExplanationShape(VerdictShape):
    """prior and shares of the experts sum to `sum`; so do words, other_words, traits, numbers, biases and prior. flip: how many of the
    strongest words would have to go for another label, null: all together do not do it, or too little has been taught for any."""

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
    """Newest first. following: as of the history."""

    messages: list[HeldShape]
    following: str


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
    """What has been learnt. missing: what keeps much mail unsure, or empty. tables: by set of tokens."""

    classes: dict[str, ClassShape]
    missing: str
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
