"""`teach-pipe`: leave a message on standard input for the daemon as a lesson.

The lesson is a file in a directory from which the daemon takes it. Delivery agents and Sieve wait
for this program, so it imports next to nothing. It succeeds whenever the lesson is safe, because a
delivery agent that sees a failure may refuse what the person wanted to do.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from binascii import hexlify
from collections.abc import Sequence

from spamguard.users import LESSON_SPOOL, MAX_LESSON_BYTES, LessonHeader

EXIT_DATA_ERROR = 65  # EX_DATAERR of sysexits.h
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL

ABOUT = """Leave a message on standard input for the daemon as a lesson. Learning comes later.

A lesson that is known already is a success. It is a lesson by the user whose process this is; users
listed as `for_others` in the configuration may name another.
Exit status 75: the lesson could not be left there; mail systems keep the message and try again. 65:
it can never be a lesson (no name of a class, or a message that is too large).
The class must exist (`spamguard learn --as CLASS` makes one): a lesson of an unknown class is
dropped later, as `spamguard status` says."""
EXAMPLE = "  spamguard teach-pipe --as spam --user anna@example.org < message.eml"


def spool_lesson(directory: str, header: LessonHeader, raw: bytes) -> None:
    """Return once a file with the lesson is on the disk. The daemon must be able to read it: where
    the directory gives its group to new files (mode 3733), the group may; else only the owner.
    """
    # names sort by time, so that the last word is learnt last
    path = f"{directory}/{time.time_ns():020d}-{hexlify(os.urandom(6)).decode()}"
    mode = 0o640 if os.stat(directory).st_mode & stat.S_ISGID else 0o600  # noqa: PTH116  as below
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, mode)
    try:
        with os.fdopen(file, "wb") as stream:
            # first of all: the daemon does not look again at a file that it may not read
            os.fchmod(file, mode)
            stream.write(header.encode() + raw)
            stream.flush()
            os.fsync(file)
    except OSError:
        os.unlink(path)  # noqa: PTH108  pathlib takes long to load
        raise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as", dest="label", required=True, metavar="CLASS", help="spam, ham or another class"
    )
    parser.add_argument(
        "--user",
        default="",
        metavar="NAME",
        help="whose lesson it is (for those who may name others)",
    )
    parser.add_argument(
        "--spool",
        default=LESSON_SPOOL,
        metavar="DIR",
        help=f"where to leave it (default: {LESSON_SPOOL})",
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "spamguard teach-pipe",
        description=ABOUT,
        epilog=f"example:\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    try:
        raw = sys.stdin.buffer.read(MAX_LESSON_BYTES + 1)
        header = LessonHeader(options.label, len(raw), options.user)
        if not header.is_valid():
            text = f"no lesson: class {options.label!r}, user {options.user!r}, {len(raw)} bytes"
            return _fail(f"{text} (of 1 to {MAX_LESSON_BYTES})", EXIT_DATA_ERROR)
        spool_lesson(options.spool, header, raw)
    except OSError as error:
        text = f"the lesson could not be left in {options.spool}: {error.strerror or error}"
        return _fail(text, EXIT_TRY_AGAIN)
    return os.EX_OK


def _fail(text: str, status: int) -> int:
    line = "".join(char if char.isprintable() else "?" for char in text)
    print(f"spamguard: {line}", file=sys.stderr)
    return status
