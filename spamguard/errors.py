"""Errors, in words for the person who has to mend them.

Every error that spamguard raises on purpose is a `SpamguardError`. Its text is one line that names
what is wrong, where, and the remedy. Commands print it and exit non-zero; must never be shown to a
mail client.
"""

from __future__ import annotations

import errno


def remedy(error: OSError, otherwise: str) -> str:
    return "make room and try again" if is_disk_full(error) else otherwise


def is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def error_text(error: Exception) -> str:
    """The text of another library's error in one line, without number and path of an OSError."""
    return " ".join((getattr(error, "strerror", None) or str(error)).split())


def error_lines(error: Exception) -> tuple[str, ...]:
    """A line for each problem; a configuration may have several."""
    return error.problems if isinstance(error, ConfigError) else (str(error),)


class SpamguardError(Exception):
    """Base of all errors raised on purpose."""


class LedgerError(SpamguardError):
    """The ledger cannot be opened, read or written."""


class TableError(SpamguardError):
    """A snapshot of the tables is damaged, or a count would become negative."""


class UnknownClassError(SpamguardError):
    """There is no class of this name, or no class may have it."""


class SourceError(SpamguardError):
    """A path that should hold mail cannot be read as mail."""


class UsageError(SpamguardError):
    """Arguments contradict each other or make no sense."""


class MemoryLimitError(SpamguardError):
    """The limit on memory is too low."""


class ConfigError(SpamguardError):
    """The configuration cannot be used.

    `problems` has a line for each, with file, line and column where there is one.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(SpamguardError):
    """The daemon cannot start or take new settings: an address is in use, a user unknown."""


class MailboxesError(SpamguardError):
    """No mailbox can be reached for now: the mailbox broker is not there, or refuses."""


class SecretError(SpamguardError):
    """The password or token of an account cannot be had."""


class QuarantineError(SpamguardError):
    """The message is not in the quarantine, or cannot be taken out of it now."""


class HistoryError(SpamguardError):
    """The history cannot be opened, read or written, or has no message of that name."""


class NotAllowedError(SpamguardError):
    """The user may not see or change this."""


class NotThereError(SpamguardError):
    """There is no message of that name, or it is not the user's."""


class BusyError(SpamguardError):
    """There are too many requests at once, or one took too long; try again later."""


class DigestError(SpamguardError):
    """The file of digests cannot be read or written."""


class AccessError(SpamguardError):
    """Tokens, links and sessions cannot be read or written, or there is no such token."""


class SharedError(SpamguardError):
    """The shared log cannot be used until somebody mends what the text names."""


class UnavailableError(SharedError):
    """The shared log cannot be reached for now; try again."""
