"""`teach-pipe` among the other commands; `spamguard.__main__` runs it without loading them, as it is to be quick."""

from __future__ import annotations

import argparse

from spamguard.cli import usage
from spamguard.teaching import pipe


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    pipe.add_arguments(usage.describe(commands, "teach-pipe", run, pipe.ABOUT, pipe.EXAMPLE))


def run(options: argparse.Namespace) -> int:
    """Hand a lesson over."""
    return pipe.run(options)
