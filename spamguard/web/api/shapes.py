"""How the layouts of the API are made from what the service says: values in, values out. mypy sees to it that no key is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from spamguard import explained
from spamguard.history import Row
from spamguard.policy import missing
from spamguard.records import LATEST, Explanation, Verdict, Word
from spamguard.web.api.layouts import (
    ClassesShape,
    ExplanationShape,
    HeldShape,
    HistoryShape,
    HourShape,
    JudgementShape,
    KnownShape,
    ModelShape,
    OpinionShape,
    PassedShape,
    PreviewShape,
    QuarantineShape,
    ReceiptShape,
    ReleasedShape,
    ReplyShape,
    TodayShape,
    UndoneShape,
    VerdictShape,
    WhyShape,
    WordShape,
    WordsShape,
    WrongShape,
)
from spamguard.web.service.values import (
    Counted,
    Found,
    Held,
    HeldBack,
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
        "words": told_words(found.words),
    }


def passed(found: Judgement | Row) -> PassedShape:
    """Of what became of a message."""
    return {
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
    }


def judgement(found: Judgement) -> JudgementShape:
    """Of a message that passed."""
    return {**passed(found), "id": found.id, "taught": found.taught, "own": found.own, "can_teach": found.can_teach}


def known(found: Judgement) -> KnownShape:
    """The same with words."""
    return {**judgement(found), "words": told_words(found.words)}


def history(found: Found) -> HistoryShape:
    """A page of them."""
    return {"judgements": [judgement(one) for one in found.judgements], "following": found.following}


def explanation(why: Explanation, words: int = WORDS) -> ExplanationShape:
    """Parts that sum to the score, as `spamguard explain --json` tells them too. words: so many each way."""
    shown, other = explained.strongest(why, words)
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


def held_back(found: HeldBack) -> QuarantineShape:
    """Of a page of these."""
    return {"messages": [held(one) for one in found.messages], "following": found.following}


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
        "missing": missing(found.classes, found.unwanted),
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


def told_words(found: Sequence[Word]) -> list[WordShape]:
    """Of words that weighed in a verdict."""
    return [{"text": word.text, "part": word.part} for word in found]
