"""Paths as the file tells them, and what lies there. Each check is as those of `values`."""

from __future__ import annotations

import os
import re
import ssl
import stat
from pathlib import Path
from typing import BinaryIO

from spamguard.config.units import shown

_MAILDIR = re.compile(r"/[^\0\n]*[^\0\n/][^\0\n]*")
VARIABLE = re.compile(r"%(?:[A-Za-z]|\{[^}]*\})")  # as Dovecot writes the name of a user
MODE = re.compile(r"0{0,2}[0-7]{3}")
_LONGEST_SECRET = 1000  # bytes
_LONGEST_SOCKET = 80  # bytes: the kernel takes 107, and a new one is made under a longer name first


def path(given: object) -> Path:
    """An absolute path."""
    if isinstance(given, str) and given.startswith("/") and "\0" not in given:
        return Path(given)
    raise ValueError(f"expected an absolute path, found {shown(given)}")


def file(given: object) -> Path:
    """An absolute path of a file that is there and can be read."""
    found = path(given)
    try:
        opened(found).close()
    except OSError as error:
        closed = ": ask as root, or as the daemon's user, who must be able to read it" if isinstance(error, PermissionError) else ""
        raise ValueError(f"expected a file that can be read, found {shown(given)} ({error.strerror}){closed}") from error
    return found


def check_pair(certificate: Path, key: Path) -> None:
    """ValueError for files with which TLS could not be offered: workers would end as soon as they begin. What is no file is not read."""
    if not (certificate.is_file() and key.is_file()):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")  # nobody is asked for one
    except ssl.SSLError as error:
        found = "the key of another one" if error.reason == "KEY_VALUES_MISMATCH" else "what is none, or needs a password"
        raise ValueError(f"expected a certificate and its key in PEM files, found {found}") from error


def opened(path: Path) -> BinaryIO:
    """A file to read; a named pipe into which nobody writes is empty, instead of waited for. OSError."""
    return open(path, "rb", opener=_at_once)


def _at_once(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def secret(given: object) -> Path:
    """A file that only its owner and group can read, with a line in it."""
    found = file(given)
    with opened(found) as opening:
        if os.fstat(opening.fileno()).st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ValueError(f"expected a file that no others can read: chmod 0640 {found}")
        if not opening.readline(_LONGEST_SECRET).strip():
            raise ValueError(f"expected a file with a password in its first line, found nothing there in {shown(given)}")
    return found


def maildir(given: object) -> str:
    """The pattern of Maildirs."""
    if not isinstance(given, str) or not _MAILDIR.fullmatch(given) or ".." in given.split("/"):
        raise ValueError(f"expected the absolute path of a Maildir, * standing for any name, such as /home/*/Maildir, found {shown(given)}")
    if variable := VARIABLE.search(given):
        raise ValueError(f"expected * for what differs, as in /home/*/Maildir, found {variable[0]} in {shown(given)}")
    return given.rstrip("/")


def socket(given: object) -> Path:
    """An absolute path that a socket can have."""
    found = path(given)
    if len(str(found).encode()) > _LONGEST_SOCKET:
        raise ValueError(f"expected an absolute path of at most {_LONGEST_SOCKET} bytes, found {shown(given)}")
    return found


def mode(given: object) -> int:
    """Permission bits."""
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    if MODE.fullmatch(text) is None:
        raise ValueError(f"expected the mode of a file in octal digits, such as 0660, found {shown(given)}")
    return int(text, 8)
