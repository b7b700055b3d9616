"""Letting others through to where a test has its files: pytest's own directories are its user's alone."""

from __future__ import annotations

from pathlib import Path

_OTHERS_MAY_PASS = 0o001


def let_through(place: Path) -> Path:
    """The same directory; those above it, up to one that others may pass already, now let them pass too."""
    for above in (place, *place.parents):
        if above.stat().st_mode & _OTHERS_MAY_PASS:
            break
        above.chmod(0o755)
    return place
