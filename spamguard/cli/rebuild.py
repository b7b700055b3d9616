"""`rebuild`: all tables anew from the receipts. Reads nothing but the ledger, so that damaged tables cannot stand in its way."""

from __future__ import annotations

import argparse
import sys
import time

from spamguard.cli import rim, usage

ABOUT = """Make the tables anew from the receipts. For tables that are damaged or missing; nothing is lost and nothing is taught anew."""
EXAMPLE = """  spamguard rebuild"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "rebuild", run, ABOUT, EXAMPLE)
    usage.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Rebuild; say from how much."""
    begun = time.monotonic()
    with rim.open_existing(options, load=False) as spam_filter:
        if sys.stderr.isatty():
            rim.say("replaying all receipts; judging and teaching go on meanwhile")
        spam_filter.settle()
        classes = spam_filter.status().classes
    seconds = time.monotonic() - begun
    number = sum(classes.values())
    text = f"rebuilt the tables from the receipts of {rim.counted(number)} in {seconds:.1f} s"
    rim.answer(options, text, {"classes": dict(classes), "seconds": round(seconds, 3)})
    return 0
