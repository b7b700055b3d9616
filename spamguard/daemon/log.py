"""The log of the daemon's processes: a line for each event on standard error, with the time unless the journal adds it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

_PLAIN = "%(name)s[%(process)d]: %(levelname)s: %(message)s"


def configure(environment: Mapping[str, str]) -> None:
    """Send everything from INFO on to standard error."""
    form = _PLAIN if _to_journal(environment) else f"%(asctime)s {_PLAIN}"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _OneLine(logging.Formatter):
    """Names and replies from the network stand in messages: none of them may begin a line of its own. Tracebacks may."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class calls it so
        text = super().formatMessage(record)
        if text.isprintable():  # as nearly all are
            return text
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _to_journal(environment: Mapping[str, str]) -> bool:
    """Whether standard error is the journal's socket (systemd.exec, $JOURNAL_STREAM: its device and inode)."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
