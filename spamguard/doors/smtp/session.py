"""One session, SMTP or LMTP, from greeting to end, and the commands that carry no mail.

Must never give a fault of ours a permanent reply or its own words, never let one client's commands keep others waiting, and never
believe a stranger what only a trusted peer may say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from spamguard.doors.smtp import dialogue, xclient
from spamguard.doors.smtp.connection import Connection
from spamguard.doors.smtp.dialogue import State
from spamguard.doors.smtp.patience import Patience
from spamguard.doors.smtp.tls import Certificates
from spamguard.proxy.contract import Message, Proxy
from spamguard.reception.clients import Crowd, Load, Networks, sharer
from spamguard.reception.conversation import Gone, Late, Leaving
from spamguard.settings import DoorLimits, OddBytes, Position
from spamguard.wire.attributes import parse_attributes
from spamguard.wire.values import Client, Reply

_TURN = 5  # commands in a row before others get theirs: a round of 50 that flood took 4 ms, with 20 it took 32

_REFUSALS: Mapping[Crowd, Reply] = {
    Crowd.OF_ALL: Reply.of(421, "4.7.0 Too many connections, try again later"),
    Crowd.OF_ONE: Reply.of(421, "4.7.0 Too many connections from your address, try again later"),
    Crowd.NOT_LISTED: dialogue.NOT_A_CLIENT,
}
_LAST_CHANCE_SECONDS = 1.0  # a door that closes still hears who begins a first message, or ends behind the last, if they are no slower

_log = logging.getLogger("spamguard.doors")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all sessions of a door. lmtp: which of the two protocols. position: where the listener sits.

    received: is told how many seconds the data of each message took, taken or not.
    """

    proxy: Proxy
    lmtp: bool
    hostname: str
    limits: DoorLimits
    load: Load
    odd_bytes: OddBytes
    position: Position
    trusted: Networks
    tls: Certificates | None
    spool_directory: Path
    received: Callable[[float], None]


class Session(Connection):
    """One client. address, port: of the connection itself."""

    def __init__(self, terms: Terms, loop: asyncio.AbstractEventLoop, scratch: memoryview, address: str, port: str) -> None:
        super().__init__(loop, scratch, terms.limits.command_seconds)
        self.draining = False
        self._terms = terms
        self._state = State.GREETED
        self._peer = Client(address=address, port=port, peer=address)
        self._client = self._peer
        self._forwarded: Client | None = None
        self._trusted = address in terms.trusted
        self._sharer = sharer(address, trusted=self._trusted)
        self._patience = Patience(terms.limits)
        self._message: Message | None = None
        self._over = False
        self._sending = False  # whether the client may be about to send more when we end the session
        self._served: float | None = None  # when the last message ended, a time of the loop's clock
        self._turns = 0
        self._idle_since: float | None = None

    # The session as a whole.

    @property
    def idle_since(self) -> float | None:
        """A transaction begins with MAIL and ends when its last reply is sent and the next hop is
        done with it. Then the client has a moment to say QUIT, as in `drain`."""
        idle = self._idle_since is not None and self._idle_since <= self.loop.time()
        return self._idle_since if idle else None

    async def serve(self, connected: socket.socket, refused: Crowd | None) -> None:
        """One connection, from its first byte to its last."""
        self._idle_since = self.loop.time()
        try:
            await self.loop.connect_accepted_socket(lambda: self, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            return
        await self._run(None if refused is None else _REFUSALS[refused])

    async def _run(self, refused: Reply | None) -> None:
        """From greeting to end, whatever that is."""
        try:
            await self._serve(refused)
        except Gone:
            pass
        except Late:
            self._end_late()
        except asyncio.CancelledError:
            self.say(dialogue.SHUTTING_DOWN if self.draining else dialogue.EVICTED)
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in this session", self._peer.address)
            self.say(dialogue.CRASHED)
        finally:
            await self._finish()

    async def _finish(self) -> None:
        self.send()
        await self._forget_message()
        self._idle_since = None
        await self.close(hear_out=self._sending)

    async def _serve(self, refused: Reply | None) -> None:
        self.say(refused or self._greeting())
        while refused is None and not self._over:
            try:
                verb, argument = dialogue.split_line(await self._next_line())
            except dialogue.BadLineError:
                self._answer(dialogue.BAD_LINE)
            except dialogue.BareLfError:
                self._end_with(dialogue.BARE_LF)
            else:
                await self._obey(verb, argument)
            if self._patience.lost and not self._over:
                self._end_with(dialogue.IMPATIENT)

    def _greeting(self) -> Reply:
        return Reply.of(220, f"{self._terms.hostname} {'LMTP' if self._terms.lmtp else 'ESMTP'}")

    async def _next_line(self) -> bytes:
        await self._take_turns()
        seconds: float | None = self._patience_with_line()
        while (line := self.lines.next()) is None:
            if self.lines.end_in_bare_lf:
                raise dialogue.BareLfError
            await self.more(seconds)
            self._turns = 0
            seconds = None  # for the whole line, however slowly it comes in
        self.lift_deadline()
        return line

    def drain(self) -> None:
        """End as soon as nothing is under way.

        Who came just before the door closed, and is still speaking, is served: other doors do not know of this client. Who has just
        been served may say QUIT: programs that hear 421 there instead take the message for refused, and send it again.
        """
        self.draining = True
        if self.waiting and self._message is None:
            self.set_deadline(self.loop.time() + self._patience_with_line())

    def _patience_with_line(self) -> float:
        seconds = self._terms.limits.command_seconds
        if not self._leaving:
            return seconds
        since_served = 0.0 if self._served is None else self.loop.time() - self._served
        return min(seconds, max(_LAST_CHANCE_SECONDS - since_served, 0.0))

    @property
    def _leaving(self) -> bool:
        """Whether the door closes, and nothing is under way here."""
        return self.draining and self._message is None

    def _end_late(self) -> None:
        if self._leaving and self._served is not None:
            self.say(dialogue.SHUTTING_DOWN)
        else:
            self._end_with(dialogue.SHUTTING_DOWN if self._leaving else dialogue.TIMED_OUT)

    async def _take_turns(self) -> None:
        await self.make_room()
        self._turns += 1
        if self._turns >= _TURN:
            self._turns = 0
            await asyncio.sleep(0)

    async def _obey(self, verb: str, argument: str) -> None:
        if verb in dialogue.OF_BROWSERS:  # any page may have one send what it likes, such as mail below its own request
            self._end_with(dialogue.NO_WEB_SERVER)
            return
        if self._leaving and self._served is not None and verb != "QUIT":
            self._end_with(dialogue.SHUTTING_DOWN)
            return
        refusal = dialogue.refusal(self._state, verb, lmtp=self._terms.lmtp)
        if refusal is not None:
            self._answer(refusal)
            return
        if verb in dialogue.IDLE_VERBS:
            self._patience.idle()
        try:
            await self.commands[verb](self, argument)
        except Leaving:
            raise
        except Exception:  # what is behind the door must not end the session  # noqa: BLE001
            _log.exception("%s: a fault at %s", self._peer.address, verb)
            await self._end_transaction()
            self._say_crashed(verb)

    def _say_crashed(self, verb: str) -> None:
        """Within the data the session must end: what is left of them would be taken for commands."""
        if verb == "DATA":
            self._end_with(dialogue.CRASHED_IN_DATA)
        else:
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

    async def _helo(self, hostname: str) -> None:
        await self._hello("HELO", hostname, "SMTP", ())

    async def _ehlo(self, hostname: str) -> None:
        await self._hello("EHLO", hostname, "ESMTPS" if self.secure else "ESMTP", self._features())

    async def _lhlo(self, hostname: str) -> None:
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

    async def _noop(self, _argument: str) -> None:
        self.say(dialogue.OK)

    async def _help(self, _argument: str) -> None:
        self.say(dialogue.HELP_LMTP if self._terms.lmtp else dialogue.HELP)

    async def _vrfy(self, arg: str) -> None:
        self._answer(dialogue.VRFY if arg else dialogue.BAD_ARGUMENT)

    async def _rset(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            await self._end_transaction()
            self.say(dialogue.OK)

    async def _quit(self, arg: str) -> None:
        if arg:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            self._end_with(dialogue.BYE)

    async def _starttls(self, arg: str) -> None:
        if self._terms.tls is None or self.secure:
            self._answer(dialogue.NOT_IMPLEMENTED)
        elif arg:
            self._answer(dialogue.BAD_ARGUMENT)
        elif self.lines.bytes:
            self._end_with(dialogue.AFTER_STARTTLS)
        else:
            self.say(dialogue.START_TLS)
            self._terms.tls.renew()
            await self.encrypt(self._terms.tls.context)
            self._start_again(self._peer)

    async def _xforward(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._answer(attributes)
        elif (client := xclient.told(self._forwarded or self._peer, attributes, xclient.XFORWARD)) is None:
            self._answer(dialogue.BAD_ARGUMENT)
        else:
            self._forwarded = client
            self.say(dialogue.OK)

    async def _xclient(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._answer(attributes)
        elif (client := xclient.told(self._client, attributes, xclient.XCLIENT)) is None:
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

    commands: ClassVar[Mapping[str, Callable[..., Awaitable[None]]]] = {
        "HELO": _helo,
        "EHLO": _ehlo,
        "LHLO": _lhlo,
        "NOOP": _noop,
        "HELP": _help,
        "VRFY": _vrfy,
        "RSET": _rset,
        "QUIT": _quit,
        "STARTTLS": _starttls,
        "XFORWARD": _xforward,
        "XCLIENT": _xclient,
    }
    """What is done at a command."""

    # What a message leaves behind.

    async def _end_transaction(self) -> None:
        """Back to where a message may begin."""
        await self._forget_message()
        self._forwarded = None  # as in Postfix, it holds for one message
        self._state = dialogue.NEXT[self._state, "RSET"]

    async def _forget_message(self) -> None:
        message, self._message = self._message, None
        if message is None:
            return
        self._served = self.loop.time()
        try:
            await message.end()
        except Exception:  # the client need not care  # noqa: BLE001
            _log.exception("%s: a fault in ending a message", self._peer.address)
        finally:
            self._idle_since = self.loop.time() + _LAST_CHANCE_SECONDS
