"""What other programs say of their configuration. Must never wait for long, and never fail: of what is not there nothing is known."""

from __future__ import annotations

import subprocess

_SECONDS = 10.0


def said(*command: str) -> str:
    """Standard output of a program; empty where there is no such program, or where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)  # noqa: S603  our own words
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")
