"""Texts of configuration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spamguard.config.options import Settings
from spamguard.config.schema import group_in, options

SHIPPED = Path(__file__).parents[3] / "config" / "spamguard.yaml"
STATE = "state: /var/lib/spamguard\n"


def listener(
    more: str = "",
    *,
    listen: str = "smtp://127.0.0.1:10025",
    position: str = "standalone",
    hop: str = "smtp://192.0.2.1:25",
) -> str:
    """A file with one listener; `more` is indented by four and begins in line 6."""
    return (
        f"{STATE}listeners:\n  - listen: {listen}\n    position: {position}\n"
        f"    next_hop: {hop}\n{more}"
    )


def keys(group: Any = Settings) -> list[str]:
    """The keys of a group and of all groups in it."""
    inner = filter(None, map(group_in, options(group).values()))
    return [*options(group), *(key for each in inner for key in keys(each))]
