"""How many idle and wrong commands a client may send before its next message."""

from __future__ import annotations

from spamguard.settings import DoorLimits


class Patience:
    """How many idle and wrong commands one connection may still send before its next message."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self.renew()

    def renew(self) -> None:
        """After a message."""
        self._idle = self._limits.idle_commands
        self._wrong = self._limits.wrong_commands

    def idle(self) -> None:
        """One that does nothing for a message."""
        self._idle -= 1

    def wrong(self) -> None:
        """One that was refused or not understood."""
        self._wrong -= 1

    @property
    def lost(self) -> bool:
        """Whether it has sent too many."""
        return self._idle < 0 or self._wrong < 0
