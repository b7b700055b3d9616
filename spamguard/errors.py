"""What can go wrong, in words for the person who has to mend it.

Every error that spamguard raises on purpose is a `SpamguardError`; its text is one line that names what is
wrong, where, and the remedy. Commands print it and exit non-zero; nothing here is ever shown to a mail client.
"""


class SpamguardError(Exception):
    """Base of all errors raised on purpose; `str()` of it is one clear line."""


class LedgerError(SpamguardError):
    """The ledger cannot be opened, read or written (other version, other key, full disk, read-only directory)."""


class TableError(SpamguardError):
    """A snapshot of the tables is damaged, or a count would become negative."""


class UnknownClassError(SpamguardError):
    """A class name that is not usable or not known."""


class SourceError(SpamguardError):
    """A path that should hold mail cannot be read as mail."""


class UsageError(SpamguardError):
    """Arguments that contradict each other or make no sense."""
