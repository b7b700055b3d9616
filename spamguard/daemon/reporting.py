"""The process that monitors ask (`python -m spamguard.daemon.reporting CHANNEL SETTINGS MASTER COUNTERS`): metrics and health by HTTP.

Started by the master, apart from the mail: it reads counters that the others keep and looks at the filter for itself. Must never
be needed for mail to flow. SIGTERM ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence

from spamguard import __version__
from spamguard.daemon import parent
from spamguard.errors import SpamguardError
from spamguard.hostname import hostname
from spamguard.lately import Lately
from spamguard.metrics import exposition, liveness, page, readiness
from spamguard.metrics.counters import MASTER, REPORTER, Board, Slot
from spamguard.metrics.http import Answer, Server
from spamguard.metrics.knowledge import Known, Looker
from spamguard.metrics.totals import total
from spamguard.settings import Place, Settings

RETRY_SECONDS = 15.0  # when the address cannot be had
_STATE_GOOD_FOR = 5.0  # seconds, what was seen of ledger and tables
_HOPS_GOOD_FOR = 10.0  # seconds: each look is a session that the next hop may log
_PATIENCE = 5.0  # seconds for a look at either

_log = logging.getLogger("spamguard.metrics")


class Reporter:
    """What is answered. board: the counters. counts: where lessons are counted; None: in the slot of this process."""

    def __init__(self, settings: Settings, board: Board, counts: Slot | None = None) -> None:
        self._board = board
        self._hops = [listener.next_hop for listener in settings.listeners]
        self._looker = Looker(settings.state, counts or board.slot(REPORTER))
        self._known = Lately(self._look, _STATE_GOOD_FOR, _PATIENCE)
        self._unreachable = Lately(self._knock, _HOPS_GOOD_FOR, _PATIENCE)

    async def metrics(self) -> Answer:
        """For Prometheus."""
        found = await self._seen()
        counted = page.counted(
            __version__,
            self._board.slot(MASTER).began,
            sum(1 for _ in self._board.workers()),
            total(self._board.used()),
        )
        known = page.known(None if isinstance(found, str) else found)
        return Answer(200, exposition.page([*counted, *known]), exposition.CONTENT_TYPE)

    async def health(self) -> Answer:
        """Whether all processes live."""
        return _told(liveness.unwell(self._board, time.monotonic_ns()), "alive")

    async def ready(self) -> Answer:
        """Whether mail can be judged and handed on."""
        found, hops = await asyncio.gather(self._seen(), self._reached())
        state = [found] if isinstance(found, str) else []
        stuck = liveness.cannot_pass(self._board, time.monotonic_ns())
        return _told([*stuck, *state, *liveness.cannot_judge(self._board), *hops], "ready")

    async def _seen(self) -> Known | str:
        """What the filter knows, or what is wrong with it."""
        try:
            return await self._known.get()
        except TimeoutError:
            return f"state: no answer within {_PATIENCE:.0f} s"
        except (SpamguardError, OSError) as error:
            return f"state: {error}"

    async def _reached(self) -> list[str]:
        try:
            return await self._unreachable.get()
        except TimeoutError:
            return [f"next hops: no answer within {_PATIENCE:.0f} s"]

    async def _look(self) -> Known:
        return await asyncio.to_thread(self._looker.look)

    async def _knock(self) -> list[str]:
        return await readiness.unreachable(self._hops, hostname())


def _told(wrong: list[str], well: str) -> Answer:
    """One line for each thing that is wrong; errors may name files and hold anything."""
    lines = ["".join(letter if letter.isprintable() else "\ufffd" for letter in line) for line in wrong or [well]]
    return Answer(503 if wrong else 200, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


def main(arguments: Sequence[str]) -> int:
    """Serve until ended."""
    with parent.begun(arguments) as (settings, _, board):
        os.nice(5)  # mail that flows goes first
        if settings.metrics is not None:
            reporter = Reporter(settings, board)
            pages = {"/metrics": reporter.metrics, "/healthz": reporter.health, "/readyz": reporter.ready}
            asyncio.run(_serve(settings.metrics, Server(pages)))
    return 1


async def _serve(place: Place, answering: Server) -> None:
    """For ever."""
    while True:
        try:
            server = await answering.start(place.host, place.port)
        except OSError as error:
            _log.error("cannot listen on %s for monitors (%s): trying again", place, error.strerror or error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            _log.info("monitors may ask http://%s/metrics, /healthz and /readyz", place)
            async with server:
                await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
