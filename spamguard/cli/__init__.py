"""The command `spamguard`. One file per command: `add` describes its arguments, `run` does it and returns the exit status.

Must never show a traceback for anything but a fault of the program itself, and must stay quick to import: whatever loads
numpy is imported by the `run` that needs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

from spamguard import __version__
from spamguard.cli import filter as filtering
from spamguard.cli import rim

COMMANDS = (
    "run",
    "open-mailboxes",
    "check",
    "learn",
    "teach-folders",
    "teach-pipe",
    "forget",
    "undo",
    "judge",
    "filter",
    "explain",
    "quarantine",
    "token",
    "login-link",
    "status",
    "doctor",
    "evaluate",
    "corpus",
    "rebuild",
    "backup",
    "restore",
    "export",
    "import",
)
"""Names of commands in the order of the help; each is a module of this package (with a `_` behind a word of Python's, and for -)."""

_ABOUT = """A statistics-only spam filter: teach it mail, ask it about mail, take teaching back, see why.

PATH, wherever it is asked for, is a message, an mbox, a Maildir, a directory tree, a TREC index, or - for standard input."""

_EPILOG = """exit status:
  0    done; judge: no message is unwanted or unsure
  1    judge: at least one message is unwanted
  2    an error, told in one line on standard error
  3    judge: at least one message is unsure, none is unwanted
  filter always lets the mail through and exits with 0, unless it could not be written (75)
  run, open-mailboxes: 78 when the configuration has mistakes
  doctor: 1 when something failed; quarantine release: when a recipient has not got a message; token revoke: when there is no such token
  teach-pipe: 75 when nobody took the lesson or there is no such class, 65 when it can never be one
  130  interrupted; 141 when nobody reads the answer any more

examples:
  spamguard learn --as ham ~/Maildir
  spamguard learn --as spam ~/Maildir/.Junk
  spamguard judge message.eml"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. SystemExit, as argparse raises it, for --help and wrong usage."""
    return rim.guarded(_run, list(sys.argv[1:] if arguments is None else arguments))


def _run(given: Sequence[str]) -> int:
    try:
        options = parser().parse_args(given)
    except SystemExit as stop:
        if stop.code and _command(given) == "filter":  # a slip in a delivery recipe must not cost mail either
            return filtering.unscanned("wrong usage")
        sys.stdout.flush()  # the help may have nowhere to go, too
        raise
    status: int = options.run(options)
    return status


def _command(given: Sequence[str]) -> str:
    """Which one was meant by arguments that cannot be parsed."""
    return next((word for word in given if word in COMMANDS), "")


def parser() -> argparse.ArgumentParser:
    """All arguments of all commands."""
    top = argparse.ArgumentParser("spamguard", description=_ABOUT, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"spamguard {__version__}")
    top.add_argument(
        "--state",
        type=rim.directory,
        metavar="DIR",
        help="directory of the filter, here or behind the command (default: $SPAMGUARD_STATE, or spamguard in $XDG_STATE_HOME, "
        "or ~/.local/state/spamguard)",
    )
    top.add_argument(
        "--profile", default="default", metavar="NAME", help="how to judge; `status` lists the names (default: all experts together)"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name in COMMANDS:
        import_module(f"spamguard.cli.{name.replace('-', '_')}{'_' if iskeyword(name) else ''}").add(commands)
    return top
