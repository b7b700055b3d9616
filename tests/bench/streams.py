"""Mail in order of arrival, which is kept, because near-copies arrive together: mail split at
random would be known already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Mail(NamedTuple):
    """One message: its true class, and its file."""

    label: str
    path: Path


def labelled(index: str | Path) -> list[Mail]:
    """The messages of a TREC index."""
    place = Path(index)
    if not place.exists():
        raise SystemExit(f"no corpus at {place}; `python corpora/fetch.py` gets one")
    pairs = [line.split(maxsplit=1) for line in place.read_text("utf-8").splitlines()]
    return [Mail(label, place.parent / name) for label, name in pairs]


def in_turns(streams: Sequence[Sequence[Mail]]) -> list[Mail]:
    """Several streams as one: each in its own order, all running out together."""
    due = [
        ((number + 0.5) / len(some), place, one)
        for place, some in enumerate(streams)
        for number, one in enumerate(some)
    ]
    return [one for _, _, one in sorted(due, key=lambda item: item[:2])]
