"""The options of learning: mailboxes that are watched, and programs that teach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spamguard.config import types
from spamguard.users import LESSON_SPOOL


@dataclass(frozen=True)
class Watch:
    """Maildirs in which moving mail teaches."""

    maildir: Annotated[types.MaildirPattern, "Absolute path; * and ? match any name"]
    user: Annotated[
        types.MailUser,
        "Owner of all these Maildirs; empty: the text of the wildcards, or the file's owner",
    ] = ""
    folders: Annotated[
        tuple[tuple[str, types.FolderRole], ...],
        "Role of a folder, by a pattern of its name: a class, neutral, trash or ignored",
    ] = ()
    we_file: Annotated[
        types.Flag | None,
        "Tagged spam is filed into Junk; null: only if a listener delivers into this Maildir",
    ] = None
    lessons_per_day: Annotated[
        types.DailyLimit, "Maximum for each user within 24 hours; 0: no limit"
    ] = 1000  # what is moved beyond that teaches nothing
    answered_is_ham: Annotated[types.Flag, "An answered message in a ham folder is ham"] = False
    flagged_is_ham: Annotated[types.Flag, "A flagged message in a ham folder is ham"] = False


@dataclass(frozen=True)
class TeachSettings:
    """Where programs of this machine leave lessons.

    The spool is a directory (mode 1733, or 3733 to be read by its group). Root's and our own
    account may always name another user.
    """

    spool: Annotated[types.AbsolutePath, "Directory in which lessons are left"] = Path(LESSON_SPOOL)
    for_others: Annotated[tuple[types.Account, ...], "Accounts that may name another user"] = (
        "dovecot",
        "vmail",
    )
    lessons_per_day: Annotated[
        types.DailyLimit, "Maximum for each user within 24 hours; 0: no limit"
    ] = 1000  # by programs and by mail together; further ones are dropped
