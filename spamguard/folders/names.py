"""Names in a Maildir: of folders, as people see them, and of files, as mail servers rename them. Pure.

Names are as `os.fsdecode` makes them, so bytes that are no UTF-8 are lone surrogates. Nothing here ever raises on a name.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import blake2b

from spamguard.folders.values import Name

INBOX = ("INBOX",)
_SHIFTED = re.compile(r"&([A-Za-z0-9+,]*)-")
_TO_SHIFT = re.compile(r"[^ -~\udc80-\udcff]+")  # bytes that are no UTF-8 stay
_INFO = re.compile(r"[:;!]2,([A-Za-z]*)")
_SIZES = re.compile(r",[SW]=[0-9]+")
_NO_MESSAGES = (".", "dovecot", "maildir", "courierimap", "subscriptions")  # what servers keep beside the messages starts so


def decode(text: str) -> str:
    """From IMAP's modified UTF-7 (RFC 3501, section 5.1.3). What is none stays as it is."""
    try:
        decoded = _SHIFTED.sub(lambda found: _unshifted(found[1]), text)
        return decoded if encode(decoded) == text else text
    except ValueError:
        return text


def encode(text: str) -> str:
    """To IMAP's modified UTF-7."""
    return _TO_SHIFT.sub(lambda found: f"&{_shifted(found[0])}-", text.replace("&", "&-"))


def parts(directory: str) -> tuple[str, ...] | None:
    """The name of a folder, from the top: ".Junk.Old" and "Junk/Old" are ("Junk", "Old"), "" is the INBOX; None: no folder is called so.

    With a dot in front it is of the Maildir++ layout, without one of the nested (Dovecot's LAYOUT=fs).
    """
    if not directory:
        return INBOX
    flat = directory.startswith(".")
    pieces = directory[1:].split(".") if flat else directory.split("/")
    if "" in pieces or any(piece.startswith(".") or "/" in piece for piece in pieces):
        return None
    return tuple(map(decode, pieces))


def display(directory: str) -> str:
    """A folder as mail programs show it, as text: bytes that are no UTF-8 are written out."""
    name = "/".join(parts(directory) or (directory,))
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def message(name: str) -> Name | None:
    """Base name and flags of a file in `cur` or `new`; None: it is no message.

    A rename that changes only the flags, or the sizes that Dovecot writes into names (",S=…,W=…"), leaves the base name as it is.
    Some file systems cannot have the colon: "!2," and ";2," mean the same.
    """
    if name.startswith(_NO_MESSAGES):
        return None
    found = _INFO.search(name, 1)
    base, flags = (name[: found.start()], found[1]) if found else (name, "")
    return Name(_SIZES.sub("", base) or base, flags) if base else None


def key(base: str) -> int:
    """A base name in 64 bits, signed: enough to tell the files of one mailbox apart."""
    hashed = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(hashed, "big", signed=True)


def key_of(file: str) -> int:
    """`key` of the base name of a file; 0: it is no message."""
    name = message(file)
    return key(name.base) if name else 0


def _shifted(text: str) -> str:
    coded = b64encode(text.encode("utf-16-be", "surrogatepass"))
    return coded.rstrip(b"=").replace(b"/", b",").decode()


def _unshifted(coded: str) -> str:
    if not coded:
        return "&"
    padded = coded.replace(",", "/") + "=" * (-len(coded) % 4)
    return b64decode(padded, validate=True).decode("utf-16-be")
