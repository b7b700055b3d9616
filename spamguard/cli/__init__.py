"""The command line: everything that the command `spamguard` does.

`main` runs a command; it turns errors into one line and an exit status. `arguments` knows which
module holds which command, and imports that module alone when the command is named; `--help` reads
them all. A command is a function that returns the exit status; its help and its arguments stand
above it (`arguments.command`). `common` has what they share: the filter, the configuration,
messages, progress and output. What a command does is in the rooms below: a command reads arguments,
calls them, and prints.

A module of commands must never import numpy, SQLite or a room that loads them at its top; such
imports stand in the functions that run. A command must never print to standard output what is not
its answer, and never let an error out as a traceback, unless it is a fault of the program itself.
Read `arguments` first, then `ask`.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence

from spamguard.cli import arguments, common
from spamguard.errors import SpamguardError, error_lines


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
        arguments.build_parser().print_help(sys.stderr)
        return common.EXIT_ERROR
    try:
        options, unknown = arguments.build_parser(words).parse_known_args(words)
        if unknown:
            options.wrong_usage(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:
        command = next((word for word in words if word in arguments.COMMANDS), "")
        if stop.code and command == "filter":  # a slip in a delivery recipe must not cost mail
            from spamguard.cli import ask

            return ask.pass_message(None)
        sys.stdout.flush()  # the help may have no reader either
        raise
    common.choose_service(options)
    status: int = options.run(options)
    return status
