"""What commands say of themselves to the parser of the command line, and the types of their arguments."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

Commands = Any  # what argparse's `add_subparsers` returns has no public name

PATHS = "message, mbox, Maildir, directory tree, TREC index, or - for standard input"
ONE_FOR_ALL, ONE_FOR_EACH = "answer in JSON", "answer in JSON, on a line for each message"
_WIDEST = 130  # columns
SITE = "(the site)"  # the user "" for people


class Help(argparse.RawDescriptionHelpFormatter):
    """Paragraphs no wider than the terminal; lines that begin with a blank, of lists and examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  as the base class has it
        lines = re.sub(r"(?<=\S)\n(?=\S)", " ", text).splitlines()
        return "\n".join(line if line.startswith(" ") else textwrap.fill(line, min(width, _WIDEST)) for line in lines)


def describe(commands: Commands, name: str, run: Callable[[argparse.Namespace], int], about: str, example: str) -> argparse.ArgumentParser:
    """A command's parser: about's first sentence, on one line, goes into the list of commands, the example under the help."""
    parser: argparse.ArgumentParser = commands.add_parser(name, description=about, epilog=f"example:\n{example}", formatter_class=Help)
    parser.set_defaults(run=run, wrong_usage=parser.error)
    _add_shared(parser)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    """What is for all commands says behind one, where most people write it first, the same as before it."""
    parser.add_argument(
        "--state",
        type=directory,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="directory of the filter (default: see `spamguard --help`)",
    )
    parser.add_argument("--profile", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_actions(parser: argparse.ArgumentParser) -> Commands:
    """Where a command's actions go, of which one must be named; `options.work` is what does it."""
    return parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)


def add_action(
    actions: Commands, name: str, work: Callable[..., int], about: str, json_about: str = ONE_FOR_ALL
) -> argparse.ArgumentParser:
    """One of several things that a command does, by `work`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=about, description=about)
    parser.set_defaults(work=work, wrong_usage=parser.error)
    _add_shared(parser)
    add_json(parser, json_about)
    return parser


def add_paths(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """The argument PATH…"""
    parser.add_argument("paths", nargs="+" if needed else "*", metavar="PATH", help=PATHS)


def add_json(parser: argparse.ArgumentParser, about: str = ONE_FOR_ALL) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help=about)


def add_user(parser: argparse.ArgumentParser) -> None:
    """The option --user of those who judge."""
    parser.add_argument(
        "--user", type=user, default="", metavar="NAME", help="whose mail it is: what this user has said weighs more (default: nobody's)"
    )


def directory(text: str) -> Path:
    """An argument that names a directory. An empty one, as of a variable that is not set, would name the one we happen to be in."""
    return _named(text, "a directory")


def file(text: str) -> Path:
    """An argument that names a file."""
    return _named(text, "a file")


def stream(text: str) -> str:
    """An argument that names a file, or is - for standard input or output."""
    file(text)
    return text


def _named(text: str, what: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError(f"the name of {what} is empty")
    return Path(text)


def teacher(text: str) -> str:
    """An argument that names who has taught: a user, or the site."""
    return "" if text == SITE else user(text)


def user(text: str) -> str:
    """An argument that names a user. Bytes that are no text are written as where a directory's name says whose mailbox it is."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def whole(text: str) -> int:
    """An argument that is a number of things."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)
