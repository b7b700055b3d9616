"""What can go wrong, in words for the person who has to mend it.

Every error that spamguard raises on purpose is a `SpamguardError`; its text is one line that names
what is wrong, where, and the remedy. Commands print it and exit non-zero; nothing here is ever
shown to a mail client.
"""

from __future__ import annotations

import errno

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_REMEDY_BY_ERRNO = {
    **dict.fromkeys(_DISK_FULL_ERRNOS, "make room and try again"),
    errno.EFBIG: "raise the limit on file size",
    errno.EROFS: "choose a place that can be written",
}


def remedy(error: OSError, otherwise: str) -> str:
    """What to do where something cannot be written: on a full disk, say, that is always the same."""
    return _REMEDY_BY_ERRNO.get(error.errno or 0, otherwise)


def is_disk_full(error: Exception) -> bool:
    """Whether the disk, or somebody's share of it, is full."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL_ERRNOS


def error_text(error: Exception) -> str:
    """What somebody else's error says, in one line, without number and path where the system says
    it.
    """
    return " ".join((getattr(error, "strerror", None) or str(error)).split())


def error_lines(error: Exception) -> tuple[str, ...]:
    """What is wrong, a line for each: of a configuration there may be several."""
    return error.problems if isinstance(error, ConfigError) else (str(error),)


class SpamguardError(Exception):
    """Base of all errors raised on purpose; `str()` of it is one clear line."""


class LedgerError(SpamguardError):
    """The ledger cannot be opened, read or written (other version, other key, full disk, read-only
    directory).
    """


class TableError(SpamguardError):
    """A snapshot of the tables is damaged, or a count would become negative."""


class UnknownClassError(SpamguardError):
    """A class name that is not usable or not known."""


class SourceError(SpamguardError):
    """A path that should hold mail cannot be read as mail."""


class UsageError(SpamguardError):
    """Arguments that contradict each other or make no sense."""


class MemoryLimitError(SpamguardError):
    """The limit on memory is lower than what is needed."""


class ConfigError(SpamguardError):
    """The configuration cannot be used. problems: all of them, one line each, with file, line and
    column where there is one.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(SpamguardError):
    """The daemon cannot start or take on new settings: an address in use, no right to use it, an
    unknown user.
    """


class MailboxesError(SpamguardError):
    """People's mailboxes cannot be reached, none of them, for now: whoever opens them for us is not
    there, or refuses.
    """


class QuarantineError(SpamguardError):
    """A message that is not in the quarantine, or cannot be taken out of it now."""


class HistoryError(SpamguardError):
    """The history cannot be opened, read or written, or has no message of that name."""


class NotAllowedError(SpamguardError):
    """Somebody asks for what is not theirs to see or change."""


class NotThereError(SpamguardError):
    """There is no message of that name, or it is not theirs who asks."""


class BusyError(SpamguardError):
    """Too much is asked for at once, or it took too long: it may be asked for again later."""


class AccessError(SpamguardError):
    """Tokens, links and sessions cannot be read or written, or there is no such one."""
