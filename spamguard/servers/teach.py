"""Whose lesson it is that a program left in the spool, and lessons by mail that is forwarded.

A lesson in the spool belongs to the account that owns its file; only trusted accounts, such as one
that all mail belongs to, may name another user. Mail from known senders to the addresses that teach
becomes lessons, and is not delivered; any other mail goes its usual way.

Must never learn anything itself, say yes before a lesson is on the disk, learn from an unknown
sender, or accept other recipients beside an address that teaches.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from spamguard.aio import run_in_thread
from spamguard.config.options import Listener, Position, TeachByMail, TeachingUser
from spamguard.learning.lessons import TrainingIntake, TrainingOutcome
from spamguard.log import WarnOnce, quote_value
from spamguard.mail.message import extract_attached
from spamguard.proxy.transaction import FilterProxy, FilterTransaction
from spamguard.smtp.envelope import Client, Networks, Recipient, Replies, Reply, Sender
from spamguard.storage import Spool
from spamguard.users import LessonHeader, Origin, is_user_name

_log = logging.getLogger("spamguard.teaching")

# ---- lessons in the spool


class TrainingAccounts:
    """Accounts of this machine, and the users whose lessons they bring.

    Those `for_others` may name another user; root and our own always may.
    """

    def __init__(self, for_others: Iterable[str]) -> None:
        self._trusted = {0, os.getuid()}
        self._warnings = WarnOnce(_log)
        for name in for_others:
            with suppress(KeyError):  # not on this machine
                self._trusted.add(pwd.getpwnam(name).pw_uid)

    def resolve_user(self, uid: int, named_user: str) -> str:
        """The user whose lesson it is; the client may name one, or ""."""
        if named_user and uid in self._trusted:
            return named_user
        try:
            account = pwd.getpwuid(uid).pw_name
        except KeyError:
            account = ""
        user = account if is_user_name(account) else f"#{uid}"
        if named_user not in ("", user):
            self._warnings.warn(
                uid,
                "%s leaves lessons of others, such as %s: "
                "they count as its own, unless for_others names it",
                user,
                ascii(named_user),
            )
        return user


# ---- lessons by mail

_ACCEPTED = Reply.from_text(250, "2.1.5 Taken as a lesson")
_ONE_ADDRESS_ONLY = Reply.from_text(
    452, "4.5.3 One address that teaches, and no other, in one transaction"
)
_NO_MESSAGE = Reply.from_text(550, "5.6.0 No message in it: forward the original as an attachment")


class ForwardTrainingProxy:
    """A proxy in front of another one."""

    def __init__(
        self, proxy: FilterProxy, listener: Listener, teach: TeachByMail, intake: TrainingIntake
    ) -> None:
        self._proxy = proxy
        self._listener = listener
        self._intake = intake
        self._teach = teach
        self._classes = {address.lower(): label for address, label in teach.addresses}
        self._senders = frozenset(sender.lower() for sender in teach.senders)
        self._networks = Networks(teach.clients)

    @property
    def answers_each(self) -> bool:
        return self._proxy.answers_each

    @property
    def extensions(self) -> Mapping[str, str]:
        return self._proxy.extensions

    def message(self, client: Client) -> ForwardTrainingTransaction:
        return ForwardTrainingTransaction(self, self._proxy.message(client), client)

    def training_label(self, sender: Sender, recipient: Recipient, client: Client) -> str:
        """The class that mail to this recipient teaches; "" for usual mail."""
        label = self._classes.get(recipient.address.lower(), "")
        if not label:
            return ""
        name = sender.address.lower()
        patterns = (name, f"*@{name.rpartition('@')[2]}")
        is_known = "@" in name and is_user_name(name) and not self._senders.isdisjoint(patterns)
        # Behind another server only the client that it names counts, not the server itself.
        address = client.address
        if client.source == "LOCAL" and client.forwarded:
            address = "127.0.0.1"
        is_named = client.forwarded or self._listener.position is Position.STANDALONE
        if is_known and is_named and address and address in self._networks:
            return label
        _log.info(
            "mail to %s from sender=<%s> client=%s is no lesson: not known",
            recipient.address,
            sender.address,
            client.address or "-",
        )
        return ""

    def submit(self, message: Spool, label: str, sender: Sender) -> int:
        """Submit the attached messages; how many were accepted.

        Raises OSError if not all of them are in the queue.
        """
        user = sender.address.lower()
        if self._teach.user is TeachingUser.LOCAL_PART:
            user = user.rpartition("@")[0]
        outcomes = [
            self._intake.submit(LessonHeader(label, len(each), user), [each], Origin.MAIL)
            for each in extract_attached(message.read())
        ]
        accepted = outcomes.count(TrainingOutcome.ACCEPTED)
        _log.info(
            "lessons by mail user=%s class=%s messages=%d", quote_value(user), label, accepted
        )
        return accepted


class ForwardTrainingTransaction:
    """A transaction: a lesson if its first recipient teaches, else one of the other proxy."""

    def __init__(
        self, proxy: ForwardTrainingProxy, inner: FilterTransaction, client: Client
    ) -> None:
        self._proxy = proxy
        self._inner = inner
        self._client = client
        self._sender = Sender("")
        self._label = ""
        self._has_other_recipients = False

    async def mail(self, sender: Sender) -> Reply:
        """The next hop's reply: a sender that it refuses teaches nothing either."""
        self._sender = sender
        return await self._inner.mail(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        """Our reply for an address that teaches, the next hop's for all others."""
        if self._label:
            return _ONE_ADDRESS_ONLY
        label = self._proxy.training_label(self._sender, recipient, self._client)
        if not label:
            reply = await self._inner.recipient(recipient)
            self._has_other_recipients |= reply.is_positive
            return reply
        if self._has_other_recipients:
            return _ONE_ADDRESS_ONLY
        self._label = label
        return _ACCEPTED

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """A yes once all of it is on the disk."""
        if not self._label:
            return await self._inner.data(message, oddities)
        try:
            count = await run_in_thread(self._proxy.submit, message, self._label, self._sender)
        except OSError as error:
            _log.error("a lesson that came by mail cannot be kept: %s", error)
            return [Replies.LOCAL_ERROR]
        return [Reply.from_text(250, f"2.0.0 Taken: {count} to learn")] if count else [_NO_MESSAGE]

    async def end(self) -> None:
        await self._inner.end()


Proxy = FilterProxy | ForwardTrainingProxy
"""What a door passes mail to."""
MailTransaction = FilterTransaction | ForwardTrainingTransaction
