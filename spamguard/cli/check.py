"""`check`: is the configuration right, and what is in force with it? Never writes and never connects."""

from __future__ import annotations

import argparse
from pathlib import Path

from spamguard.cli import rim
from spamguard.errors import ConfigError

ABOUT = """Check a configuration. Prints everything that is in force, defaults too, as YAML; or every mistake with its line.

Without FILE: what holds without a configuration. Warnings go to standard error and leave the exit status 0."""
EXAMPLE = """  spamguard check /etc/spamguard/spamguard.yaml"""


def add(commands: rim.Commands) -> None:
    """The command's arguments."""
    parser = rim.describe(commands, "check", run, ABOUT, EXAMPLE)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the configuration (YAML)")


def run(options: argparse.Namespace) -> int:
    """Print what is in force, or what is wrong."""
    from spamguard import config

    try:
        settings = config.from_command_line(options.file, usual_state=rim.state_directory(options), state=options.state)
    except ConfigError as error:
        for problem in error.problems:
            rim.say(problem)
        return rim.ERROR
    for warning in config.warnings(settings):
        rim.say(f"warning: {warning}")
    print(config.effective(settings), end="")
    return 0
