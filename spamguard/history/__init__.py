"""What was judged lately, for "why?" and "that was wrong" from an id alone: features and circumstances, no bodies.

Must never keep mail waiting, and never grow beyond the bytes and days it was given.
"""

from spamguard.history.row import Row
from spamguard.history.store import History
from spamguard.history.writer import HistoryWriter

FILE = "history.sqlite"
"""Its name in the state directory."""

__all__ = ["FILE", "History", "HistoryWriter", "Row"]
