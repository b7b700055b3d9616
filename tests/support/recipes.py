"""The snippets of config/ as a user copies them, with only the paths changed that a test must
choose.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".ci" / "unpacked"


def snippet(name: str, **replace: str) -> str:
    """A file of config/. replace: new texts by old ones, as `{"10025": "4711"}`. AssertionError: an
    old text is not in the file.
    """
    text = (ROOT / "config" / name).read_text("utf-8")
    for old, new in replace.items():
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return text


def program(name: str, package: str) -> str | None:
    """A program of Debian: installed, or unpacked by .ci/packages."""
    place = UNPACKED / package / "usr" / "sbin" / name
    return shutil.which(name) or (str(place) if place.exists() else None)


def command(place: Path) -> Path:
    """`spamguard` as a program that needs nothing of this process's environment."""
    file = place / "spamguard"
    file.write_text(
        f"#!/bin/sh\nPYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1 exec {sys.executable} -m "
        'spamguard "$@"\n'
    )
    file.chmod(0o755)
    return file
