"""What lies in a filter's state directory beside ledger and key, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spamguard.errors import LedgerError, remedy
from spamguard.ledger import SqliteLedger

BITS = range(8, 29)
"""Sizes of tables: fewer buckets than 2**8 tell no words apart; more than 2**28 take gigabytes."""
_REMEDY = "choose a state directory you may write to"


def make(place: Path) -> None:
    """A state directory, if it is not there yet. LedgerError: there cannot be one."""
    with _in_words(place):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)


def is_new(place: Path, ledger: Path) -> bool:
    """Whether there is no ledger yet; its directory is made. LedgerError as of `make`, or nobody may look into it."""
    make(place)
    with _in_words(place):
        return not ledger.exists()


@contextmanager
def _in_words(place: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise LedgerError(f"{place}: is no directory: {_REMEDY}") from error
    except OSError as error:
        raise LedgerError(f"{place}: cannot be used ({error.strerror}): {remedy(error, _REMEDY)}") from error


def bytes_of_tables(place: Path) -> int:
    """What the snapshots take on the disk, without holes."""
    return sum(map(_bytes_on_disk, place.glob("tables-*.bin")))


def _bytes_on_disk(file: Path) -> int:
    """Nothing if another process has replaced the file meanwhile."""
    with suppress(FileNotFoundError):
        return 512 * file.stat().st_blocks
    return 0


def least_bits(ledger: SqliteLedger, bits: int) -> int:
    """The size of the tables of few lessons: chosen once, by whoever creates the ledger."""
    known = ledger.get_meta("bits")
    if known is None:  # only then: writing would wait for whoever is teaching
        ledger.replace_meta("bits", None, str(bits))
        known = ledger.get_meta("bits")
    if known is None or known not in map(str, BITS):
        raise LedgerError(f"ledger {ledger.path}: its note of the size of its tables is damaged: restore it from a backup")
    return int(known)
