"""What a process says of itself in a small JSON file of the state directory, for all who ask.

The file is written whole under another name and then renamed, so that a reader never sees half of
it. Must never make a reader fail: a file that is missing or damaged is one that says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from spamguard.storage import replace_private

T = TypeVar("T")


@dataclass(frozen=True)
class StatusFile(Generic[T]):
    """A file in any state directory, by its name, and what it holds."""

    name: str
    kind: type[T]

    def read(self, state: Path) -> T | None:
        """What was said last; None: nothing is known."""
        try:
            return msgspec.json.decode((state / self.name).read_bytes(), type=self.kind)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def write(self, state: Path, value: T) -> None:
        """Say it in the place of the former. OSError."""
        replace_private(state / self.name, [msgspec.json.encode(value)], durable=False)
