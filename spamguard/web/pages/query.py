"""What of the history a page shows, as its address and its form have it. Pure.

Must never be anything else in an address than these fields: addresses of pages are made from it, never taken from who asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from spamguard.errors import UsageError
from spamguard.ids import is_id
from spamguard.web.service.values import Search

_LONGEST = 200  # characters of a field
ROWS = 50
_ID = re.compile(r"(?:.*; id=)?([0-9a-v]{16})(?:;.*)?")


@dataclass(frozen=True, slots=True)
class Query:
    """As in `Search`, as texts. since, until: days, as in 2026-11-20, both included, in UTC."""

    subject: str = ""
    sender: str = ""
    recipient: str = ""
    label: str = ""
    taught: str = ""
    since: str = ""
    until: str = ""
    before: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """What an address or a form says; what else it says is left out."""
        return cls(**{field.name: given.get(field.name, "")[:_LONGEST].strip() for field in fields(cls)})

    def search(self) -> Search:
        """What to ask the service. UsageError: a day that is none."""
        since = _start(self.since) if self.since else 0.0
        until = _start(self.until, days=1) if self.until else 0.0
        before = self.before if is_id(self.before) else ""
        return Search(self.sender, self.recipient, self.subject, self.label, self.taught, since, until, before, ROWS)

    @property
    def name(self) -> str:
        """The id that somebody looks for in place of a subject, by itself or in X-Spamguard as it is; "" where there is none."""
        match = _ID.fullmatch(self.subject)
        return match[1] if match else ""

    @property
    def narrowed(self) -> bool:
        """Whether anything is asked for by the form: more than a verdict and a page."""
        return replace(self, label="", before="") != Query()

    @property
    def live(self) -> bool:
        """Whether new mail may show up in it."""
        return not self.before and not self.until

    def ending(self, **changes: str) -> str:
        """The end of an address, with the question mark if there is anything to ask for."""
        encoded = urlencode({name: value for name, value in asdict(replace(self, **changes)).items() if value})
        return f"?{encoded}" if encoded else ""


def _start(day: str, days: int = 0) -> float:
    try:
        return (datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{day}: is not a day: write it as in 2026-11-20") from None
