"""What the service tells and is told. Data only. The API says it as it stands here (`api.schema`): names are those of the commands'
--json where they tell the same, and a docstring is what its description says.

Texts are as strangers wrote them, made printable: whoever shows them must still escape them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from spamguard.records import Explanation, Verdict

NAME = "name"
"""Of a field, in its metadata: what the API calls it, where Python has no such name or another one is better here."""
Moment = Annotated[float, "moment"]
"""Seconds since 1970; the API writes it as RFC 3339 does, in UTC."""
Day = Annotated[float, "day"]
"""The same of the beginning of a day, which is all that the API tells."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks. name: as `watch` names users, or an operator's own. operator: sees and teaches everything; others only their own mail."""

    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """What of the history is asked for; everything empty is not asked for. Texts are found anywhere in a field, whatever their case.

    sender: in either of a judgement's from and author. label: a class, "unsure" or "not-scanned"; "spam" is the class alone.
    taught: a class, or "any": somebody has said so. since, until: seconds since 1970. before: a row's id, for the next page.
    limit: at most `MOST`.
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
class WordPart:
    """part: what a word adds to the log-odds of being unwanted."""

    text: str
    part: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message, as `spamguard explain --json ID` tells it too. label, probability, log_odds: what was said then,
    personal: to whom something else. next_hop: its answer. from: of the envelope. author: the header's From, in which senders write what
    they like: "Name <address>" or the address alone, both cut where they are long, "" where it is not known. to: of others than operators
    their own addresses only."""

    time: Moment
    listener: str
    client: str
    sender: str = field(metadata={NAME: "from"})
    author: str
    recipients: tuple[str, ...] = field(metadata={NAME: "to"})
    subject: str
    size: int
    label: str
    probability: float
    log_odds: float
    personal: Mapping[str, str]
    action: str
    reply: str = field(metadata={NAME: "next_hop"})


@dataclass(frozen=True, slots=True)
class Judgement(Outcome):
    """A message that passed. taught: the class that holds for it now as everybody's votes have it, "" for none; own: what the person who
    asks has said. can_teach: its features are there and of this version. held: it waits in the quarantine."""

    id: str
    taught: str
    own: str
    can_teach: bool
    held: bool


@dataclass(frozen=True, slots=True)
class Known(Judgement):
    """The same with its words, strongest first."""

    words: Sequence[WordPart]


@dataclass(frozen=True, slots=True)
class Found:
    """A page of the history, newest first. following: `before` of the next page, "" when this is the last. A page that is not full, or is
    empty, with more to follow was not looked for any longer."""

    judgements: Sequence[Judgement]
    following: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """then: what was said when it passed, None for a message that was handed over now. now: what would be said now."""

    then: Known | None
    now: Explanation


@dataclass(frozen=True, slots=True)
class Opinion(Verdict):
    """What is made of a message that was handed over. digest: names it, for forget. taught, own: as of a judgement. words: strongest
    first."""

    digest: str
    taught: str
    own: str
    words: Sequence[WordPart]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What teaching has done. digest: with it the lesson is forgotten. label: the class, "" when taken back. changed: false if it was so
    already. was: what the person had said before. now: what the message would be called now."""

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
class Considered:
    """All that somebody wants to know before teaching a message. why: it is called so now. own: what they have said of it."""

    preview: Preview
    why: Explanation
    own: str


@dataclass(frozen=True, slots=True)
class Hour:
    """mail: messages by label. lessons: votes cast. corrections: of these, against what had been said of the mail."""

    start: Moment
    mail: Mapping[str, int]
    lessons: int
    corrections: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """said: our label; taught: what people say; which may be the same."""

    said: str
    taught: str
    messages: int


@dataclass(frozen=True, slots=True)
class Today:
    """hours: oldest first, without gaps. passed: messages in all. wrong: of those that people have spoken about, agreement included."""

    hours: Sequence[Hour]
    passed: int
    lessons: int
    wrong: Sequence[Wrong]


@dataclass(frozen=True, slots=True)
class Held:
    """A message in quarantine. from, author, to: as of a judgement. waiting: those who have not got it. subject: if its header tells."""

    id: str
    time: Moment
    sender: str = field(metadata={NAME: "from"})
    author: str
    recipients: tuple[str, ...] = field(metadata={NAME: "to"})
    waiting: tuple[str, ...]
    subject: str
    size: int
    reason: str
    released: bool


@dataclass(frozen=True, slots=True)
class Shown(Held):
    """The same with its header section; its lines end in LF."""

    header: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A page of the quarantine, newest first. following: as of the history."""

    messages: Sequence[Held]
    following: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the next hop has answered for a recipient."""

    address: str
    reply: str


@dataclass(frozen=True, slots=True)
class Released:
    """released: everybody has it now. taught: it was learnt as ham too."""

    id: str
    recipients: Sequence[Reply]
    released: bool
    taught: bool


@dataclass(frozen=True, slots=True)
class Class:
    """messages: lessons."""

    messages: int
    unwanted: bool


@dataclass(frozen=True, slots=True)
class Table:
    """used: buckets in use, load: their share."""

    used: int
    load: float


@dataclass(frozen=True, slots=True)
class Growth:
    """lessons: in all, at the end of that day."""

    day: Day
    lessons: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Of what was predicted between low and high: messages people have spoken about, mean prediction, share of unwanted."""

    low: float
    high: float
    messages: int
    predicted: float
    unwanted: float


@dataclass(frozen=True, slots=True)
class User:
    """What one user has taught: lessons by class that stand now. last: when they last taught, None for never."""

    user: str
    lessons: Mapping[str, int]
    last: Moment | None


@dataclass(frozen=True, slots=True)
class Model:
    """What has been learnt. missing: what keeps much mail unsure, or empty. tables: by set of tokens. key: its fingerprint. calibration:
    first-time predictions against what people said. users: of an operator all."""

    classes: Mapping[str, Class]
    missing: str
    tables: Mapping[str, Table]
    events: int
    unsettled: int
    extractor: int
    key: str
    growth: Sequence[Growth]
    calibration: Sequence[Bin]
    users: Sequence[User]


@dataclass(frozen=True, slots=True)
class Counted:
    """One token that a word becomes. text: as explanations name it, such as "subject:viagra". messages: taught ones that have it, by
    class. part: what it adds, alone, to the log-odds of spam."""

    text: str
    messages: Mapping[str, int]
    part: float
