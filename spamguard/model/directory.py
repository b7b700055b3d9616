"""What lies in a filter's state directory beside ledger and key, and how large it is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from spamguard.errors import LedgerError, remedy
from spamguard.ledger import SqliteLedger

_REMEDY = "choose a state directory you may write to"


def is_new(place: Path, ledger: Path) -> bool:
    """Whether there is no ledger yet; its directory is made."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not ledger.exists()
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
    return int(known or bits)
