"""spamguard: a spam filter that learns from your mail and from nothing else.

    from spamguard import Filter

    with Filter.open(directory) as spam_filter:
        verdict = spam_filter.judge(raw)

Ten words have a meaning of their own here; every other term is the field's.

vote
    What one user said about one message: its class.
receipt
    The stored record of a vote, with the exact features that were counted, but no text.
ledger
    The database of all receipts, from which everything else is computed.
lesson
    A message together with the class that it teaches.
settled
    Computed from all receipts in an order that they fix, so that the same receipts give the same
    tables.
sighting
    Where the folder watcher last saw a message.
expert
    One of the ten models whose log-odds are combined.
scorer
    A process that judges messages and can be killed.
next hop
    The server or Maildir to which spamguard passes mail on.
door
    A port or socket at which spamguard takes mail, questions or lessons.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

__all__ = ["Filter", "__version__"]
__version__ = "1.0.0"


def __getattr__(name: str) -> Any:
    if name == "Filter":  # loaded when asked for, so that `--help` does not wait for numpy
        return import_module("spamguard.engine.filter").Filter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
