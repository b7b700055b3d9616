"""Hands a lesson to the daemon: on its socket, or, when nobody answers there, in a directory from which the daemon takes it later.

Must never wait for long, never lose what it said was handed over, and never follow a link. Imports next to nothing.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from binascii import hexlify
from contextlib import suppress

from spamguard.teaching.lesson import LONGEST_ANSWER, Header

SPOOL = "/var/spool/spamguard/teach"  # where lessons are left unless it is said otherwise
SECONDS = 5.0  # for an answer: a delivery agent waits
_SHARED, _OWN = 0o640, 0o600


class RefusedError(Exception):
    """The daemon does not take this lesson, now or ever; why, in its own words."""


class HeldError(Exception):
    """Nobody can learn it before somebody has mended what the daemon says, in its own words: whoever has it must keep it."""


def hand_over(path: str, header: Header, raw: bytes, seconds: float = SECONDS) -> None:
    """Return once the daemon has it. RefusedError: it never takes it; HeldError; OSError: nobody takes it now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(seconds)
        peer.connect(path)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has answered before it had all
            peer.sendall(header.line() + raw)
        answer = _line(peer)
    word, _, reason = answer.partition(" ")
    if word == "NO":
        raise RefusedError(reason or "refused")
    if word == "HOLD":
        raise HeldError(reason or "refused")
    if word != "OK":
        raise OSError(reason or "no answer")


def _line(peer: socket.socket) -> str:
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < LONGEST_ANSWER:
        piece = peer.recv(LONGEST_ANSWER)
        if not piece:
            break
        answer += piece
    return answer.decode("utf-8", "replace").strip()


def leave(directory: str, header: Header, raw: bytes) -> None:
    """Return once a file of ours with the lesson is on the disk. OSError.

    The daemon must be able to read it: where the directory gives its group to new files (mode 3733), the group may; else only its owner.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = _name()
        mode = _SHARED if os.fstat(place).st_mode & stat.S_ISGID else _OWN
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=place)
        try:
            os.fchmod(file, mode)  # before anything is in it: a daemon that may not read what it finds does not look again
            _write(file, header.line() + raw)
            os.fsync(file)
        except OSError:
            os.unlink(name, dir_fd=place)
            raise
        finally:
            os.close(file)
    finally:
        os.close(place)


def _name() -> str:
    """Names sort by time, so that what was said last is learnt last."""
    return f"{time.time_ns():020d}-{hexlify(os.urandom(6)).decode()}"


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
