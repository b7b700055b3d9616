"""`teach-pipe`: a message from standard input to the daemon, as a lesson. For delivery agents and Sieve, which wait for it.

Must be gone at once, whatever the daemon does (measured: 40 ms of the processor, of which Python's start takes 13, argparse and socket 15),
and must succeed whenever the lesson is safe: a delivery agent that is told of a failure may refuse what the person wanted to do.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from spamguard.teaching import client
from spamguard.teaching.client import SPOOL
from spamguard.teaching.lesson import MOST_BYTES, Header, is_class, is_user

SOCKET = "/run/spamguard/teach.sock"
WRONG = 65  # EX_DATAERR of sysexits.h
TRY_AGAIN = 75  # EX_TEMPFAIL

ABOUT = """Hand a message on standard input to the daemon as a lesson. Answers at once: learning comes after.

A lesson that was taught before is a success. When the daemon is not there, the lesson is left in a directory from which it takes it
later. Whose lesson it is: the user whose process this is; those listed as `for_others` in the configuration name another.
Exit status 75: neither daemon nor directory took it, or there is no such class, so that mail systems keep it and try again;
65: it can never be one (no name of a class, a message that is too large).
A class must be there already (`spamguard learn --as CLASS` makes one). While the daemon is down nobody can tell: lessons of other
classes are then dropped later, as `spamguard status` says."""
EXAMPLE = "  spamguard teach-pipe --as spam --user anna@example.org < message.eml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--as", dest="label", required=True, metavar="CLASS", help="spam, ham or another class")
    parser.add_argument("--user", default="", metavar="NAME", help="whose lesson it is (for those who may name others)")
    parser.add_argument("--socket", default=SOCKET, metavar="PATH", help=f"where the daemon listens (default: {SOCKET})")
    parser.add_argument("--spool", default=SPOOL, metavar="DIR", help=f"where to leave it otherwise (default: {SPOOL})")


def main(arguments: Sequence[str]) -> int:
    """The command by itself, without loading the others; its exit status."""
    parser = argparse.ArgumentParser(
        "spamguard teach-pipe", description=ABOUT, epilog=f"example:\n{EXAMPLE}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Hand over what stands on standard input."""
    try:
        raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        if wrong := _mistake(options, raw):
            return _fail(wrong, WRONG)
        _deliver(options, Header(options.label, len(raw), options.user), raw)
    except client.RefusedError as error:
        return _fail(f"the lesson was refused: {error}", WRONG)
    except client.HeldError as error:
        return _fail(f"the lesson cannot be learnt now: {error}", TRY_AGAIN)
    except OSError as error:
        return _fail(f"the lesson could neither be handed over nor left in {options.spool}: {error.strerror or error}", TRY_AGAIN)
    return os.EX_OK


def _mistake(options: argparse.Namespace, raw: bytes) -> str:
    if not is_class(options.label):
        return f"{options.label!r} is no class"
    if options.user and not is_user(options.user):
        return f"{options.user!r} is no name of a user"
    if not raw:
        return "there is no message on standard input"
    return f"the message has more than {MOST_BYTES} bytes" if len(raw) > MOST_BYTES else ""


def _deliver(options: argparse.Namespace, header: Header, raw: bytes) -> None:
    try:
        client.hand_over(options.socket, header, raw)
    except OSError:  # down, starting, too busy: it comes to the same
        client.leave(options.spool, header, raw)


def _fail(text: str, status: int) -> int:
    line = "".join(char if char.isprintable() else "?" for char in text)
    print(f"spamguard: {line}", file=sys.stderr)
    return status
