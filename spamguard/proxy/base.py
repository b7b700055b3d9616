"""The contract between doors and proxy, and recipients: their users, and their groups.

A door sees a `Proxy` and its `MailTransaction`s. A recipient whose user has taught otherwise may
get another verdict: `UserResolver` finds the user of an address, and
`group_recipients` groups recipients by decision. Both are pure. They must never leave a recipient
out or put one into two groups, treat a recipient more harshly than the mildest verdict of the
group, do more for a message with thousands of recipients than for one with `MAX_RECIPIENTS`, or ask
for a user name that nobody can have.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spamguard.config.options import Action, Policy, Rule
from spamguard.engine.policy import Decision, decide
from spamguard.records import Scan, Verdict
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import Spool
from spamguard.users import is_user_name

REFUSAL_REPLIES: Mapping[Action, Reply] = {
    Action.REJECT: Reply.from_text(550, "5.7.1 Message refused as unsolicited"),
    Action.DEFER: Reply.from_text(451, "4.7.1 Message deferred, try again later"),
}
"""The reply to the sender, for actions that refuse a message."""
NOT_JUDGED_REPLY = Reply.from_text(451, "4.3.0 Message cannot be judged now, try again later")


@dataclass(frozen=True, slots=True)
class NotScanned:
    """A message that could not be judged.

    reason: a word such as "timeout", "crashed", "no-model", "poison".
    """

    reason: str

    @property
    def settle(self) -> bool:
        """Whether the tables may be missing, which settling makes anew."""
        return self.reason == "no-model"


class MailTransaction(Protocol):
    """A mail transaction, as a door sees it: `mail`, `recipient` …, `data` at most once, `end`
    always.
    """

    async def mail(self, sender: Sender) -> Reply:
        """The reply to MAIL."""

    async def recipient(self, recipient: Recipient) -> Reply:
        """The reply to RCPT."""

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Judge the message and deliver it.

        One reply for each accepted recipient, in order, where the proxy `answers_each`; else one.
        oddities: odd bytes that the door has normalised (`DataReader`). The door closes the spool
        afterwards.
        """

    async def end(self) -> None:
        """Release everything; idempotent."""


class Proxy(Protocol):
    """What a door passes mail to."""

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data."""

    @property
    def extensions(self) -> Mapping[str, str]:
        """The next hop's 8BITMIME, SMTPUTF8 and DSN, if offered; empty before its first EHLO."""

    def message(self, client: Client) -> MailTransaction:
        """A new transaction."""


@dataclass(frozen=True, slots=True)
class RecipientGroup:
    """Recipients that get the same verdict and decision.

    indices: of the recipients, from 0, in order. personal: users among them for whom the decision
    differs from that for all people, each with the own label.
    """

    indices: Sequence[int]
    verdict: Verdict
    decision: Decision
    personal: Mapping[str, str] = field(default_factory=dict)


class _UserVerdict(NamedTuple):
    verdict: Verdict
    decision: Decision

    @property
    def group_key(self) -> tuple[str, Rule | None]:
        return self.verdict.label, self.decision.rule


def group_recipients(
    scan: Scan, users: Sequence[str], policy: Policy, *, separate_copies: bool
) -> list[RecipientGroup]:
    """The groups; the first is that of recipients judged as for all people.

    Parameters
    ----------
    users : for each recipient a user in `scan.personal`, or "".
    separate_copies : whether recipients can get different copies. Otherwise they are one group, and
        the mildest of their verdicts decides.
    """
    shared = _UserVerdict(scan.verdict, decide(scan.verdict, policy, scan.threshold))
    if not any(users):
        return [RecipientGroup(range(len(users)), shared.verdict, shared.decision)]
    verdicts = {"": shared}
    for user in filter(None, users):
        verdict = scan.personal[user]
        verdicts[user] = _UserVerdict(verdict, decide(verdict, policy, scan.threshold))
    members: dict[tuple[str, Rule | None], list[int]] = {shared.group_key: []}
    for index, user in enumerate(users):
        key = verdicts[user].group_key if separate_copies else shared.group_key
        members.setdefault(key, []).append(index)
    groups = []
    for indices in filter(None, members.values()):
        group = {users[index]: verdicts[users[index]] for index in indices}
        mildest = min(group.values(), key=lambda member: member.verdict.probability)
        if mildest.group_key == shared.group_key:
            mildest = shared
        personal = {
            user: member.verdict.label
            for user, member in group.items()
            if member.group_key != shared.group_key
        }
        groups.append(RecipientGroup(indices, mildest.verdict, mildest.decision, personal))
    return groups


# ---- users

# The first recipients of a message are judged for themselves: as many as Postfix names in one
# transaction. Each takes a fraction of a millisecond, but some 20 ms when that user's lessons are
# not at hand, and a message has seconds.
MAX_RECIPIENTS = 50


class UserResolver:
    """Resolves addresses to users.

    aliases: pairs of an address, `*@DOMAIN` or a part before the @, and a user, or "" for nobody.

    >>> resolver = UserResolver([("sales@example.org", "anna")])
    >>> list(resolver.candidates("sales@example.org"))
    ['anna']
    >>> list(resolver.candidates("Ben+news@example.org"))
    ['ben+news@example.org', 'ben@example.org', 'ben']
    """

    def __init__(self, aliases: Iterable[tuple[str, str]]) -> None:
        self._aliases = {address.lower(): user for address, user in aliases}

    def candidates(self, address: str) -> Sequence[str]:
        """Users whose mail this may be; the first that exists counts. An alias leaves no choice."""
        full = address.lower()
        local_part, at, domain = full.rpartition("@") if "@" in full else (full, "", "")
        plain = local_part.partition("+")[0] or local_part
        for name in (full, plain + at + domain, f"*@{domain}", local_part, plain):
            if name in self._aliases:
                return [user for user in (self._aliases[name],) if user]
        names = dict.fromkeys((full, plain + at + domain, plain))
        return [name for name in names if is_user_name(name)]

    def all_candidates(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Users whose mail a message to these addresses may be.

        At most three for each of the first `MAX_RECIPIENTS`.
        """
        counted = addresses[:MAX_RECIPIENTS]
        return tuple(
            dict.fromkeys(user for address in counted for user in self.candidates(address))
        )

    def resolve(self, addresses: Sequence[str], existing: Container[str]) -> list[str]:
        """For each address the user whose mail it is, among the `existing`; "" if there is none."""
        users = [
            next((user for user in self.candidates(address) if user in existing), "")
            for address in addresses[:MAX_RECIPIENTS]
        ]
        return users + [""] * (len(addresses) - len(users))

    def could_belong_to(self, address: str, user: str, existing: Container[str]) -> bool:
        """Whether mail to this address is that user's, or would be if the user existed."""
        for candidate in self.candidates(address):
            if candidate == user or candidate in existing:
                return candidate == user
        return False
