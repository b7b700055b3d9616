# ruff: noqa: N802  # aiosmtpd calls commands so
"""The commands of one session, SMTP or LMTP: what each does, and what it is answered.

Must never answer 250 to the data of a message before the proxy has; never give a fault of ours a permanent reply or its own
words; and never take a byte of a command for what it was not checked to be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from ssl import SSLContext

from spamguard.doors.smtp import dialogue, xclient
from spamguard.doors.smtp.connection import Connection, Drained, Gone, Late, Leaving
from spamguard.doors.smtp.dialogue import State
from spamguard.doors.smtp.incoming import Incoming
from spamguard.doors.smtp.limits import Load, Networks, Patience
from spamguard.proxy.contract import Message, Proxy
from spamguard.settings import DoorLimits, OddBytes, Position
from spamguard.wire.attributes import parse_attributes
from spamguard.wire.commands import parse_mail, parse_rcpt
from spamguard.wire.data import DataReader
from spamguard.wire.values import Client, Recipient, Reply, Sender

_TURN = 5  # commands in a row before others get theirs: a round of 50 that flood took 4 ms, with 20 it took 32

_log = logging.getLogger("spamguard.doors")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all sessions of a door. lmtp: which of the two protocols. position: where the listener sits."""

    proxy: Proxy
    lmtp: bool
    hostname: str
    limits: DoorLimits
    load: Load
    odd_bytes: OddBytes
    position: Position
    clients: Networks
    trusted: Networks
    tls: SSLContext | None
    spool_directory: Path


class Session(Connection):
    """One client. address, port: of the connection itself."""

    def __init__(self, terms: Terms, loop: asyncio.AbstractEventLoop, scratch: memoryview, address: str, port: str) -> None:
        super().__init__(loop, scratch, terms.limits.command_seconds)
        self._terms = terms
        self._state = State.GREETED
        self._peer = Client(address=address, port=port, peer=address)
        self._client = self._peer
        self._forwarded: Client | None = None
        self._trusted = address in terms.trusted
        self._patience = Patience(terms.limits)
        self._message: Message | None = None
        self._sender = Sender("")
        self._asked = 0  # recipients of this message
        self._accepted = 0
        self._over = False
        self._sending = False  # whether the client may be about to send more when we end the session
        self._turns = 0

    # The session as a whole.

    async def run(self) -> None:
        """From greeting to end, whatever that is."""
        refused = self._terms.load.enter(self._peer.address)
        try:
            await self._serve(refused)
        except Gone:
            pass
        except Late:
            self._end_with(dialogue.TIMED_OUT)
        except (Drained, asyncio.CancelledError):
            self.say(dialogue.SHUTTING_DOWN)
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in this session", self._peer.address)
            self.say(dialogue.CRASHED)
        finally:
            self._terms.load.leave(self._peer.address)
            self.send()
            await self._forget_message()
            await self.close(hear_out=self._sending)

    async def _serve(self, refused: Reply | None) -> None:
        if self._peer.address not in self._terms.clients:
            refused = dialogue.NOT_A_CLIENT
        self.say(refused or self._greeting())
        while refused is None and not self._over:
            try:
                verb, argument = dialogue.split_line(await self._next_line())
            except dialogue.BadLineError:
                self._answer(dialogue.BAD_LINE)
            else:
                await self._obey(verb, argument)
            if self._patience.lost and not self._over:
                self._end_with(dialogue.IMPATIENT)

    def _greeting(self) -> Reply:
        return Reply.of(220, f"{self._terms.hostname} {'LMTP' if self._terms.lmtp else 'ESMTP'}")

    async def _next_line(self) -> bytes:
        await self._take_turns()
        seconds: float | None = self._terms.limits.command_seconds
        while (line := self.lines.next()) is None:
            await self.more(seconds, leave=self._message is None)
            self._turns = 0
            seconds = None  # for the whole line, however slowly it comes in
        self.stop_timer()
        return line

    async def _take_turns(self) -> None:
        await self.make_room()
        if self.draining and self._message is None:
            raise Drained
        self._turns += 1
        if self._turns >= _TURN:
            self._turns = 0
            await asyncio.sleep(0)

    async def _obey(self, verb: str, argument: str) -> None:
        refusal = dialogue.refusal(self._state, verb, lmtp=self._terms.lmtp)
        if refusal is not None:
            self._answer(refusal)
            return
        if verb in dialogue.IDLE_VERBS:
            self._patience.idle()
        try:
            await _COMMANDS[verb](self, argument)
        except Leaving:
            raise
        except Exception:  # what is behind the door must not end the session  # noqa: BLE001
            _log.exception("%s: a fault at %s", self._peer.address, verb)
            await self._end_transaction()
            self.say(dialogue.CRASHED)

    def _answer(self, reply: Reply) -> None:
        """Say what came of a command of the client's; its mistakes are counted."""
        if not reply.positive:
            self._patience.wrong()
        self.say(reply)

    def _go(self, verb: str, reply: Reply = dialogue.OK) -> None:
        """The command has succeeded."""
        self._state = dialogue.NEXT[self._state, verb]
        self.say(reply)

    def _end_with(self, reply: Reply) -> None:
        self.say(reply)
        self._over = True
        self._sending = reply is not dialogue.BYE

    # Commands that are about the session.

    async def smtp_HELO(self, hostname: str) -> None:
        await self._hello("HELO", hostname, "SMTP", ())

    async def smtp_EHLO(self, hostname: str) -> None:
        await self._hello("EHLO", hostname, "ESMTPS" if self.secure else "ESMTP", self._features())

    async def smtp_LHLO(self, hostname: str) -> None:
        await self._hello("LHLO", hostname, "LMTPS" if self.secure else "LMTP", self._features())

    async def _hello(self, verb: str, argument: str, protocol: str, features: Sequence[str]) -> None:
        name = dialogue.hello_name(argument)
        if name is None:
            self._answer(dialogue.BAD_ARGUMENT)
            return
        await self._end_transaction()
        self._client = replace(self._client, helo=name, protocol=protocol)
        self._go(verb, dialogue.hello_reply(self._terms.hostname, features))

    def _features(self) -> list[str]:
        """What EHLO announces (RFC 5321, section 4.1.1.1); of the next hop's extensions what it offers at this moment."""
        features = ["PIPELINING", f"SIZE {self._terms.limits.message_bytes}", "ENHANCEDSTATUSCODES"]
        if self._terms.tls is not None and not self.secure:
            features.append("STARTTLS")
        features += [f"{keyword} {value}".strip() for keyword, value in self._terms.proxy.extensions.items()]
        if self._trusted:
            features += [xclient.XFORWARD_FEATURE, xclient.XCLIENT_FEATURE]
        return features

    async def smtp_NOOP(self, arg: str) -> None:  # noqa: ARG002
        self.say(dialogue.OK)

    async def smtp_HELP(self, arg: str) -> None:  # noqa: ARG002
        self.say(dialogue.HELP_LMTP if self._terms.lmtp else dialogue.HELP)

    async def smtp_VRFY(self, arg: str) -> None:
        self._answer(dialogue.VRFY if arg else dialogue.BAD_ARGUMENT)

    async def smtp_RSET(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            await self._end_transaction()
            self.say(dialogue.OK)

    async def smtp_QUIT(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            self._end_with(dialogue.BYE)

    async def smtp_STARTTLS(self, arg: str) -> None:
        if self._terms.tls is None or self.secure:
            self._answer(dialogue.NOT_IMPLEMENTED)
        elif arg:
            self._answer(dialogue.BAD_ARGUMENT)
        elif self.lines.bytes:
            self._end_with(dialogue.AFTER_STARTTLS)
        else:
            self.say(dialogue.START_TLS)
            await self.encrypt(self._terms.tls)
            self._start_again(self._peer)

    async def smtp_XFORWARD(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._answer(attributes)
        elif (client := xclient.forwarded(self._peer.address, self._forwarded, attributes)) is None:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            self._forwarded = client
            self.say(dialogue.OK)

    async def smtp_XCLIENT(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._answer(attributes)
        elif (client := xclient.overridden(self._client, attributes)) is None:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            self._start_again(client)
            self.say(self._greeting())  # as Postfix does

    def _attributes(self, arg: str) -> dict[str, str] | Reply:
        return parse_attributes(arg.encode("latin-1")) if self._trusted else dialogue.NOT_ALLOWED

    def _start_again(self, client: Client) -> None:
        self._client = client
        self._forwarded = None
        self._state = State.GREETED

    # Commands that are about a message.

    async def smtp_MAIL(self, arg: str) -> None:
        sender = parse_mail(arg.encode("latin-1"))
        refusal = sender if isinstance(sender, Reply) else self._no_room(sender)
        if refusal is None and isinstance(sender, Sender):
            await self._begin(sender)
        elif refusal is not None:
            self._answer(refusal)

    async def _begin(self, sender: Sender) -> None:
        self._message = self._terms.proxy.message(self._forwarded or self._client)
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
        return None if self._terms.load.room_for(max(size, 1)) else dialogue.NO_SPACE

    async def smtp_RCPT(self, arg: str) -> None:
        smtputf8 = any(keyword == "SMTPUTF8" for keyword, _ in self._sender.parameters)
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

    async def smtp_DATA(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        elif not self._terms.load.room_for(1):
            self._answer(dialogue.NO_SPACE)
        else:
            self.say(dialogue.GO_AHEAD)
            for reply in await self._take_message():
                self.say(reply)
            self.send()  # before anything else: what the client does not know it may send again
            await self._end_transaction()
            self._patience.renew()

    async def _take_message(self) -> Sequence[Reply]:
        terms = self._terms
        incoming = Incoming(terms.spool_directory, terms.limits, terms.load, refuse_header=terms.position is not Position.AFTER_QUEUE)
        try:
            await self._receive(incoming)
            replies = await self._hand_over(incoming)
        finally:
            incoming.close()
        count = self._accepted if terms.lmtp else 1  # RFC 2033, section 4.2: one for each accepted recipient, in order
        if len(replies) not in (1, count):
            _log.error("%s: %d replies for %d recipients", self._peer.address, len(replies), count)
            return [dialogue.CRASHED] * count
        return replies if len(replies) == count else [*replies] * count

    async def _receive(self, incoming: Incoming) -> None:
        """To the end of the data, kept or not."""
        limits, refuse = self._terms.limits, self._terms.odd_bytes is OddBytes.REFUSE
        reader = DataReader(normalise=not refuse)
        ends = self.loop.time() + limits.message_seconds
        while not reader.finished:
            if not self.lines.bytes:
                await self.more(min(limits.data_seconds, ends - self.loop.time()))
            incoming.write(reader.feed(self.lines.take()))
            if refuse and reader.oddities:
                incoming.refuse(dialogue.ODD_BYTES)
        self.stop_timer()
        self.lines.put_back(reader.rest)
        incoming.oddities |= reader.oddities

    async def _hand_over(self, incoming: Incoming) -> Sequence[Reply]:
        """No timer runs, and nothing the client does disturbs it."""
        if incoming.refusal is not None:
            _log.info("%s: message refused: %s", self._peer.address, incoming.refusal.lines[0].decode("ascii"))
            return [incoming.refusal]
        if incoming.oddities:
            _log.info("%s: message with %s taken", self._peer.address, ", ".join(sorted(incoming.oddities)))
        try:
            return await self._under_way.data(incoming.spool, frozenset(incoming.oddities))
        except Exception:  # a fault of ours must not cost the mail  # noqa: BLE001
            _log.exception("%s: a fault in handing on a message", self._peer.address)
            return [dialogue.CRASHED]

    async def _end_transaction(self) -> None:
        """Back to where a message may begin."""
        await self._forget_message()
        self._forwarded = None  # as in Postfix, it holds for one message
        if self._state is not State.GREETED:
            self._state = State.READY

    async def _forget_message(self) -> None:
        message, self._message = self._message, None
        if message is None:
            return
        try:
            await message.end()
        except Exception:  # the client need not care  # noqa: BLE001
            _log.exception("%s: a fault in ending a message", self._peer.address)


_COMMANDS = {verb: getattr(Session, f"smtp_{verb}") for verb in dialogue.VERBS}
