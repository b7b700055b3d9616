"""Whether a process may take the address space that a filter needs, by the limit on it (RLIMIT_AS): `ulimit -v`, LimitAS= of systemd.

Below what is needed each library fails in its own way, some with a traceback, and the daemon would start its processes again for ever.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

# Measured with tables of 64 MiB on two cores (Python 3.11, numpy 2): `judge` and `learn` need 290 MiB, `rebuild` 330; the daemon, with
# page and watcher, had trouble at 310 and none from 340 on. A process that takes new tables maps the old ones at the same time.
_OPEN = 160 << 20
_SERVE = 224 << 20
_FIRST_TABLES = 64 << 20


def shortage(state: Path, *, serving: bool = False) -> str:
    """In words, with the remedy, how much too low the limit is for the filter in this directory; "" where it is enough or there is none.

    serving: for the daemon, whose processes also settle and serve the page.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = (_SERVE if serving else _OPEN) + 2 * _largest_tables(state)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return ""
    problem = f"there is not enough memory: the limit for each process (`ulimit -v`, LimitAS= of systemd) is {limit >> 20} MiB"
    return f"{problem}: raise it to {-(-needed >> 20)} MiB or more"


def _largest_tables(state: Path) -> int:
    sizes = []
    for path in state.glob("tables-*.bin"):
        with suppress(FileNotFoundError):  # another process has replaced it
            sizes.append(path.stat().st_size)
    return max(sizes, default=_FIRST_TABLES)
