"""`teach-pipe` among the other commands; `spamguard.__main__` runs it without loading them, as it is to be quick."""

from __future__ import annotations

import argparse

from spamguard.cli import rim
from spamguard.teaching import pipe


def add(commands: rim.Commands) -> None:
    """The command's arguments."""
    pipe.add_arguments(rim.describe(commands, "teach-pipe", run, pipe.ABOUT, pipe.EXAMPLE))


def run(options: argparse.Namespace) -> int:
    """Hand a lesson over."""
    return pipe.run(options)
