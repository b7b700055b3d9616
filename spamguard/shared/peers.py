"""Requests between the web processes of nodes: signed, checked, and sent to all nodes at once.

A request has no body. Its field `X-Spamguard-Peer: TIME NODE MAC` holds the time in nanoseconds
since 1970, the node that asks, and an HMAC-SHA256 over method, path with query, time and node. The
key comes from the installation's key, which all nodes have. The query names the node that is asked
(`to`), so no other node takes the request.

`PeerGate` checks requests. It refuses those that are older than `WINDOW_SECONDS`, and those that
change something and come again. `PeerClient` sends them. Each has a deadline, after which the
connection is closed, and an answer of limited size; a node's certificate is verified.

Must never send a request to a node by plain HTTP, except on loopback, follow a redirect, use a
proxy from the environment, or let one node delay the answers of others. Must never be loaded where
`shared` is not configured.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from spamguard.errors import SpamguardError
from spamguard.keys import derive_key
from spamguard.log import WarnOnce, printable

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger("spamguard.web")

PEER_FIELD = "X-Spamguard-Peer"
WINDOW_SECONDS = 30.0
ASK_SECONDS = 2.0
"""For the whole answer of a node that is asked together with others."""
ACT_SECONDS = 30.0
"""For an answer of one node that does something; its next hop may be slow."""
MAX_ANSWER_BYTES = 8 << 20
_MAX_CONNECTIONS = 256  # of a web process, which has 1,024 descriptors
_MAX_DETAIL = 300  # characters
_FIELD = re.compile(r"([0-9]{1,20}) ([!-~]{1,64}) ([0-9a-f]{64})")
_NANOSECONDS = 1_000_000_000

Answer = TypeVar("Answer")


class PeerError(SpamguardError):
    """A request of another node is not believed, or another node does not answer as it should."""


class PeerNode(NamedTuple):
    """A node that can be asked. node: its id; name: for people; url: of its page."""

    node: str
    name: str
    url: str


def sign(key: bytes, method: str, target: str, moment: int, node: str) -> str:
    """The MAC of a request, in hexadecimal. target: path with query."""
    return hmac.digest(key, "\n".join((method, target, str(moment), node)).encode(), "sha256").hex()


def peer_key(installation_key: bytes) -> bytes:
    """The key with which nodes sign requests."""
    return derive_key(installation_key, b"peers")


@dataclass
class PeerGate:
    """Checks the requests of other nodes. node: the id of this one."""

    _key: bytes
    _node: str
    _opened_at: int = field(default_factory=time.time_ns)
    _seen: dict[str, int] = field(default_factory=dict)  # moment by MAC

    def check(self, field: str, method: str, target: str, now: int) -> Mapping[str, str]:
        """Return the parameters of a request that another node has signed. PeerError: it has not.

        field: of the header. target: path with query. now: nanoseconds since 1970.
        """
        match = _FIELD.fullmatch(field)
        moment, node, mac = (int(match[1]), match[2], match[3]) if match else (0, "", "")
        if not hmac.compare_digest(sign(self._key, method, target, moment, node), mac):
            raise PeerError("this was not signed by a node with our key")
        late = (now - moment) / _NANOSECONDS
        if abs(late) > WINDOW_SECONDS:
            raise PeerError(f"this was signed {late:.0f} s ago: the clocks of nodes must agree")
        query = parse_qs(urlsplit(target).query, keep_blank_values=True)
        if query.get("to") != [self._node]:
            raise PeerError("this is for another node: look at its url")
        if method not in ("GET", "HEAD"):
            # Those from before our start may have come before.
            before = now - 2 * WINDOW_SECONDS * _NANOSECONDS
            self._seen = {each: seen for each, seen in self._seen.items() if seen >= before}
            if mac in self._seen or moment < self._opened_at:
                raise PeerError("this has come before, or may have")
            self._seen[mac] = now
        return {name: values[-1] for name, values in query.items()}


class PeerAnswers(NamedTuple, Generic[Answer]):
    """What nodes have answered, each beside its node, and the names of those that did not."""

    answers: Sequence[tuple[PeerNode, Answer]]
    absent: Sequence[str]


class PeerRefusalError(PeerError):
    """A node has answered, but with another status than 200. detail: its reason, or ""."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"answer {status} {detail}".strip())
        self.status, self.detail = status, detail


@dataclass
class PeerClient:
    """Asks other nodes. Belongs to one event loop.

    node: the id of this one, which is never asked. nodes: returns all that there are. ca: the
    authority that has signed the certificates of nodes; None: those of the system.
    """

    _key: bytes
    _node: str
    _nodes: Callable[[], Sequence[PeerNode]]
    _ca: Path | None
    _client: httpx.AsyncClient | None = None
    _silent: WarnOnce = field(default_factory=lambda: WarnOnce(_log))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def ask_all(
        self,
        path: str,
        query: Mapping[str, str],
        decode: Callable[[bytes], Answer],
        *,
        only_one: bool = False,
    ) -> PeerAnswers[Answer]:
        """Ask all nodes at once; a node without an answer that can be decoded is absent.

        only_one: one of them has what is asked for; its answer is enough.
        """

        async def ask(peer: PeerNode) -> tuple[PeerNode, Answer | None, bool]:
            """Return what a node has answered, or None, and whether it is absent."""
            answer, trouble = None, ""
            try:
                answer = await self.act(peer, "GET", path, query, decode, ASK_SECONDS)
            except PeerRefusalError as error:
                trouble = "" if error.status == HTTPStatus.NOT_FOUND else str(error)
            except PeerError as error:
                trouble = str(error)
            if trouble:
                text = printable(trouble[:_MAX_DETAIL])
                self._silent.warn(peer.node, "node %s did not answer: %s", peer.name, text)
            else:
                self._silent.clear(peer.node)
            return peer, answer, bool(trouble)

        nodes = [peer for peer in self._nodes() if peer.node != self._node and peer.url]
        tasks = [asyncio.create_task(ask(peer)) for peer in nodes]
        answers, absent = list[tuple[PeerNode, Answer]](), list[str]()
        try:
            for following in asyncio.as_completed(tasks):
                peer, value, is_absent = await following
                if value is not None:
                    answers.append((peer, value))
                    if only_one:
                        return PeerAnswers(answers, [])
                if is_absent:
                    absent.append(peer.name)
            return PeerAnswers(sorted(answers, key=itemgetter(0)), sorted(absent))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def act(
        self,
        peer: PeerNode,
        method: str,
        path: str,
        query: Mapping[str, str],
        decode: Callable[[bytes], Answer],
        seconds: float = ACT_SECONDS,
    ) -> Answer:
        """Have one node do something, and decode its answer of status 200.

        PeerRefusalError: it will not; PeerError: there is no answer, or none that can be decoded.
        """
        import httpx  # noqa: PLC0415  where nodes are asked only

        for name in ("httpx", "httpcore"):  # they log addresses, with what people search for
            logging.getLogger(name).setLevel(logging.WARNING)
        is_safe = False
        with suppress(ValueError):
            parts = urlsplit(peer.url)
            is_safe = parts.scheme == "https" or ip_address(parts.hostname or "").is_loopback
        if not is_safe:
            raise PeerError(f"{peer.url!a} is neither HTTPS nor loopback")
        target = f"{path}?{urlencode({**query, 'to': peer.node})}"
        moment = time.time_ns()
        mac = sign(self._key, method, target, moment, self._node)
        try:
            self._client = self._client or httpx.AsyncClient(
                verify=ssl.create_default_context(cafile=self._ca),
                trust_env=False,
                timeout=None,  # noqa: S113  there is one below
                limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
                headers={"Accept-Encoding": "identity", "User-Agent": "spamguard"},
            )
            async with (
                asyncio.timeout(seconds),
                self._client.stream(
                    method,
                    peer.url + target,
                    headers={PEER_FIELD: f"{moment} {self._node} {mac}"},
                ) as answer,
            ):
                body = bytearray()
                async for piece in answer.aiter_raw():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        raise PeerError(f"its answer has more than {MAX_ANSWER_BYTES:,} bytes")
        except TimeoutError as error:
            raise PeerError(f"no answer within {seconds:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise PeerError(str(error) or type(error).__name__) from error
        if answer.status_code != HTTPStatus.OK:
            detail = ""
            with suppress(ValueError, TypeError, LookupError, RecursionError):  # RFC 9457, or not
                detail = printable(str(json.loads(body)["detail"])[:_MAX_DETAIL])
            raise PeerRefusalError(answer.status_code, detail)
        try:
            return decode(bytes(body))
        except ValueError as error:
            raise PeerError("its answer makes no sense") from error
