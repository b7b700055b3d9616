"""The command `spamguard`. One file per command: `add` describes its arguments, `run` does it and
returns the exit status.

Must never show a traceback for anything but a fault of the program itself, and must stay quick to
import: whatever loads numpy is imported by the `run` that needs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from spamguard import __version__
from spamguard.cli import common

GROUPS = {
    "run it": {
        "run": "run",
        "open-mailboxes": "run",
        "check": "run",
        "status": "status",
        "doctor": "doctor",
    },
    "teach it": {
        "learn": "teach",
        "teach-folders": "teach_folders",
        "teach-pipe": "teach",
        "forget": "teach",
        "undo": "teach",
    },
    "ask it": {"judge": "judge", "filter": "judge", "explain": "judge"},
    "look after what is held, and who is let in": {
        "quarantine": "quarantine",
        "token": "access",
        "login-link": "access",
    },
    "keep what it knows": {
        "backup": "backup",
        "restore": "backup",
        "rebuild": "backup",
        "export": "transfer",
        "import": "transfer",
    },
    "measure it": {"evaluate": "evaluate", "corpus": "evaluate"},
}
"""Commands by what they are for, in the order of the help, and the module of this package that
holds `add_<command>`.
"""

COMMANDS = {command: module for commands in GROUPS.values() for command, module in commands.items()}

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
    """Run one command; its exit status. SystemExit, as argparse raises it, for --help and wrong
    usage.
    """
    return common.run_guarded(_run_command, list(sys.argv[1:] if arguments is None else arguments))


def _run_command(given: Sequence[str]) -> int:
    if not given:
        build_parser().print_help(sys.stderr)
        return common.EXIT_ERROR
    try:
        options, unknown = build_parser(given[:1]).parse_known_args(given)
        if unknown:
            options.wrong_usage(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:
        if (
            stop.code and _named_command(given) == "filter"
        ):  # a slip in a delivery recipe must not cost mail either
            from spamguard.cli import judge

            return judge.pass_unscanned("wrong usage")
        sys.stdout.flush()  # the help may have nowhere to go, too
        raise
    status: int = options.run(options)
    return status


def _named_command(given: Sequence[str]) -> str:
    """Which one was meant by arguments that cannot be parsed."""
    return next((word for word in given if word in COMMANDS), "")


def build_parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """All arguments of all commands; of one alone where that is given: some 20 ms less for each
    message that `filter` gets.
    """
    top = argparse.ArgumentParser("spamguard", epilog=_EPILOG, formatter_class=common.HelpFormatter)
    top.add_argument("--version", action="version", version=f"spamguard {__version__}")
    top.add_argument(
        "--state",
        type=common.directory_argument,
        metavar="DIR",
        help="directory of the filter (default: $SPAMGUARD_STATE, or spamguard in $XDG_STATE_HOME, or ~/.local/state/spamguard)",
    )
    top.add_argument(
        "--profile",
        default="default",
        metavar="NAME",
        help="how to judge; `status` lists the names (default: all experts together)",
    )
    commands = top.add_subparsers(
        metavar="COMMAND", dest="command", required=True, help=argparse.SUPPRESS
    )
    wanted = [name for name in COMMANDS if name in given] or list(COMMANDS)
    for name in wanted:
        getattr(import_module(f"spamguard.cli.{COMMANDS[name]}"), f"add_{name.replace('-', '_')}")(
            commands
        )
    # argparse leaves out what its help does not list
    top.usage = f"{top.prog} [-h] [--version] [--state DIR] [--profile NAME] COMMAND ..."
    if len(wanted) == len(COMMANDS):
        top.description = "\n\n".join(
            (
                _ABOUT,
                *(
                    _list_commands(title, list(names), commands.choices)
                    for title, names in GROUPS.items()
                ),
            )
        )
    return top


def _list_commands(
    title: str, names: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]
) -> str:
    """Commands, each with the first sentence about it."""
    return "\n".join(
        (
            f"{title}:",
            *(
                f"  {name:14}  {(parsers[name].description or '').partition('.')[0]}"
                for name in names
            ),
        )
    )
