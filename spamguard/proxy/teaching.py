"""Mail to the addresses that teach: what known senders forward there becomes lessons instead of being handed on.

Must never take a lesson from somebody unknown, never say yes before the lesson is on the disk, never take such mail for others beside
it, and never touch any other mail: that goes the way it would go without this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import ip_address, ip_network

from spamguard.log import word
from spamguard.mail.inline import inline
from spamguard.mail.reports import attached
from spamguard.proxy.contract import Message, Proxy
from spamguard.relay.threads import finished
from spamguard.settings import Listener, Position, TeachByMail, TeachingUser
from spamguard.spool import Spool
from spamguard.teaching import lesson
from spamguard.teaching.lesson import MAILED, Header, is_user
from spamguard.teaching.queue import Queue
from spamguard.wire.values import Client, Recipient, Reply, Sender

_TAKEN = Reply.of(250, "2.1.5 Taken as a lesson")
_ALONE = Reply.of(452, "4.5.3 One address that teaches, and no other, in one transaction")
_NOTHING = Reply.of(550, "5.6.0 No message in it: forward the original as an attachment")
_LATER = Reply.of(451, "4.3.0 Local trouble, try again later")

_log = logging.getLogger("spamguard.teaching")


class TeachingProxy:
    """A proxy (`contract.Proxy`) before another one. queue: where lessons wait."""

    def __init__(self, proxy: Proxy, listener: Listener, teach: TeachByMail, queue: Queue) -> None:
        self._proxy = proxy
        self._listener = listener
        self._queue = queue
        self._teach = teach
        self._classes = {address.lower(): label for address, label in teach.addresses}
        self._senders = frozenset(sender.lower() for sender in teach.senders)
        self._networks = [ip_network(network) for network in teach.clients]

    @property
    def answers_each(self) -> bool:
        """As the other one."""
        return self._proxy.answers_each

    @property
    def extensions(self) -> Mapping[str, str]:
        """As the other one."""
        return self._proxy.extensions

    def message(self, client: Client) -> TeachingMessage:
        """A new transaction."""
        return TeachingMessage(self, self._proxy.message(client), client)

    def label(self, sender: Sender, recipient: Recipient, client: Client) -> str:
        """The class that mail to this recipient teaches, "" if it is mail as any other."""
        label = self._classes.get(recipient.address.lower(), "")
        if not label or (self._known(sender) and self._near(client)):
            return label
        _log.info("mail to %s from sender=<%s> client=%s is no lesson: not known", recipient.address, sender.address, client.address or "-")
        return ""

    def keep(self, message: Spool, label: str, sender: Sender) -> int:
        """Put what is attached, else what was forwarded as text, into the queue; how many messages. OSError: not all of them are there."""
        user = self._user(sender)
        raw = message.read()
        found = [one for one in attached(raw) or [inline(raw) or b""] if 0 < len(one) <= lesson.MOST_BYTES]
        for one in found:
            self._queue.put(Header(label, len(one), user), MAILED, [one])
        _log.info("lessons by mail user=%s class=%s messages=%d", word(user), label, len(found))
        return len(found)

    def _known(self, sender: Sender) -> bool:
        address = sender.address.lower()
        return "@" in address and is_user(address) and not self._senders.isdisjoint((address, f"*@{address.rpartition('@')[2]}"))

    def _near(self, client: Client) -> bool:
        """Whether a client is in one of the networks. Behind another server only what that tells of it counts, not where that is."""
        if client.source.upper() == "LOCAL" and client.forwarded:
            address = "127.0.0.1"
        elif client.forwarded or self._listener.position is Position.STANDALONE:
            address = client.address
        else:
            return False
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)

    def _user(self, sender: Sender) -> str:
        address = sender.address.lower()
        return address.rpartition("@")[0] if self._teach.user is TeachingUser.LOCAL_PART else address


class TeachingMessage:
    """One transaction (`contract.Message`): a lesson from its first recipient on, or as the other proxy's."""

    def __init__(self, proxy: TeachingProxy, inner: Message, client: Client) -> None:
        self._proxy = proxy
        self._inner = inner
        self._client = client
        self._sender = Sender("")
        self._label = ""
        self._others = False

    async def mail(self, sender: Sender) -> Reply:
        """The next hop's answer: whom it refuses teaches nothing either."""
        self._sender = sender
        return await self._inner.mail(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        """Ours for an address that teaches, the next hop's for all others."""
        if self._label:
            return _ALONE
        label = self._proxy.label(self._sender, recipient, self._client)
        if not label:
            reply = await self._inner.recipient(recipient)
            self._others = self._others or reply.positive
            return reply
        if self._others:
            return _ALONE
        self._label = label
        return _TAKEN

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Yes once all of it is on the disk."""
        if not self._label:
            return await self._inner.data(message, oddities)
        try:
            count = await finished(partial(self._proxy.keep, message, self._label, self._sender))
        except OSError as error:
            _log.error("a lesson that came by mail cannot be kept: %s", error)
            return [_LATER]
        except Exception:  # a fault of ours must not cost the mail  # noqa: BLE001
            _log.exception("a fault in taking a lesson that came by mail")
            return [_LATER]
        return [Reply.of(250, f"2.0.0 Taken: {count} to learn")] if count else [_NOTHING]

    async def end(self) -> None:
        """Give everything back."""
        await self._inner.end()
