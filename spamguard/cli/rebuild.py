"""`rebuild`: all tables anew from the receipts. Reads nothing but the ledger, so that damaged tables cannot stand in its way."""

from __future__ import annotations

import argparse
import sys
import time

from spamguard.cli import rim, usage

ABOUT = """Make the tables anew from the receipts. For tables that are damaged or missing; nothing is taught anew.

If the old tables prove that the ledger has lost events, as from a damaged log, it says so."""
EXAMPLE = """  spamguard rebuild"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "rebuild", run, ABOUT, EXAMPLE)
    usage.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Rebuild; say from how much."""
    from spamguard.model import loss

    begun = time.monotonic()
    with rim.open_existing(options, load=False) as spam_filter:
        if sys.stderr.isatty():
            rim.say("replaying all receipts; judging and teaching go on meanwhile")
        spam_filter.settle()
        classes, lost = spam_filter.status().classes, spam_filter.loss()
        spam_filter.forget_loss()
    seconds = time.monotonic() - begun
    number = sum(classes.values())
    text = f"rebuilt the tables from the receipts of {rim.counted(number)} in {seconds:.1f} s"
    if lost is not None:
        text += f"\n{loss.describe(lost)}: {loss.MENDED_BY}"
    rim.answer(options, text, {"classes": dict(classes), "seconds": round(seconds, 3), "lost_events": lost.events if lost else 0})
    return 0
