"""Names in a Maildir: of folders, as people see them, and of files, as mail servers rename them.
Pure.

Names are as `os.fsdecode` makes them, so bytes that are no UTF-8 are lone surrogates. Nothing here
ever raises on a name.

One message out of an open file of a Maildir: whole, unpacked, and within bounds; or why not.

Must never read more than `MOST` bytes, unpack more than that, or take for a message what is still
being written.
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64decode, b64encode
from hashlib import blake2b

from spamguard.errors import SpamguardError
from spamguard.folders.mailboxes import FileName
from spamguard.sources import DamagedFileError, UnreadableFileError, decompress

INBOX_NAME = ("INBOX",)
_SHIFT_SEQUENCE = re.compile(r"&([A-Za-z0-9+,]*)-")
_NEEDS_SHIFT = re.compile(r"[^ -~\udc80-\udcff]+")  # bytes that are no UTF-8 stay
_FLAGS_SUFFIX = re.compile(r"[:;!]2,([A-Za-z]*)")
_SIZE_FIELDS = re.compile(r",[SW]=[0-9]+")
_SERVER_FILES = (
    ".",
    "dovecot",
    "maildir",
    "courierimap",
    "subscriptions",
)  # what servers keep beside the messages starts so


def decode_utf7(text: str) -> str:
    """From IMAP's modified UTF-7 (RFC 3501, section 5.1.3). What is none stays as it is."""
    try:
        decoded = _SHIFT_SEQUENCE.sub(lambda found: _decode_shift(found[1]), text)
        return decoded if encode_utf7(decoded) == text else text
    except ValueError:
        return text


def encode_utf7(text: str) -> str:
    """To IMAP's modified UTF-7."""
    return _NEEDS_SHIFT.sub(lambda found: f"&{_encode_shift(found[0])}-", text.replace("&", "&-"))


def folder_parts(directory: str) -> tuple[str, ...] | None:
    """The name of a folder, from the top: ".Junk.Old" and "Junk/Old" are ("Junk", "Old"), "" is the
    INBOX; None: no folder is called so.

    With a dot in front it is of the Maildir++ layout, without one of the nested (Dovecot's
    LAYOUT=fs).
    """
    if not directory:
        return INBOX_NAME
    flat = directory.startswith(".")
    pieces = directory[1:].split(".") if flat else directory.split("/")
    if "" in pieces or any(piece.startswith(".") or "/" in piece for piece in pieces):
        return None
    return tuple(map(decode_utf7, pieces))


def display_folder(directory: str) -> str:
    """A folder as mail programs show it, as text: bytes that are no UTF-8 are written out."""
    name = "/".join(folder_parts(directory) or (directory,))
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def parse_file_name(name: str) -> FileName | None:
    """Base name and flags of a file in `cur` or `new`; None: it is no message.

    A rename that changes only the flags, or the sizes that Dovecot writes into names (",S=…,W=…"),
    leaves the base name as it is. Some file systems cannot have the colon: "!2," and ";2," mean the
    same.
    """
    if name.startswith(_SERVER_FILES):
        return None
    found = _FLAGS_SUFFIX.search(name, 1)
    base, flags = (name[: found.start()], found[1]) if found else (name, "")
    return FileName(_SIZE_FIELDS.sub("", base) or base, flags) if base else None


def base_name_key(base: str) -> int:
    """A base name in 64 bits, signed: enough to tell the files of one mailbox apart."""
    hashed = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(hashed, "big", signed=True)


def file_key(file: str) -> int:
    """`key` of the base name of a file; 0: it is no message."""
    name = parse_file_name(file)
    return base_name_key(name.base) if name else 0


def _encode_shift(text: str) -> str:
    coded = b64encode(text.encode("utf-16-be", "surrogatepass"))
    return coded.rstrip(b"=").replace(b"/", b",").decode()


def _decode_shift(coded: str) -> str:
    if not coded:
        return "&"
    padded = coded.replace(",", "/") + "=" * (-len(coded) % 4)
    return b64decode(padded, validate=True).decode("utf-16-be")


MAX_FILE_BYTES = (
    64 << 20
)  # bytes; what lies beyond is not read: two messages that differ only there are taken for one
QUIET_SECONDS = (
    1.0  # without a change, after which a file is whole although its name does not tell its size
)
_ABANDONED_SECONDS = 60.0  # seconds, after which an incomplete file will not be completed
_SIZE_FIELD = re.compile(
    r",S=([0-9]{1,15})(?=[,:]|$)"
)  # Dovecot's note of how long the message is, unpacked


class UnfinishedFileError(SpamguardError):
    """The file is still being written: look again."""


def read_message(descriptor: int, name: str) -> bytes:
    """The message in a file, at most `MOST` bytes of it. name: of the file. UnfinishedError,
    UnreadableError, OSError.
    """
    before = os.fstat(descriptor)
    packed = _read_contents(descriptor)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnfinishedFileError(f"{name}: is being written")
    age = abs(
        time.time() - after.st_mtime
    )  # a clock that was set back makes nothing young for ever
    try:
        raw = decompress(packed, MAX_FILE_BYTES)
    except DamagedFileError:
        if age < _ABANDONED_SECONDS:
            raise UnfinishedFileError(f"{name}: is being written") from None
        raise
    _check_complete(raw, name, age)
    return raw


def _check_complete(raw: bytes, name: str, age: float) -> None:
    told = _SIZE_FIELD.search(name)
    missing = told is not None and len(raw) < min(int(told[1]), MAX_FILE_BYTES)
    if (missing or not raw) and age < _ABANDONED_SECONDS:
        raise UnfinishedFileError(f"{name}: is being written")
    if told is None and age < QUIET_SECONDS:
        raise UnfinishedFileError(f"{name}: may still be written")
    if not raw:
        raise UnreadableFileError("is empty")


def _read_contents(descriptor: int) -> bytes:
    found = bytearray()
    while len(found) < MAX_FILE_BYTES and (
        piece := os.read(descriptor, min(1 << 20, MAX_FILE_BYTES - len(found)))
    ):
        found += piece
    return bytes(found)
