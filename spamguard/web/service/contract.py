"""What pages and API may ask of the service. Every call says who asks, and nobody is shown or changes what is not theirs.

Errors: `UsageError` (bad input, in words), `NotAllowedError` (not theirs, only for operators, or too many lessons for a day),
`NotThereError` (no such id, or not theirs: who asks cannot tell these apart), `BusyError` (too much at once, come again in a moment),
other `SpamguardError`s (trouble of ours).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spamguard.spool import Spool
from spamguard.web.service.values import (
    Considered,
    Counted,
    Found,
    HeldBack,
    Judgement,
    Known,
    Model,
    Opinion,
    Person,
    Receipt,
    Released,
    Search,
    Shown,
    Today,
    Why,
)


class Service(Protocol):
    """One for each process; every method may be called by any number of tasks at once."""

    async def judge(self, person: Person, message: Spool) -> Opinion:
        """What the filter thinks of a message."""

    async def explain(self, person: Person, message: Spool) -> Why:
        """Why it thinks so. Who is no operator is told no counts of words that hardly any lesson has: as in `words`."""

    async def learn(self, person: Person, message: Spool, label: str) -> Receipt:
        """Teach a message in the person's name (an operator's: the site's word, user "")."""

    async def forget(self, person: Person, digest: str) -> Receipt:
        """Take back what the person has said about a message, by its digest in hex; what they had said before is not restored."""

    async def preview(self, person: Person, message: Spool, label: str) -> Considered:
        """What teaching it would change, nothing is changed; and what `explain` tells. BusyError also while another is being made for
        that person."""

    async def history(self, person: Person, search: Search) -> Found:
        """Messages that passed."""

    async def judgement(self, person: Person, name: str) -> Known:
        """One of them, with its words."""

    async def passed(self, person: Person, digests: Sequence[str]) -> Mapping[str, Judgement]:
        """Of the messages of these digests, as receipts have them, those that passed and are theirs."""

    async def why(self, person: Person, name: str) -> Why:
        """Then and now, as `explain` tells it."""

    async def learn_passed(self, person: Person, name: str, label: str) -> Receipt:
        """Teach a message that passed, by its id: the stored features are what is learnt."""

    async def forget_passed(self, person: Person, name: str) -> Receipt:
        """Take that back."""

    async def undo(self, person: Person, user: str, since: float, *, dry: bool = False) -> Sequence[Receipt]:
        """Take back all that a user has said since then; who is no operator can only name themselves."""

    async def today(self, person: Person, hours: int = 24) -> Today:
        """The last hours."""

    async def model(self, person: Person) -> Model:
        """What has been learnt."""

    async def words(self, person: Person, word: str) -> Sequence[Counted]:
        """How a word counts, as all the tokens it may become; most counted first. Who is no operator is not told of words that
        hardly any message has: they may stand in other people's mail."""

    async def classes(self, person: Person) -> Mapping[str, bool]:
        """What mail may be taught as, and whether that is unwanted."""

    async def quarantine(self, person: Person, before: str = "", limit: int = 50) -> HeldBack:
        """What is held back, newest first."""

    async def held(self, person: Person, name: str) -> Shown:
        """One of them, with its header section."""

    async def release(self, person: Person, name: str) -> Released:
        """Hand it on to those who have not got it (for who is no operator only if all who wait are theirs), and learn it as ham."""

    async def delete(self, person: Person, name: str) -> None:
        """Throw it away; for operators only."""

    async def status(self, person: Person) -> Mapping[str, Any]:
        """What the daemon says of itself (`daemon.sock`) and the filter's status; for operators only."""


class Monitor(Protocol):
    """What the daemon's processes say of themselves; asked at any time, answers at once."""

    async def page(self) -> tuple[bytes, str]:
        """Metrics for Prometheus, and their content type."""

    async def wrong(self) -> list[str]:
        """What is not as it should be, a line for each thing."""
