"""`judge`: a verdict per message, as a line and as an exit status. Never writes to the filter."""

from __future__ import annotations

import argparse
import sys
from itertools import tee
from typing import TYPE_CHECKING

from spamguard.cli import rim, usage
from spamguard.errors import SourceError

if TYPE_CHECKING:
    from spamguard.records import Verdict

ABOUT = """Judge messages. One line for each: label, probability of being unwanted, name.

Exit status: 1 when at least one message is unwanted; else 3 when at least one is unsure; else 0. 2 is an error."""
EXAMPLE = """  spamguard judge message.eml
  spamguard judge --json ~/Maildir/.Junk
  spamguard judge --user anna message.eml
  spamguard judge - < message.eml >/dev/null; test $? -eq 1 && echo unwanted"""

WANTED, UNWANTED, UNSURE = 0, 1, 3
_COLOURS = {WANTED: "32", UNWANTED: "31", UNSURE: "33"}


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "judge", run, ABOUT, EXAMPLE)
    usage.add_user(parser)
    usage.add_json(parser, usage.ONE_FOR_EACH)
    usage.add_paths(parser)


def run(options: argparse.Namespace) -> int:
    """Judge and print."""
    seen: set[int] = set()
    paint = rim.painter()
    found = rim.messages(options.paths)
    if not sys.stdout.isatty():  # where the verdicts would break a bar
        found = rim.with_progress(found, rim.expected(options.paths))
    with rim.open_to_ask(options) as spam_filter:
        named, read = tee(found)
        for message, verdict in zip(named, spam_filter.judge_all((one.raw for one in read), user=options.user), strict=True):
            kind = _kind(verdict, spam_filter.unwanted)
            seen.add(kind)
            print(_json(message.name, verdict) if options.json else _line(message.name, verdict, paint, _COLOURS[kind]))
    if not seen:
        raise SourceError(f"{', '.join(options.paths)}: no message there to judge; check the path")
    return next(kind for kind in (UNWANTED, UNSURE, WANTED) if kind in seen)


def _kind(verdict: Verdict, unwanted: frozenset[str]) -> int:
    if verdict.label not in verdict.probabilities:
        return UNSURE
    return UNWANTED if verdict.label in unwanted else WANTED


def _line(name: str, verdict: Verdict, paint: rim.Painter, colour: str) -> str:
    width = max(len("unsure"), *map(len, verdict.probabilities))
    return f"{paint(verdict.label.ljust(width), colour)}  {verdict.probability:.4f}  {name}"


def _json(name: str, verdict: Verdict) -> str:
    from spamguard.web.api import shapes

    return rim.as_json({"name": name, **shapes.verdict(verdict)})
