"""The commands, their parsers, and the types of their arguments.

A command is a function under `command`, which says what its help says, and lists its arguments:
each is a function that adds one or some to a parser. `COMMANDS` names the module of each, so that
one command loads one module; `build_parser` makes the parser of the program from what they
declare. The `parse_…` functions are types for argparse: they take a text and return a value, or
raise ArgumentTypeError with a sentence.

It uses argparse because click takes 20 ms to import, and `filter` starts for each message.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from spamguard import __version__, native
from spamguard.times import parse_time

Argument = Callable[[argparse.ArgumentParser], object]
"""Adds an argument, or some, to a parser."""
Run = Callable[[argparse.Namespace], int]
AnyRun = TypeVar("AnyRun", bound=Run)
Value = TypeVar("Value")

PATHS_HELP = "message, mbox, Maildir, directory tree, TREC index, or - for standard input"
SITE = "(the site)"  # how people write the user "", the site itself
_MAX_COLUMNS = 130

# ---- the commands, and the parser of the program

COMMANDS = {
    # run it
    "setup": "setup",
    "run": "run",
    "open-mailboxes": "run",
    "check": "run",
    "status": "status",
    "doctor": "run",
    "account": "account",
    # teach it
    "learn": "teach",
    "teach-folders": "teach",
    "teach-pipe": "teach",
    "forget": "teach",
    "undo": "keep",
    # ask it
    "judge": "ask",
    "filter": "ask",
    "explain": "ask",
    "history": "ask",
    # look after what is held, and who is let in
    "quarantine": "admin",
    "token": "admin",
    "login-link": "admin",
    # keep what it knows, share and measure it
    "backup": "keep",
    "restore": "keep",
    "rebuild": "keep",
    "import": "keep",
    "shared": "shared",
    "evaluate": "evaluate",
}
"""The commands in the order of the help, each with the module that holds it."""

_ABOUT = """\
A statistics-only spam filter: teach it mail, ask it about mail, take teaching back, see why.

PATH, wherever it is asked for, is a message, an mbox, a Maildir, a directory tree, a TREC index, or
- for standard input. `spamguard COMMAND --help` tells all about a command, with examples. The
options below may also stand behind the command."""

_EPILOG = """exit status:
  0    done
  1    judge: at least one message is unwanted; doctor, account check: something failed
       quarantine release: a recipient has not got a message; token revoke: there is no such token
  2    an error, told in one line on standard error
  3    judge: at least one message is unsure, none is unwanted
  65   teach-pipe: the input can never be a lesson
  75   teach-pipe: the lesson could not be left for the daemon
       filter: the message could not be written; after any other failure it goes through, with 0
  78   run, open-mailboxes: the configuration has mistakes
  130  interrupted
  141  nobody reads the answer any more

examples:
  spamguard learn --as ham ~/Maildir
  spamguard learn --as spam ~/Maildir/.Junk
  spamguard judge message.eml
  spamguard explain message.eml"""


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command in `words`, or of all commands if there is none.

    One alone saves about 20 ms for each message that `filter` gets.
    """
    top = argparse.ArgumentParser(
        "spamguard", description=_ABOUT, epilog=_EPILOG, formatter_class=HelpFormatter
    )
    version = f"spamguard {__version__} (kernel: {native.implementation()})"
    top.add_argument("--version", action="version", version=version)
    for add in _COMMON:
        add(top)
    top.set_defaults(state=None, config=None, profile="default")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in [name for name in COMMANDS if name in words] or COMMANDS:
        import_module(f"spamguard.cli.{COMMANDS[name]}")
        _add_command(commands, name)
    return top


# ---- how a command is declared


class Command(NamedTuple):
    """What `command` says of a command, or of an action of one."""

    run: Run
    about: str
    example: str
    arguments: Sequence[Argument]


_declared: dict[str, Command] = {}  # by name; that of an action has two words


def command(
    name: str, about: str, *arguments: Argument, example: str = ""
) -> Callable[[AnyRun], AnyRun]:
    """Declare that the function below is this command, or this action (`token list`) of one.

    about: its first sentence, which stands on one line, is also shown in the list of commands.
    example: an action has none.
    """

    def declare(run: AnyRun) -> AnyRun:
        _declared[name] = Command(run, about, example, arguments)
        return run

    return declare


def group(name: str, about: str, *, example: str) -> None:
    """Declare a command that consists of actions, of which one must be named."""
    command(name, about, example=example)(lambda _: 0)


def argument(name: str, about: str, metavar: str | None = None, **settings: Any) -> Argument:
    """One argument; settings: more of argparse's."""
    return lambda parser: parser.add_argument(name, help=about, metavar=metavar, **settings)


def flag(name: str, about: str) -> Argument:
    return lambda parser: parser.add_argument(name, help=about, action="store_true")


# ---- parsers


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs up to the width of the terminal.

    Lines that begin with a blank, those of lists and examples, stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  as the base class has it
        lines = re.sub(r"(?<=\S)\n(?=\S)", " ", text).splitlines()
        return "\n".join(
            line if line.startswith(" ") else textwrap.fill(line, min(width, _MAX_COLUMNS))
            for line in lines
        )


def _add_command(commands: Any, name: str) -> None:
    """Add the parser of a command or an action, and those of its actions."""
    declared = _declared[name]
    parser = commands.add_parser(
        name.rpartition(" ")[2],
        help=declared.about.partition(".")[0],
        description=declared.about,
        epilog=declared.example and f"example:\n{declared.example}",
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=declared.run, wrong_usage=parser.error)
    for add in (*_COMMON, *declared.arguments):
        add(parser)
    if actions := [other for other in _declared if other.startswith(f"{name} ")]:
        group = parser.add_subparsers(
            title="actions", metavar="ACTION", dest="action", required=True
        )
        for action in actions:
            _add_command(group, action)


# ---- types


def parse_path(text: str) -> Path:
    if not text:  # of a variable that is not set; it would mean the current directory
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def parsed_by(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A type that a function reads, which raises ValueError with a sentence."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def parse_user(text: str) -> str:
    """The name of a user, with bytes that are not UTF-8 escaped as in names of directories."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def parse_teacher(text: str) -> str:
    """The name of a user, or "" for the site."""
    return "" if text == SITE else parse_user(text)


def parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


_FORMS = "say it as 90m, 12h, 2d, 1w, today, yesterday, tuesday, 2026-11-17 or '2026-11-17 08:00'"


def parse_moment(text: str) -> int:
    """Seconds since 1970 of a time that is over."""
    now = datetime.now()  # local time
    try:
        moment = int(parse_time(text, now))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {_FORMS}") from None
    if moment > now.timestamp():
        raise argparse.ArgumentTypeError(f"{text!r} is still to come: {_FORMS}")
    return moment


# ---- arguments that several commands share

_COMMON = (  # which most people write behind the command
    argument(
        "--state",
        "directory of the filter (default: `state` in the configuration, or $SPAMGUARD_STATE, or "
        "spamguard in $XDG_STATE_HOME, or ~/.local/state/spamguard)",
        "DIR",
        default=argparse.SUPPRESS,
        type=parse_path,
    ),
    argument(
        "--config",
        "the configuration (YAML). Default for root, if no filter is named: that of the service, "
        "/etc/spamguard/spamguard.yaml, if it is there",
        "FILE",
        default=argparse.SUPPRESS,
        type=parse_path,
    ),
    argument(
        "--profile",
        "how to judge: default (all experts together), bernoulli or multinomial",
        "NAME",
        default=argparse.SUPPRESS,
    ),
)
PATHS_OR_IDS = argument(
    "paths",
    f"{PATHS_HELP}; or the id of a message that passed, as X-Spamguard has it, or its name in "
    "the log (message=)",
    "PATH|ID",
    nargs="*",
)
JSON = flag("--json", "answer in JSON")
JSON_LINES = flag("--json", "answer in JSON, on a line for each message")
DRY_RUN = flag("--dry-run", "only say what would be done")
SINCE = argument(
    "--since",
    "only from then on: 2d, tuesday, 2026-11-17, '2026-11-17 08:00' (local time)",
    "WHEN",
    type=parse_moment,
    default=0,
)
UNTIL = argument("--until", "only before then", "WHEN", type=parse_moment, default=0)
USER = argument(
    "--user",
    "whose mail it is: what this user has taught weighs more (default: nobody's)",
    "NAME",
    type=parse_user,
    default="",
)
TEACHER = argument(
    "--user",
    "whose word it is; a majority of users counts (default: the site's)",
    "NAME",
    type=parse_teacher,
    default="",
)


def require_paths(options: argparse.Namespace) -> None:
    if not options.paths:
        options.wrong_usage("the following arguments are required: PATH|ID")
