"""What the courier last said of itself and of the other nodes, in a file.

The courier writes `shared.json` in the state directory every second. `spamguard status`, monitors,
the page and the requests between nodes read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.status_file import StatusFile
from spamguard.times import duration_text

if TYPE_CHECKING:
    from spamguard.ledger.shared import LogCounts

STATUS_FILE = "shared.json"
BEAT_SECONDS = 5.0  # between two signs of life to the other nodes
ABSENT_SECONDS = 60.0
"""A node that was not seen for so long is an alarm."""
_MAX_BEHIND = 2000  # events, before nothing is settled until they are here
_SILENT_SECONDS = 30.0  # then the courier does not run
_AWAY_SECONDS = 5.0  # a shorter absence is no news


@dataclass(frozen=True)
class NodeStatus:
    """What a node last told the database.

    node: its id in versions of votes. name: of its machine. url: of its page; "": it is not asked.
    position: how much of the log it has. waiting: lessons that others do not have yet. seen:
    seconds since 1970, by this machine's clock. settings: digest of the settings that must agree.
    """

    node: str
    name: str
    url: str
    program: str
    position: int
    waiting: int
    seen: float
    settings: str


@dataclass(frozen=True)
class SharedStatus:
    """How this node stands to the shared log. Times are seconds since 1970; 0: never.

    node: this node's id. position: how much of the log it has; last: its end when it was last read.
    contact: when the last turn succeeded. away_since: since when none does; 0: it is there.
    problem: why not. waiting: lessons that others do not have yet, the oldest since waiting_since.
    skipped: events of the log that could not be read, and forged: rows of the database that no
    node wrote, counted since the courier began. joining: until the whole log is here and settled.
    alarms: what an operator must look at. absent: names of nodes that were not seen for a minute;
    each is an alarm.
    """

    node: str = ""
    written: float = 0.0
    position: int = 0
    last: int = 0
    contact: float = 0.0
    away_since: float = 0.0
    problem: str = ""
    waiting: int = 0
    waiting_since: float = 0.0
    skipped: int = 0
    forged: int = 0
    joining: bool = False
    alarms: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()

    def is_alive(self, now: float) -> bool:
        """Whether the courier was heard lately."""
        return now - self.written < _SILENT_SECONDS

    def is_away(self, now: float) -> bool:
        """Whether the shared log cannot be reached, by now."""
        return not self.is_alive(now) or bool(
            self.away_since and now - self.away_since >= _AWAY_SECONDS
        )

    def is_copying(self, now: float, position: int) -> bool:
        """Whether much of the log comes just now; position: how much of it is here."""
        return not self.is_away(now) and self.last - position > _MAX_BEHIND

    def is_first(self, now: float) -> bool:
        """Whether this is the first node of those that are here: it alone does what is enough if
        one does it.
        """
        here = {node.node for node in self.nodes if now - node.seen < ABSENT_SECONDS}
        return not self.is_away(now) and self.node == min(here, default="")

    def age(self, now: float) -> float:
        """Seconds since the last contact with the shared log."""
        return max(0.0, now - (self.contact or self.away_since or self.written))

    def notes(self, now: float) -> Iterator[str]:
        """What is not as it should be, in sentences. None of it keeps mail from flowing."""
        if self.joining:
            yield (
                f"shared log: this node joins it, and has {self.position:,} of {self.last:,} "
                "events: mail is judged by what it knew before, until they are here and settled"
            )
        if not self.is_alive(now):
            silent = f"for {duration_text(now - self.written)}" if self.written else "yet"
            yield f"shared log: the courier has not been heard {silent}"
        elif self.is_away(now):
            reason = f" ({self.problem})" if self.problem else ""
            since = duration_text(now - self.away_since)
            yield f"shared log: away for {since}{reason}; lessons waiting here: {self.waiting:,}"
        yield from (f"shared log: {alarm}" for alarm in self.alarms)
        mine = next((node.settings for node in self.nodes if node.node == self.node), "")
        for node in self.nodes:
            if mine and node.settings and node.settings != mine:
                yield f"shared log: {node.name} has other settings than this node"


_FILE = StatusFile(STATUS_FILE, SharedStatus)
write_status = _FILE.write


def read_status(state: Path) -> SharedStatus:
    """What the courier of this state directory last said; never written: nothing is known."""
    return _FILE.read(state) or SharedStatus()


def describe_status(state: Path, counts: LogCounts, now: float) -> dict[str, Any]:
    """All of it in values for JSON, as it is now. counts: of the ledger, which is never late."""
    status = replace(
        read_status(state),
        position=counts.position,
        waiting=counts.waiting,
        waiting_since=float(counts.oldest),
    )
    return {
        **asdict(status),
        "running": status.is_alive(now),
        "away": status.is_away(now),
        "age": round(status.age(now), 1),
        "notes": list(status.notes(now)),
    }
