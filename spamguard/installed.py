"""Whether what is installed is still what runs. `pip install -U` replaces the package under a daemon: what that started then would be of
another version than itself, take its questions for something else, and might rewrite the ledger in which the others still write.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_FILE = Path(__file__).with_name("__init__.py")  # written anew by every installation, and hardly ever by anything else


class ReplacedError(OSError):
    """Another spamguard is installed by now than the one that runs."""

    def __init__(self) -> None:
        super().__init__("another spamguard was installed than the one that runs: restart it, as by `systemctl restart spamguard`")


def check() -> None:
    """Before another process of the package is started. ReplacedError."""
    if _written() != _BEGUN:
        raise ReplacedError


def _written() -> int:
    with suppress(OSError):
        return _FILE.stat().st_mtime_ns
    return 0


_BEGUN = _written()
