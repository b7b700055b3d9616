"""Which fields of a message claim a verdict that was not given here, and how a server is told to remove them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spamguard.mail.rewrite import FieldNames
from spamguard.wire.milter import remove_field

MOST = 1000
"""Fields of one message that are removed: the server looks for each from the top, so some 100,000 would keep it busy for very long."""
LONGEST = 998
"""Bytes of a name, as of a line (RFC 5322, section 2.1.1): nobody reads longer ones, and they would be kept here, and sent back, whole."""


class Forged:
    """Finds forged fields as they come. names: as in `settings.FORGED`: `*` at the end stands for anything."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = FieldNames(names)
        self._counts: Counter[bytes] = Counter()
        self._found: list[tuple[bytes, int]] = []

    def see(self, name: bytes) -> None:
        """The next field of the header has this name."""
        lower = name.strip(b" \t").lower()
        if len(self._found) < MOST and len(lower) <= LONGEST and lower in self._names:
            self._counts[lower] += 1
            self._found.append((lower, self._counts[lower]))

    def removals(self) -> list[bytes]:
        """Packets for the server. The last goes first, so that none changes its number before its turn."""
        return [remove_field(name, occurrence) for name, occurrence in reversed(self._found)]
