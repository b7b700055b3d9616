"""`teach-pipe`: hand a message on standard input to the daemon as a lesson.

The lesson goes through the daemon's socket or, if the daemon does not answer, into a directory from
which the daemon takes it later. Delivery agents and Sieve wait for this program, so it imports next
to nothing: 40 ms of processor time, of which Python's start takes 13, argparse and socket 15.

Must exit with success whenever the lesson is safe, because a delivery agent that sees a failure may
refuse what the person wanted to do. Must never wait for long, and never follow a link.
"""

from __future__ import annotations

import argparse
import os
import socket
import stat
import sys
import time
from binascii import hexlify
from collections.abc import Sequence
from contextlib import suppress

from spamguard.users import (
    MAX_LESSON_ANSWER,
    MAX_LESSON_BYTES,
    LessonHeader,
    is_class_name,
    is_user_name,
)

SOCKET_PATH = "/run/spamguard/teach.sock"
SPOOL_DIRECTORY = "/var/spool/spamguard/teach"
ANSWER_TIMEOUT = 5.0
EXIT_DATA_ERROR = 65  # EX_DATAERR of sysexits.h
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL

ABOUT = """Hand a message on standard input to the daemon as a lesson. Learning comes later.

A lesson that is known already is a success. While the daemon is down, the lesson is left in a
directory, from which the daemon takes it later. It is a lesson by the user whose process this is;
users listed as `for_others` in the configuration may name another.
Exit status 75: neither daemon nor directory took the lesson, or there is no such class; mail
systems keep the message and try again. 65: it can never be a lesson (no name of a class, or a
message that is too large).
The class must exist (`spamguard learn --as CLASS` makes one). While the daemon is down nobody can
check that: a lesson of an unknown class is dropped later, as `spamguard status` says."""
EXAMPLE = "  spamguard teach-pipe --as spam --user anna@example.org < message.eml"


class LessonRefusedError(Exception):
    """The daemon never takes this lesson; the text is its reason."""


class LessonHeldError(Exception):
    """The sender must keep this lesson until an operator has mended what the text says."""


def send_lesson(
    path: str, header: LessonHeader, raw: bytes, timeout: float = ANSWER_TIMEOUT
) -> None:
    """Hand a lesson to the daemon. LessonRefusedError, LessonHeldError, OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        peer.connect(path)
        with suppress(BrokenPipeError, ConnectionResetError):  # it answered before it had all
            peer.sendall(header.encode() + raw)
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < MAX_LESSON_ANSWER:
            if not (piece := peer.recv(MAX_LESSON_ANSWER)):
                break
            answer += piece
    word, _, reason = answer.decode("utf-8", "replace").strip().partition(" ")
    if word == "NO":
        raise LessonRefusedError(reason or "refused")
    if word == "HOLD":
        raise LessonHeldError(reason or "refused")
    if word != "OK":
        raise OSError(reason or "no answer")


def spool_lesson(directory: str, header: LessonHeader, raw: bytes) -> None:
    """Return once a file with the lesson is on the disk. OSError.

    The daemon must be able to read the file: where the directory gives its group to new files (mode
    3733), the group may; else only the owner.
    """
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # names sort by time, so that the last word is learnt last
        name = f"{time.time_ns():020d}-{hexlify(os.urandom(6)).decode()}"
        mode = 0o640 if os.fstat(directory_fd).st_mode & stat.S_ISGID else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, mode, dir_fd=directory_fd)
        try:
            # first of all: the daemon does not look again at a file that it may not read
            os.fchmod(file, mode)
            rest = memoryview(header.encode() + raw)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.unlink(name, dir_fd=directory_fd)
            raise
        finally:
            os.close(file)
    finally:
        os.close(directory_fd)


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
        "--socket",
        default=SOCKET_PATH,
        metavar="PATH",
        help=f"where the daemon listens (default: {SOCKET_PATH})",
    )
    parser.add_argument(
        "--spool",
        default=SPOOL_DIRECTORY,
        metavar="DIR",
        help=f"where to leave it otherwise (default: {SPOOL_DIRECTORY})",
    )


def main(arguments: Sequence[str]) -> int:
    """The command by itself, without loading the others; its exit status."""
    parser = argparse.ArgumentParser(
        "spamguard teach-pipe",
        description=ABOUT,
        epilog=f"example:\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Hand over what stands on standard input."""
    try:
        raw = sys.stdin.buffer.read(MAX_LESSON_BYTES + 1)
        if mistake := _find_mistake(options, raw):
            return _fail(mistake, EXIT_DATA_ERROR)
        header = LessonHeader(options.label, len(raw), options.user)
        try:
            send_lesson(options.socket, header, raw)
        except OSError:  # down, starting or too busy
            spool_lesson(options.spool, header, raw)
    except LessonRefusedError as error:
        return _fail(f"the lesson was refused: {error}", EXIT_DATA_ERROR)
    except LessonHeldError as error:
        return _fail(f"the lesson cannot be learnt now: {error}", EXIT_TRY_AGAIN)
    except OSError as error:
        return _fail(
            "the lesson could neither be handed over nor left in "
            f"{options.spool}: {error.strerror or error}",
            EXIT_TRY_AGAIN,
        )
    return os.EX_OK


def _find_mistake(options: argparse.Namespace, raw: bytes) -> str:
    if not is_class_name(options.label):
        return f"{options.label!r} is no class"
    if options.user and not is_user_name(options.user):
        return f"{options.user!r} is no name of a user"
    if not raw:
        return "there is no message on standard input"
    if len(raw) > MAX_LESSON_BYTES:
        return f"the message has more than {MAX_LESSON_BYTES} bytes"
    return ""


def _fail(text: str, status: int) -> int:
    line = "".join(char if char.isprintable() else "?" for char in text)
    print(f"spamguard: {line}", file=sys.stderr)
    return status
