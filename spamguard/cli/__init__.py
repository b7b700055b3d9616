"""The command `spamguard`. One file per command: `add` describes its arguments, `run` does it and returns the exit status.

Must never show a traceback for anything but a fault of the program itself, and must stay quick to import: whatever loads
numpy is imported by the `run` that needs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from keyword import iskeyword

from spamguard import __version__
from spamguard.cli import filter as filtering
from spamguard.cli import rim, usage

GROUPS = {
    "run it": ("run", "open-mailboxes", "check", "status", "doctor"),
    "teach it": ("learn", "teach-folders", "teach-pipe", "forget", "undo"),
    "ask it": ("judge", "filter", "explain"),
    "look after what is held, and who is let in": ("quarantine", "token", "login-link"),
    "keep what it knows": ("backup", "restore", "rebuild", "export", "import"),
    "measure it": ("evaluate", "corpus"),
}
"""Names of commands by what they are for, in the order of the help; each is a module of this package (with a `_` behind a word of
Python's, and for -)."""

COMMANDS = tuple(chain.from_iterable(GROUPS.values()))

_ABOUT = """A statistics-only spam filter: teach it mail, ask it about mail, take teaching back, see why.

PATH, wherever it is asked for, is a message, an mbox, a Maildir, a directory tree, a TREC index, or - for standard input.
`spamguard COMMAND --help` tells all about a command, with examples. The options below may stand behind it, too."""

_EPILOG = """exit status:
  0    done
  1    judge: at least one message is unwanted; doctor: something failed
       quarantine release: a recipient has not got a message; token revoke: there is no such token
  2    an error, told in one line on standard error
  3    judge: at least one message is unsure, none is unwanted
  65   teach-pipe: what came can never be a lesson
  75   teach-pipe: nobody took the lesson, or there is no such class
       filter: the message could not be written; whatever else fails, it goes through, with 0
  78   run, open-mailboxes: the configuration has mistakes
  130  interrupted
  141  nobody reads the answer any more

examples:
  spamguard learn --as ham ~/Maildir
  spamguard learn --as spam ~/Maildir/.Junk
  spamguard judge message.eml
  spamguard explain message.eml"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. SystemExit, as argparse raises it, for --help and wrong usage."""
    return rim.guarded(_run, list(sys.argv[1:] if arguments is None else arguments))


def _run(given: Sequence[str]) -> int:
    if not given:
        parser().print_help(sys.stderr)
        return rim.ERROR
    try:
        options, unknown = parser(given[:1]).parse_known_args(given)
        if unknown:
            options.wrong_usage(f"unrecognized arguments: {' '.join(unknown)}")
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


def parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """All arguments of all commands; of one alone where that is given: some 20 ms less for each message that `filter` gets."""
    top = argparse.ArgumentParser("spamguard", epilog=_EPILOG, formatter_class=usage.Help)
    top.add_argument("--version", action="version", version=f"spamguard {__version__}")
    top.add_argument(
        "--state",
        type=usage.directory,
        metavar="DIR",
        help="directory of the filter (default: $SPAMGUARD_STATE, or spamguard in $XDG_STATE_HOME, or ~/.local/state/spamguard)",
    )
    top.add_argument(
        "--profile", default="default", metavar="NAME", help="how to judge; `status` lists the names (default: all experts together)"
    )
    commands = top.add_subparsers(metavar="COMMAND", dest="command", required=True, help=argparse.SUPPRESS)
    wanted = [name for name in COMMANDS if name in given] or COMMANDS
    for name in wanted:
        import_module(f"spamguard.cli.{name.replace('-', '_')}{'_' if iskeyword(name) else ''}").add(commands)
    top.usage = f"{top.prog} [-h] [--version] [--state DIR] [--profile NAME] COMMAND ..."  # argparse leaves out what its help does not list
    if wanted is COMMANDS:
        top.description = "\n\n".join((_ABOUT, *(_listed(title, names, commands.choices) for title, names in GROUPS.items())))
    return top


def _listed(title: str, names: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Commands, each with the first sentence about it."""
    return "\n".join((f"{title}:", *(f"  {name:14}  {(parsers[name].description or '').partition('.')[0]}" for name in names)))
