"""The folders of an account: their names among ours, and what each is for.

A folder keeps its name. Where the server's special use (RFC 6154) says more than the name, it gets
one that says the same, so that roles follow from names everywhere: Gmail's Junk is called otherwise
in each language. The configuration comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spamguard.config.accounts import Account
from spamguard.folders.roles import (
    IGNORED_ROLE,
    SPAM_ROLE,
    SPECIAL_USES,
    Role,
    find_role,
    folder_parts,
    parse_role,
)
from spamguard.imap.connection import ListedFolder

MAX_FOLDERS = 1000
"""As many of an account are watched."""
_USUAL_NAMES = {"\\junk": "Junk", "\\trash": "Trash", "\\archive": "Archive"}


class AccountFolder(NamedTuple):
    """A folder of an account. directory: as of `folders.maildir.Folder`."""

    raw: str
    directory: str
    role: Role
    use: str = ""  # as of `ListedFolder`


def account_folders(account: Account, listed: Sequence[ListedFolder]) -> list[AccountFolder]:
    """All folders with their names among ours and their roles."""
    configured = {pattern: parse_role(text) for pattern, text in account.folders}
    taken = {_directory(folder) for folder in listed}
    found = []
    for folder in listed:
        directory = _directory(folder)
        parts = folder_parts(directory)
        role = find_role(parts, configured) if parts else IGNORED_ROLE
        is_configured = parts is not None and role != find_role(parts)
        use = folder.use
        if use and role != SPECIAL_USES[use] and not is_configured:
            role = SPECIAL_USES[use]
            usual = ("." if directory.startswith(".") else "") + _USUAL_NAMES.get(use, "")
            if use in _USUAL_NAMES and usual not in taken:
                directory = usual
                taken.add(usual)
        found.append(AccountFolder(folder.raw, directory, role, use))
    return found


def find_junk(folders: Sequence[AccountFolder]) -> str:
    """The raw name of the folder that spam belongs into; "": there is none."""
    junk = [folder for folder in folders if folder.role == SPAM_ROLE]
    best = min(junk, key=lambda each: (each.use != "\\junk", len(each.raw)), default=None)
    return best.raw if best else ""


def _directory(folder: ListedFolder) -> str:
    """The name as that of a directory: Maildir++ where dots part levels, nested otherwise.

    >>> _directory(ListedFolder("Lists/a.b", "/")), _directory(ListedFolder("Lists.a", "."))
    ('Lists/a.b', '.Lists.a')
    """
    if folder.raw.upper() == "INBOX":
        return ""
    if folder.delimiter == ".":
        return f".{folder.raw}"
    levels = folder.raw.split(folder.delimiter) if folder.delimiter else [folder.raw]
    return "/".join(level.replace("/", "&AC8-") for level in levels)
