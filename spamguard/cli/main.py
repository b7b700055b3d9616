"""The command `spamguard`: its table of commands, its help, and its exit statuses.

`COMMANDS` names the module of each command. `main` imports only the module of the command that is
named on the command line; `--help` imports them all, for their first sentences.

Must never show a traceback for anything but a fault of the program itself, and must stay quick to
import: `filter` is started for each message.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from spamguard import __version__, native
from spamguard.cli import arguments, common
from spamguard.errors import SpamguardError, error_lines

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
        "undo": "undo",
    },
    "ask it": {
        "judge": "judge",
        "filter": "judge",
        "explain": "judge",
        "history": "history",
    },
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
    "read about it": {"help": "help", "completion": "help"},
}
"""The commands by purpose, in the order of the help, each with the module that holds it."""

COMMANDS = {command: module for commands in GROUPS.values() for command, module in commands.items()}

_ABOUT = """\
A statistics-only spam filter: teach it mail, ask it about mail, take teaching back, see why.

PATH, wherever it is asked for, is a message, an mbox, a Maildir, a directory tree, a TREC index, or
- for standard input. `spamguard COMMAND --help` tells all about a command, with examples. The
options below may also stand behind the command."""

_EPILOG = """exit status:
  0    done
  1    judge: at least one message is unwanted; doctor: something failed
       quarantine release: a recipient has not got a message; token revoke: there is no such token
  2    an error, told in one line on standard error
  3    judge: at least one message is unsure, none is unwanted
  65   teach-pipe: the input can never be a lesson
  75   teach-pipe: nobody took the lesson, or there is no such class
       filter: the message could not be written; after any other failure it goes through, with 0
  78   run, open-mailboxes: the configuration has mistakes
  130  interrupted
  141  nobody reads the answer any more

examples:
  spamguard learn --as ham ~/Maildir
  spamguard learn --as spam ~/Maildir/.Junk
  spamguard judge message.eml
  spamguard explain message.eml"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    words: the command line without the name of the program. SystemExit, as argparse raises it, for
    --help and wrong usage.
    """
    for stream in (sys.stdout, sys.stderr):  # any text can be printed, whatever the encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.lastResort = _StderrHandler(logging.WARNING)
    try:
        status = _run_command(list(sys.argv[1:] if words is None else words))
        sys.stdout.flush()
    except SpamguardError as error:
        return common.fail(*error_lines(error))
    except BrokenPipeError:
        common.discard_output()
        return common.EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return common.EXIT_INTERRUPTED
    except MemoryError:
        return common.fail(f"there is not enough memory: {common.MEMORY_REMEDY}")
    except OSError as error:
        common.discard_output()
        return common.fail(common.describe_error(error))
    return status


class _StderrHandler(logging.Handler):
    """Prints log records of commands that configure no log, such as a damaged file."""

    def emit(self, record: logging.LogRecord) -> None:
        common.say(f"{record.levelname.lower()}: {record.getMessage()}", record.levelno)


def _run_command(words: Sequence[str]) -> int:
    if not words:
        build_parser().print_help(sys.stderr)
        return common.EXIT_ERROR
    try:
        options, unknown = build_parser(words[:1]).parse_known_args(words)
        if unknown:
            options.wrong_usage(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:
        command = next((word for word in words if word in COMMANDS), "")
        if stop.code and command == "filter":  # a slip in a delivery recipe must not cost mail
            from spamguard.cli import judge

            return judge.pass_unscanned("wrong usage")
        sys.stdout.flush()  # the help may have no reader either
        raise
    status: int = options.run(options)
    return status


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command in `words`, or of all commands if there is none.

    One alone saves about 20 ms for each message that `filter` gets.
    """
    top = arguments.CommandParser(
        "spamguard", epilog=_EPILOG, formatter_class=arguments.HelpFormatter
    )
    version = f"spamguard {__version__} (kernel: {native.implementation()})"
    top.add_argument("--version", action="version", version=version)
    top.add_argument(
        "--state",
        type=arguments.parse_directory,
        metavar="DIR",
        help="directory of the filter (default: $SPAMGUARD_STATE, or spamguard in "
        "$XDG_STATE_HOME, or ~/.local/state/spamguard)",
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
    names = [name for name in COMMANDS if name in words] or list(COMMANDS)
    for name in names:
        module = import_module(f"spamguard.cli.{COMMANDS[name]}")
        getattr(module, f"add_{name.replace('-', '_')}")(commands)
    # argparse would leave out the command, because the help suppresses it
    top.usage = f"{top.prog} [-h] [--version] [--state DIR] [--profile NAME] COMMAND ..."
    if len(names) == len(COMMANDS):
        top.description = "\n\n".join(
            (
                _ABOUT,
                *(
                    _list_commands(title, group, commands.choices)
                    for title, group in GROUPS.items()
                ),
            )
        )
    return top


def _list_commands(
    title: str, names: Mapping[str, str], parsers: Mapping[str, argparse.ArgumentParser]
) -> str:
    """A group of commands, each with its first sentence."""
    sentences = [(name, (parsers[name].description or "").partition(".")[0]) for name in names]
    return "\n".join((f"{title}:", *(f"  {name:14}  {text}" for name, text in sentences)))
