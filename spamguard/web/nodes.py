"""One page for all nodes: history and quarantine of all machines that learn as one.

`NodeService` is the `Service` of a node. It lists what is here and what all other nodes have, which
it asks at once (`shared.peers`), and merges the lists by id. A message that is not here is looked
for on the others. Its row of the history comes back, and explanation and lesson are made here, so a
vote is cast once, where the click was. The node that holds a message releases or deletes it.

`PeerDoor` is the other side. It admits requests that a node has signed in the name of a person, and
answers them from this machine alone. A request can do no more than that person may, and only at the
paths of `PeerDoor.routes`.

Must never be loaded where `shared` is not configured.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from spamguard.config.options import Settings
from spamguard.errors import BusyError, NotAllowedError, NotThereError, SpamguardError, UsageError
from spamguard.keys import key_fingerprint, load_key
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import WarnOnce, printable
from spamguard.proxy.history import HistoryRow
from spamguard.shared.client import burn
from spamguard.shared.peers import (
    PEER_FIELD,
    PeerClient,
    PeerError,
    PeerGate,
    PeerNode,
    PeerRefusalError,
    peer_key,
)
from spamguard.shared.status import SharedStatus, read_status
from spamguard.smtp.envelope import client_prefix
from spamguard.storage import KEY_FILE, LEDGER_FILE
from spamguard.web import models
from spamguard.web.auth import Person, UnauthenticatedError, Visitor
from spamguard.web.history import EVERYTHING, Reader, Search
from spamguard.web.models import HeldMessageDetails
from spamguard.web.pages import path_id
from spamguard.web.requests import PEER_ROOT, RequestContext, current_person
from spamguard.web.service import Result, Run, Service

_log = logging.getLogger("spamguard.web")

_PAGE_SECONDS = 1.0  # for a page of one node: its answer must come within `ASK_SECONDS`
_HISTORY, _QUARANTINE = f"{PEER_ROOT}history", f"{PEER_ROOT}quarantine"

Answer = TypeVar("Answer")


# ---- what nodes send


@dataclass(frozen=True)
class PeerRow:
    """A message that passed a node, as the person may see it. held: it waits there."""

    __pydantic_config__: ClassVar = ConfigDict(val_json_bytes="hex")
    row: HistoryRow
    held: bool

    @property
    def id(self) -> str:
        return self.row.id


@dataclass(frozen=True)
class PeerPage:
    """A page of the history of one node. Its rows have no features, and words if asked for."""

    __pydantic_config__: ClassVar = ConfigDict(val_json_bytes="hex")
    rows: Sequence[PeerRow]
    following: str


# What reads such JSON as a value of a type. ValueError: it is something else.
_read_row = TypeAdapter(PeerRow).validate_json
_read_page = TypeAdapter(PeerPage).validate_json
_read_held_page = TypeAdapter(models.QuarantinePage).validate_json
_read_held = TypeAdapter(HeldMessageDetails).validate_json
_read_text = TypeAdapter(str).validate_json
_read_release = TypeAdapter(models.ReleaseResult).validate_json
_read_nothing = TypeAdapter(None).validate_json
_read_search = TypeAdapter(Search).validate_json


def merge_pages(pages: Sequence[Any], limit: int) -> tuple[list[Any], str]:
    """Return the newest rows of all nodes' pages, and where the next page begins.

    Rows that are older than the last of another page wait for the next page, since that node may
    have newer ones.
    """
    end = max(page.following for page in pages)
    by_id = {row.id: row for page in pages for row in page.rows if row.id >= end}
    newest = [by_id[name] for name in sorted(by_id, reverse=True)]
    return (newest[:limit], newest[limit - 1].id) if len(newest) > limit else (newest, end)


# ---- asking


def _query(person: Person, search: Search | None = None) -> dict[str, str]:
    query = {"person": person.name, "operator": str(int(person.operator))}
    if search is not None:
        query["search"] = json.dumps(asdict(replace(search, seconds=_PAGE_SECONDS)))
    return query


class NodeService(Service):
    """The service of a node, which knows what passed other nodes too. peers: asks them."""

    def __init__(self, settings: Settings, settle: Callable[[], object], peers: PeerClient) -> None:
        super().__init__(settings, settle)
        self._peers = peers

    async def close(self) -> None:
        await super().close()
        await self._peers.close()

    async def _ask_all(
        self,
        here: Awaitable[Answer],
        path: str,
        person: Person,
        search: Search,
        decode: Callable[[bytes], Answer],
    ) -> tuple[list[Any], str, Sequence[str]]:
        """Return the rows of one page of all nodes, where the next begins, and who is absent."""
        mine, theirs = await asyncio.gather(
            here, self._peers.ask_all(path, _query(person, search), decode)
        )
        pages = [*(page for _, page in theirs.answers), mine]
        return *merge_pages(pages, search.limit), theirs.absent

    async def history(self, person: Person, search: Search) -> models.JudgementPage:
        here = self.rows_here(person, search)
        passed, following, absent = await self._ask_all(here, _HISTORY, person, search, _read_page)
        rows, held = [each.row for each in passed], {each.id for each in passed if each.held}
        judgements = await self._read(lambda reader: reader.judgements(person, rows, held))
        return models.JudgementPage(judgements, following, absent)

    async def quarantine(
        self, person: Person, search: Search = EVERYTHING
    ) -> models.QuarantinePage:
        here = super().quarantine(person, search)
        found = await self._ask_all(here, _QUARANTINE, person, search, _read_held_page)
        return models.QuarantinePage(*found)

    async def rows_here(self, person: Person, search: Search) -> PeerPage:
        def look(reader: Reader) -> PeerPage:
            rows, following = reader.find_rows(person, search)
            seen = [PeerRow(reader.as_seen(person, row), reader.is_waiting(row)) for row in rows]
            return PeerPage(seen, following)

        return await self._read(look)

    async def row_here(self, person: Person, verdict_id: str) -> PeerRow:
        return await super()._on_row(
            self._read,
            person,
            verdict_id,
            lambda reader, person, row, held: PeerRow(reader.as_seen(person, row), held),
        )

    async def _on_row(
        self,
        run: Run[Result],
        person: Person,
        verdict_id: str,
        act: Callable[[Any, Person, HistoryRow, bool], Result],
    ) -> Result:
        try:
            return await super()._on_row(run, person, verdict_id, act)
        except NotThereError:
            _, passed = await self._find(person, verdict_id, _HISTORY, _read_row)
        return await run(lambda reader: act(reader, person, passed.row, passed.held))

    async def held(self, person: Person, verdict_id: str) -> HeldMessageDetails:
        try:
            return await super().held(person, verdict_id)
        except NotThereError:
            return (await self._find(person, verdict_id, _QUARANTINE, _read_held))[1]

    async def preview_held(self, person: Person, verdict_id: str) -> str:
        try:
            return await super().preview_held(person, verdict_id)
        except NotThereError:
            return await self._act(person, verdict_id, "GET", "/text", _read_text)

    async def release(self, person: Person, verdict_id: str) -> models.ReleaseResult:
        try:
            return await super().release(person, verdict_id)
        except NotThereError:
            return await self._act(person, verdict_id, "POST", "/release", _read_release)

    async def delete(self, person: Person, verdict_id: str) -> None:
        try:
            await super().delete(person, verdict_id)
        except NotThereError:
            await self._act(person, verdict_id, "DELETE", "", _read_nothing)

    async def _find(
        self,
        person: Person,
        verdict_id: str,
        path: str,
        decode: Callable[[bytes], Answer],
    ) -> tuple[PeerNode, Answer]:
        asked = f"{path}/{verdict_id}"
        found = await self._peers.ask_all(asked, _query(person), decode, only_one=True)
        if found.answers:
            return found.answers[0]
        if found.absent:
            names = ", ".join(found.absent)
            raise BusyError(f"this message is not here, and {names} did not answer: try again")
        raise NotThereError("no message with that verdict id is there, or it is not yours")

    async def _act(
        self,
        person: Person,
        verdict_id: str,
        method: str,
        action: str,
        decode: Callable[[bytes], Answer],
    ) -> Answer:
        peer, _ = await self._find(person, verdict_id, _QUARANTINE, _read_held)
        path = f"{_QUARANTINE}/{verdict_id}{action}"
        try:
            return await self._peers.act(peer, method, path, _query(person), decode)
        except PeerRefusalError as refusal:
            raise _REFUSALS.get(refusal.status, BusyError)(
                refusal.detail or f"{peer.name} cannot do this now: see its log"
            ) from refusal
        except PeerError as trouble:
            text = f"{peer.name} did not answer ({trouble}): look whether it was done"
            raise BusyError(text) from trouble


_REFUSALS: Mapping[int, type[SpamguardError]] = {
    403: NotAllowedError,
    404: NotThereError,
    422: UsageError,
}


# ---- answering


class PeerDoor:
    """Admits and answers the requests of other nodes.

    burn: uses up a login link, by its id, for all nodes; may block.
    """

    def __init__(self, gate: PeerGate, service: NodeService, burn: Callable[[str], bool]) -> None:
        self._gate, self._service, self.burn = gate, service, burn
        self._refused = WarnOnce(_log)

    def identify(self, scope: Scope, context: RequestContext) -> Visitor:
        """Return the person for whom a node asks. UnauthenticatedError: no node has signed it."""
        query = scope["query_string"]
        target = (scope["raw_path"] + b"?" + query).decode("latin-1")
        field, prefix = context.header(PEER_FIELD.lower().encode()), client_prefix(context.client)
        try:
            if context.header(b"content-length") not in ("", "0") or (
                b"transfer-encoding" in context.fields
            ):
                raise PeerError("a request between nodes has no body")
            values = self._gate.check(field, scope["method"], target, time.time_ns())
        except PeerError as error:
            text = "a request from %s in the name of a node is refused: %s"
            self._refused.warn(prefix, text, context.client, error)
            raise UnauthenticatedError(str(error)) from error
        self._refused.clear(prefix)
        person = Person(values.get("person", ""), values.get("operator") == "1")
        return Visitor(person)

    def routes(self) -> list[Route]:
        """Return all that nodes may ask. Each is answered from this machine alone."""
        message = f"{_QUARANTINE}/{{name}}"
        return [
            self._route("GET", _HISTORY, NodeService.rows_here, _search),
            self._route("GET", f"{_HISTORY}/{{name}}", NodeService.row_here),
            self._route("GET", _QUARANTINE, Service.quarantine, _search),
            self._route("GET", message, Service.held),
            self._route("GET", f"{message}/text", Service.preview_held),
            self._route("POST", f"{message}/release", Service.release),
            self._route("DELETE", message, Service.delete),
        ]

    def _route(
        self,
        method: str,
        path: str,
        act: Callable[..., Awaitable[object]],
        read: Callable[[Request], object] = path_id,
    ) -> Route:
        async def respond(request: Request) -> Response:
            value = await act(self._service, current_person(request), read(request))
            text = json.dumps(
                value, default=lambda v: v.hex() if isinstance(v, bytes) else asdict(v)
            )
            return Response(text, media_type="application/json")

        return Route(path, respond, methods=[method])


def _search(request: Request) -> Search:
    try:
        return _read_search(request.query_params.get("search", ""))
    except ValueError:
        raise UsageError("this is not a search") from None


# ---- both


def open_nodes(settings: Settings, settle: Callable[[], object]) -> tuple[NodeService, PeerDoor]:
    """Make the service of this node, and what other nodes may ask of it. LedgerError."""
    state, shared = settings.state, settings.shared
    installation_key = load_key(state / KEY_FILE, create=False)
    with SqliteLedger.open(state / LEDGER_FILE, key_fingerprint(installation_key)) as ledger:
        node = ledger.node
    key, ca = peer_key(installation_key), shared.tls.ca if shared else None
    client = PeerClient(key, node, lambda: known_nodes(read_status(state)), ca)
    service = NodeService(settings, settle, client)
    return service, PeerDoor(PeerGate(key, node), service, partial(burn, state))


def known_nodes(status: SharedStatus) -> list[PeerNode]:
    newest = max((node.seen for node in status.nodes), default=0.0)
    return [
        PeerNode(node.node, printable(node.name), node.url)
        for node in status.nodes
        if node.url and node.seen > newest - 86_400  # a day
    ]
