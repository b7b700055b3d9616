"""What the service tells and is told. Data only.

Texts are as strangers wrote them, made printable: whoever shows them must still escape them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spamguard.records import Explanation, Verdict, Word


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks. name: as `watch` names users, or an operator's own. operator: sees and teaches everything; others only their own mail."""

    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """What of the history is asked for; everything empty is not asked for. Texts are found anywhere in a field, whatever their case.

    label: a class, "unsure" or "not-scanned"; "spam" is the class alone. taught: a class, or "any": somebody has said so.
    since, until: seconds since 1970. before: a row's id, for the next page. limit: at most `MOST`.
    """

    sender: str = ""
    recipient: str = ""
    subject: str = ""
    label: str = ""
    taught: str = ""
    since: float = 0.0
    until: float = 0.0
    before: str = ""
    limit: int = 50


MOST = 500
"""Rows of one page."""
MOST_HOURS = 31 * 24
"""That numbers are told of."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One message that passed. label, probability: what was said then. taught: the class that holds for it now as everybody's votes
    have it, "" for none; own: what the person who asks has said. recipients: of an operator all, of others their own addresses only.
    words: strongest first; only where one judgement is asked for. can_teach: its features are there and of this version.
    """

    id: str
    time: float
    listener: str
    client: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    size: int
    label: str
    probability: float
    log_odds: float
    action: str
    reply: str
    taught: str = ""
    own: str = ""
    words: tuple[Word, ...] = ()
    can_teach: bool = True
    personal: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of the history, newest first. following: `Search.before` of the next page, "" when this is the last. A page that is not
    full, or is empty, with more to follow was not looked for any longer."""

    judgements: Sequence[Judgement]
    following: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """then: what was said when it passed, None for a message that was handed over now. now: what would be said now."""

    then: Judgement | None
    now: Explanation


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is made of a message that was handed over. digest: hex. taught, own: as in `Judgement`. words: strongest first."""

    verdict: Verdict
    digest: str
    taught: str
    own: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What teaching has done. digest: hex; with it the lesson is forgotten. label: the class, "" when taken back. changed: False if it
    was so already. was: what the person had said before. now: what the message would be called now."""

    digest: str
    label: str
    changed: bool
    was: str
    now: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """A message of the last ones that a lesson would change. before, after: what it is and would be called."""

    judgement: Judgement
    before: Verdict
    after: Verdict


@dataclass(frozen=True, slots=True)
class Preview:
    """What teaching a message would do, before it is done. before, after: for itself. looked_at: how many of the last messages were."""

    digest: str
    before: Verdict
    after: Verdict
    looked_at: int
    flips: Sequence[Flip]


@dataclass(frozen=True, slots=True)
class Hour:
    """start: seconds since 1970. mail: by label. lessons: votes cast. corrections: of these, against what had been said of the mail."""

    start: float
    mail: Mapping[str, int]
    lessons: int
    corrections: int


@dataclass(frozen=True, slots=True)
class Today:
    """hours: oldest first, without gaps. wrong: of the mail that passed in this time and that people have spoken about: by what we said and
    what they say, {(label, class): number}. passed: messages in all."""

    hours: Sequence[Hour]
    passed: int
    lessons: int
    wrong: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Held:
    """A message in quarantine. recipients: as in `Judgement`. waiting: those who have not got it. subject: if its header tells."""

    id: str
    time: float
    sender: str
    recipients: tuple[str, ...]
    waiting: tuple[str, ...]
    subject: str
    size: int
    reason: str
    released: bool


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A page of the quarantine, newest first. following: as in `Found`."""

    messages: Sequence[Held]
    following: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """replies: the next hop's, by recipient. complete: everybody has it now. taught: it was learnt as ham too."""

    id: str
    replies: Mapping[str, str]
    complete: bool
    taught: bool


@dataclass(frozen=True, slots=True)
class UserLessons:
    """What one user has taught: lessons by class that stand now; last: when, seconds since 1970, 0 for never."""

    user: str
    lessons: Mapping[str, int]
    last: float


@dataclass(frozen=True, slots=True)
class Bin:
    """Of what was predicted between low and high: how many messages people have spoken about, their mean prediction, share of unwanted."""

    low: float
    high: float
    messages: int
    predicted: float
    unwanted: float


@dataclass(frozen=True, slots=True)
class Model:
    """classes: lessons of each; unwanted: which of them are. load: share of buckets in use, by token set. growth: by day (seconds
    since 1970), lessons in all. calibration: first-time predictions against what people said. users: of an operator all."""

    classes: Mapping[str, int]
    unwanted: frozenset[str]
    load: Mapping[str, float]
    vocabulary: Mapping[str, int]
    events: int
    unsettled: int
    extractor: int
    fingerprint: str
    growth: Sequence[tuple[float, int]]
    calibration: Sequence[Bin]
    users: Sequence[UserLessons]


@dataclass(frozen=True, slots=True)
class Counted:
    """One token that a word becomes. where: as explanations name it, such as "subject:viagra". part: what it adds, alone, to the log-odds
    of spam."""

    where: str
    counts: Mapping[str, int]
    part: float
