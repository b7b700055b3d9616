"""The commands of a session that carry mail: MAIL, RCPT, DATA, and the data itself.

Must never answer 250 to the data of a message before the proxy has, and never let the client's behaviour touch a message that is
being handed on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

from spamguard.doors.smtp import dialogue
from spamguard.doors.smtp.incoming import Incoming
from spamguard.doors.smtp.session import Session
from spamguard.proxy.contract import Message
from spamguard.settings import OddBytes, Position
from spamguard.wire.commands import parse_mail, parse_rcpt
from spamguard.wire.data import DataReader
from spamguard.wire.values import Recipient, Reply, Sender, for_each

_PUT_OFF = (
    "%s: a message for several recipients, of whom this next hop takes one at a time: the others wait, for long "
    "(Postfix: spamguard_destination_recipient_limit = 1 in main.cf)"
)

_log = logging.getLogger("spamguard.doors")


class MailSession(Session):
    """A session with the commands that carry mail."""

    _sender = Sender("")
    _asked = 0  # recipients of this message
    _accepted = 0

    async def _mail(self, arg: str) -> None:
        sender = parse_mail(arg.encode("latin-1"), smtputf8=self._behind_a_server)
        refusal = sender if isinstance(sender, Reply) else self._no_room(sender)
        if refusal is None and isinstance(sender, Sender):
            await self._begin(sender)
        elif refusal is not None:
            self._answer(refusal)

    @property
    def _behind_a_server(self) -> bool:
        """Whether one has decided already which addresses it takes: behind its queue a refusal would bounce."""
        return self._terms.position is not Position.STANDALONE

    async def _begin(self, sender: Sender) -> None:
        self._message = self._terms.proxy.message(self._forwarded or self._client)
        self._idle_since = None
        reply = await self._message.mail(sender)
        if reply.positive:
            self._sender, self._asked, self._accepted = sender, 0, 0
            self._go("MAIL", reply)
        else:
            await self._forget_message()
            self._pass_back(reply)

    @property
    def _under_way(self) -> Message:
        if self._message is None:
            raise RuntimeError("no message is under way")  # the table of states does not let it come to this
        return self._message

    def _no_room(self, sender: Sender) -> Reply | None:
        """RFC 1870, section 6.1: what is announced as too big need not be sent at all."""
        size = next((int(value or 0) for keyword, value in sender.parameters if keyword == "SIZE"), 0)
        if size > self._terms.limits.message_bytes:
            return dialogue.SIZE_LIMIT
        return None if self._terms.load.room_for(max(size, 1), self._sharer) else dialogue.NO_SPACE

    async def _rcpt(self, arg: str) -> None:
        smtputf8 = self._behind_a_server or any(keyword == "SMTPUTF8" for keyword, _ in self._sender.parameters)
        recipient = parse_rcpt(arg.encode("latin-1"), smtputf8=smtputf8)
        self._asked += 1
        if isinstance(recipient, Reply):
            self._answer(recipient)
        elif self._full is not None:
            self._too_many(self._full)
        else:
            await self._add(recipient)

    async def _add(self, recipient: Recipient) -> None:
        reply = await self._under_way.recipient(recipient)
        if reply.positive:
            self._accepted += 1
            self._go("RCPT", reply)
        else:
            self._pass_back(reply)

    @property
    def _full(self) -> Reply | None:
        """Why there can be no recipient more."""
        if self._accepted and not self._terms.lmtp and self._terms.proxy.answers_each:
            return dialogue.ONE_RECIPIENT  # their replies could differ, and this client can be told only one
        return dialogue.MANY_RECIPIENTS if self._accepted >= self._terms.limits.recipients else None

    def _too_many(self, reply: Reply) -> None:
        """Clients are right to ask for some more than they get; who goes on and on is not."""
        if reply is dialogue.ONE_RECIPIENT and self._terms.position is Position.AFTER_QUEUE and self._asked == 2:
            _log.warning(_PUT_OFF, self._peer.address)
        if self._asked > 2 * self._terms.limits.recipients:
            self._answer(reply)
        else:
            self.say(reply)

    def _pass_back(self, reply: Reply) -> None:
        """The next hop has refused. A trusted peer speaks for many clients and may be wrong as often as they are."""
        if self._trusted:
            self.say(reply)
        else:
            self._answer(reply)

    async def _data(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        elif not self._terms.load.room_for(1, self._sharer):
            self._answer(dialogue.NO_SPACE)
        else:
            self.say(dialogue.GO_AHEAD)
            for reply in await self._take_message():
                self.say(reply)
            self.send()  # before anything else: what the client does not know it may send again
            await self._end_transaction()
            self._patience.renew()

    commands: ClassVar[Mapping[str, Callable[..., Awaitable[None]]]] = {
        **Session.commands,
        "MAIL": _mail,
        "RCPT": _rcpt,
        "DATA": _data,
    }

    async def _take_message(self) -> Sequence[Reply]:
        terms = self._terms
        refuse_header = terms.position is not Position.AFTER_QUEUE
        incoming = Incoming(terms.spool_directory, terms.limits, terms.load, self._sharer, refuse_header=refuse_header)
        try:
            await self._receive(incoming)
            replies = await self._hand_over(incoming)
        finally:
            incoming.close()
        count = self._accepted if terms.lmtp else 1  # RFC 2033, section 4.2: one for each accepted recipient, in order
        if len(replies) not in (1, count):
            _log.error("%s: %d replies for %d recipients", self._peer.address, len(replies), count)
            return [dialogue.CRASHED] * count
        return for_each(replies, count)

    async def _receive(self, incoming: Incoming) -> None:
        """To the end of the data, kept or not."""
        limits, refuse = self._terms.limits, self._terms.odd_bytes is OddBytes.REFUSE
        reader = DataReader(normalise=not refuse)
        began = self.loop.time()
        ends = began + limits.message_seconds
        while not reader.finished:
            if not self.lines.bytes:
                await self.more(min(limits.data_seconds, ends - self.loop.time()))
            incoming.write(reader.feed(self.lines.take()))
            if refuse and reader.oddities:
                incoming.refuse(dialogue.ODD_BYTES)
        self.lift_deadline()
        self.lines.put_back(reader.rest)
        incoming.oddities |= reader.oddities
        self._terms.received(self.loop.time() - began)

    async def _hand_over(self, incoming: Incoming) -> Sequence[Reply]:
        """No timer runs, and nothing the client does disturbs it."""
        if incoming.refusal is not None:
            self._log_refusal(incoming.refusal)
            return [incoming.refusal]
        if incoming.oddities:
            _log.info("%s: message with %s taken", self._peer.address, ", ".join(sorted(incoming.oddities)))
        try:
            return await self._under_way.data(incoming.spool, frozenset(incoming.oddities))
        except Exception:  # a fault of ours must not cost the mail  # noqa: BLE001
            _log.exception("%s: a fault in handing on a message", self._peer.address)
            return [dialogue.CRASHED]

    def _log_refusal(self, refusal: Reply) -> None:
        """Whose message that was: nobody behind the door hears of it."""
        client, text = (self._forwarded or self._client).address, refusal.lines[0].decode("ascii")
        told = (self._peer.address, client, self._sender.address, self._accepted, text)
        _log.info("%s: message refused: client=%s from=<%s> recipients=%d: %s", *told)
