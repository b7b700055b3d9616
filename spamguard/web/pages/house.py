"""What views have in common: the service, the way in and out, and what is kept between two requests of a person."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request

from spamguard.errors import NotThereError
from spamguard.ids import is_id
from spamguard.spool import Spool
from spamguard.web.access import contract as access
from spamguard.web.pages.notices import Notice
from spamguard.web.pages.shelf import Shelf
from spamguard.web.service.contract import Monitor, Service
from spamguard.web.service.values import Considered

_NOTICES, _ALL_NOTICES, _NOTICE_KEPT = 20, 2000, 600.0
_DRAFTS, _ALL_DRAFTS, _DRAFT_KEPT = 3, 40, 1800.0


@dataclass(slots=True)
class Draft:
    """A message that was handed over and not taught yet. label: what it is thought to be taught as."""

    message: Spool
    label: str
    told: Considered


class House:
    """One for each process."""

    def __init__(self, service: Service, monitor: Monitor, gate: access.Gate) -> None:
        self.service, self.monitor, self.gate = service, monitor, gate
        self.notices: Shelf[Notice] = Shelf(_NOTICES, _ALL_NOTICES, _NOTICE_KEPT, time.monotonic, lambda _: None)
        self.drafts: Shelf[Draft] = Shelf(_DRAFTS, _ALL_DRAFTS, _DRAFT_KEPT, time.monotonic, lambda draft: draft.message.close())

    def notice(self, request: Request) -> Notice | None:
        """The one that the address of a page names."""
        visitor = access.visitor(request)
        return self.notices.get(visitor.person, request.query_params.get("told", "")) if visitor else None


def name_of(request: Request) -> str:
    """The id in the path of a request. NotThereError: it is none."""
    name = str(request.path_params["name"])
    if not is_id(name):
        raise NotThereError("there is no message of that name")
    return name
