"""One SMTP or LMTP session from greeting to end, and the commands that carry no mail.

Must never answer a fault of ours with a permanent reply or with its text, let the commands of one
client keep others waiting, or believe from a stranger what only a trusted peer may say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from spamguard.config.options import DoorLimits, OddBytes, Position
from spamguard.limits import ByteQuota, LimitExceeded, Networks, quota_key
from spamguard.proxy.base import MailTransaction, Proxy
from spamguard.servers import smtp_state
from spamguard.servers.listener import ClientTimeout, ConnectionClosed, ConversationEnded
from spamguard.servers.smtp_connection import CertificateReloader, SmtpConnection
from spamguard.servers.smtp_state import CommandBudget, SmtpState
from spamguard.smtp.commands import parse_attributes
from spamguard.smtp.envelope import Client, Reply

_log = logging.getLogger("spamguard.doors")

# Before other sessions get their turn: a round of 50 that flood took 4 ms; with 20 it took 32.
_COMMANDS_PER_TURN = 5
# In which a draining door still accepts a first message, or QUIT after the last one.
_DRAIN_GRACE_SECONDS = 1.0

_REPLY_BY_LIMIT: Mapping[LimitExceeded, Reply] = {
    LimitExceeded.TOTAL: Reply.from_text(421, "4.7.0 Too many connections, try again later"),
    LimitExceeded.PER_CLIENT: Reply.from_text(
        421, "4.7.0 Too many connections from your address, try again later"
    ),
    LimitExceeded.NOT_LISTED: smtp_state.CLIENT_REFUSED,
}


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a door share.

    lmtp: the protocol is LMTP, not SMTP. position: of the listener. on_data_received: called with
    the seconds that the data of each message took, accepted or not.
    """

    proxy: Proxy
    lmtp: bool
    hostname: str
    limits: DoorLimits
    byte_quota: ByteQuota
    odd_bytes: OddBytes
    position: Position
    trusted: Networks
    tls: CertificateReloader | None
    spool_directory: Path
    on_data_received: Callable[[float], None]


class SmtpSession(SmtpConnection):
    """One client. address, port: of the connection itself."""

    def __init__(
        self,
        context: SessionContext,
        loop: asyncio.AbstractEventLoop,
        scratch: memoryview,
        address: str,
        port: str,
    ) -> None:
        super().__init__(loop, scratch, context.limits.command_timeout)
        self.is_draining = False
        self._context = context
        self._state = SmtpState.GREETED
        self._peer = Client(address=address, port=port, peer=address)
        self._client = self._peer
        self._forwarded_client: Client | None = None
        self._trusted = address in context.trusted
        self._quota_key = quota_key(address, trusted=self._trusted)
        self._budget = CommandBudget(context.limits)
        self._transaction: MailTransaction | None = None
        self._is_over = False
        self._client_may_send = False  # more, when we close
        self._last_message_end: float | None = None  # by the event loop's clock
        self._commands_in_turn = 0
        self._idle_since: float | None = None

    # ---- the session

    @property
    def idle_since(self) -> float | None:
        """A transaction begins with MAIL and ends when its last reply is sent and the next hop is
        done with it. Then the client has a moment for QUIT, as in `drain`.
        """
        idle = self._idle_since is not None and self._idle_since <= self.loop.time()
        return self._idle_since if idle else None

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """Serve the client from first byte to last, and close the socket."""
        self._idle_since = self.loop.time()
        try:
            await self.loop.connect_accepted_socket(lambda: self, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            return
        await self._run(None if refused is None else _REPLY_BY_LIMIT[refused])

    async def _run(self, refused: Reply | None) -> None:
        try:
            await self._serve(refused)
        except ConnectionClosed:
            pass
        except ClientTimeout:
            self._end_on_timeout()
        except asyncio.CancelledError:
            self.write_reply(smtp_state.SHUTTING_DOWN if self.is_draining else smtp_state.EVICTED)
        except Exception:  # noqa: BLE001  a fault of ours must not end the door
            _log.exception("%s: a fault in this session", self._peer.address)
            self.write_reply(smtp_state.LOCAL_ERROR)
        finally:
            await self._finish()

    async def _finish(self) -> None:
        self.flush()
        await self._close_transaction()
        self._idle_since = None
        await self.close(drain_input=self._client_may_send)

    async def _serve(self, refused: Reply | None) -> None:
        self.write_reply(refused or self._greeting())
        while refused is None and not self._is_over:
            try:
                verb, argument = smtp_state.split_line(await self._next_line())
            except smtp_state.BadLineError:
                self._reply(smtp_state.BAD_LINE)
            except smtp_state.BareLfError:
                self._end_with(smtp_state.BARE_LF)
            else:
                await self._execute(verb, argument)
            if self._budget.is_exhausted and not self._is_over:
                self._end_with(smtp_state.TOO_MANY_COMMANDS)

    def _greeting(self) -> Reply:
        return Reply.from_text(
            220, f"{self._context.hostname} {'LMTP' if self._context.lmtp else 'ESMTP'}"
        )

    async def _next_line(self) -> bytes:
        await self._yield_turn()
        seconds: float | None = self._line_timeout()
        while (line := self.lines.next_line()) is None:
            if self.lines.ends_in_bare_lf:
                raise smtp_state.BareLfError
            await self.read_more(seconds)
            self._commands_in_turn = 0
            seconds = None  # for the whole line, however slowly it comes in
        self.clear_deadline()
        return line

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A client that is just beginning its first message is served: no other worker knows of it.
        A client that has just been served may say QUIT: programs that hear 421 there take the
        message for refused, and send it again.
        """
        self.is_draining = True
        if self.is_waiting and self._transaction is None:
            self.set_deadline(self.loop.time() + self._line_timeout())

    def _line_timeout(self) -> float:
        seconds = self._context.limits.command_timeout
        if not self._is_leaving:
            return seconds
        since_served = (
            0.0 if self._last_message_end is None else self.loop.time() - self._last_message_end
        )
        return min(seconds, max(_DRAIN_GRACE_SECONDS - since_served, 0.0))

    @property
    def _is_leaving(self) -> bool:
        """Whether the door closes, and nothing is under way here."""
        return self.is_draining and self._transaction is None

    def _end_on_timeout(self) -> None:
        if self._is_leaving and self._last_message_end is not None:
            self.write_reply(smtp_state.SHUTTING_DOWN)
        else:
            self._end_with(smtp_state.SHUTTING_DOWN if self._is_leaving else smtp_state.TIMED_OUT)

    async def _yield_turn(self) -> None:
        await self.flush_if_full()
        self._commands_in_turn += 1
        if self._commands_in_turn >= _COMMANDS_PER_TURN:
            self._commands_in_turn = 0
            await asyncio.sleep(0)

    async def _execute(self, verb: str, argument: str) -> None:
        # Any web page can make a browser send bytes, such as mail below its own request.
        if verb in smtp_state.BROWSER_VERBS:
            self._end_with(smtp_state.NO_WEB_SERVER)
            return
        if self._is_leaving and self._last_message_end is not None and verb != "QUIT":
            self._end_with(smtp_state.SHUTTING_DOWN)
            return
        refusal = smtp_state.command_refusal(self._state, verb, lmtp=self._context.lmtp)
        if refusal is not None:
            self._reply(refusal)
            return
        if verb in smtp_state.IDLE_VERBS:
            self._budget.count_idle()
        try:
            await self.commands[verb](self, argument)
        except ConversationEnded:
            raise
        except Exception:  # noqa: BLE001  a fault of the proxy must not end the session
            _log.exception("%s: a fault at %s", self._peer.address, verb)
            await self._end_transaction()
            self._reply_local_error(verb)

    def _reply_local_error(self, verb: str) -> None:
        """After DATA the session must end: the rest of the data would be taken for commands."""
        if verb == "DATA":
            self._end_with(smtp_state.LOCAL_ERROR_IN_DATA)
        else:
            self.write_reply(smtp_state.LOCAL_ERROR)

    def _reply(self, reply: Reply) -> None:
        """Answer a command, and count a mistake of the client."""
        if not reply.is_positive:
            self._budget.count_wrong()
        self.write_reply(reply)

    def _succeed(self, verb: str, reply: Reply = smtp_state.OK) -> None:
        """Go to the next state, and answer."""
        self._state = smtp_state.TRANSITIONS[self._state, verb]
        self.write_reply(reply)

    def _end_with(self, reply: Reply) -> None:
        self.write_reply(reply)
        self._is_over = True
        self._client_may_send = reply is not smtp_state.BYE

    # ---- commands

    async def _helo(self, hostname: str) -> None:
        await self._hello("HELO", hostname, "SMTP", ())

    async def _ehlo(self, hostname: str) -> None:
        await self._hello(
            "EHLO", hostname, "ESMTPS" if self.is_encrypted else "ESMTP", self._features()
        )

    async def _lhlo(self, hostname: str) -> None:
        await self._hello(
            "LHLO", hostname, "LMTPS" if self.is_encrypted else "LMTP", self._features()
        )

    async def _hello(
        self, verb: str, argument: str, protocol: str, features: Sequence[str]
    ) -> None:
        name = smtp_state.parse_hello_name(argument)
        if name is None:
            self._reply(smtp_state.BAD_ARGUMENT)
            return
        await self._end_transaction()
        self._client = replace(self._client, helo=name, protocol=protocol)
        self._succeed(verb, smtp_state.hello_reply(self._context.hostname, features))

    def _features(self) -> list[str]:
        """The extensions that EHLO announces (RFC 5321, section 4.1.1.1), with those that the next
        hop offers at this moment.
        """
        features = [
            "PIPELINING",
            f"SIZE {self._context.limits.message_size}",
            "ENHANCEDSTATUSCODES",
        ]
        if self._context.tls is not None and not self.is_encrypted:
            features.append("STARTTLS")
        features += [
            f"{keyword} {value}".strip()
            for keyword, value in self._context.proxy.extensions.items()
        ]
        if self._trusted:
            features += [smtp_state.XFORWARD_FEATURE, smtp_state.XCLIENT_FEATURE]
        return features

    async def _noop(self, _argument: str) -> None:
        self.write_reply(smtp_state.OK)

    async def _help(self, _argument: str) -> None:
        self.write_reply(smtp_state.HELP_LMTP if self._context.lmtp else smtp_state.HELP)

    async def _vrfy(self, arg: str) -> None:
        self._reply(smtp_state.CANNOT_VERIFY if arg else smtp_state.BAD_ARGUMENT)

    async def _rset(self, arg: str) -> None:
        if arg:
            self._reply(smtp_state.BAD_ARGUMENT)
        else:
            await self._end_transaction()
            self.write_reply(smtp_state.OK)

    async def _quit(self, arg: str) -> None:
        if arg:
            self._reply(smtp_state.BAD_ARGUMENT)
        else:
            self._end_with(smtp_state.BYE)

    async def _starttls(self, arg: str) -> None:
        if self._context.tls is None or self.is_encrypted:
            self._reply(smtp_state.NOT_IMPLEMENTED)
        elif arg:
            self._reply(smtp_state.BAD_ARGUMENT)
        elif self.lines.data:
            self._end_with(smtp_state.AFTER_STARTTLS)
        else:
            self.write_reply(smtp_state.START_TLS)
            self._context.tls.reload()
            await self.start_tls(self._context.tls.context)
            self._reset_session(self._peer)

    async def _xforward(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._reply(attributes)
        elif (
            client := smtp_state.apply_attributes(
                self._forwarded_client or self._peer, attributes, smtp_state.XFORWARD_NAMES
            )
        ) is None:
            self._reply(smtp_state.BAD_ARGUMENT)
        else:
            self._forwarded_client = client
            self.write_reply(smtp_state.OK)

    async def _xclient(self, arg: str) -> None:
        attributes = self._attributes(arg)
        if isinstance(attributes, Reply):
            self._reply(attributes)
        elif (
            client := smtp_state.apply_attributes(
                self._client, attributes, smtp_state.XCLIENT_NAMES
            )
        ) is None:
            self._reply(smtp_state.BAD_ARGUMENT)
        else:
            self._reset_session(client)
            self.write_reply(self._greeting())  # as Postfix does

    def _attributes(self, arg: str) -> dict[str, str] | Reply:
        return parse_attributes(arg.encode("latin-1")) if self._trusted else smtp_state.NOT_ALLOWED

    def _reset_session(self, client: Client) -> None:
        self._client = client
        self._forwarded_client = None
        self._state = SmtpState.GREETED

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
    """The handler of each command."""

    async def _end_transaction(self) -> None:
        """Go back to where a message may begin."""
        await self._close_transaction()
        self._forwarded_client = None  # as in Postfix, it holds for one message
        self._state = smtp_state.TRANSITIONS[self._state, "RSET"]

    async def _close_transaction(self) -> None:
        message, self._transaction = self._transaction, None
        if message is None:
            return
        self._last_message_end = self.loop.time()
        try:
            await message.end()
        except Exception:  # noqa: BLE001  it does not concern the client
            _log.exception("%s: a fault in ending a message", self._peer.address)
        finally:
            self._idle_since = self.loop.time() + _DRAIN_GRACE_SECONDS
