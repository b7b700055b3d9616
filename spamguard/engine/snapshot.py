"""Snapshots: tables as a file, mapped copy-on-write by every process.

A snapshot is a cache of the ledger. It is written once, is complete before it has a name, and is
never changed. One file holds all arrays, each on a page border, so replacing it is one rename. The
file has no holes: a process that touches a mapped hole on a full tmpfs ends by SIGBUS. A file that
is cut short, or whose head is damaged, is an error that names the remedy, never a wrong verdict.
(Damage to the arrays is left to the disk's own checks: summing 64 MB at every opening would cost
more than all the rest of it.)

Snapshots also prove when the ledger has lost events, because the name of one holds the number of
its last event. SQLite recovers a damaged log (ledger.sqlite-wal) up to its first bad frame and
reports nothing. A loss is noted in the ledger when settling replaces the snapshot that proves it,
and stays noted until `rebuild`. Lost event numbers are given again to new events. That is safe: a
snapshot counts only by its line in the ledger, and that line is lost together with the events, or
`TableStore` refuses it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes.tables import PER_CLASS, PER_OTHER_CLASS, Tables
from spamguard.errors import TableError
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import local_time
from spamguard.records import EXTRACTOR
from spamguard.storage import create_atomically, sync_directory

_MAGIC = b"spamguard tables 1\n"
_PAGE_BYTES = 4096
_MIN_MAPPED_BYTES = 1 << 20  # larger arrays are mapped, smaller ones are read
_MAX_HEADER_BYTES = 1 << 24  # some 200 bytes for each class
_SMALL_ARRAYS = (*PER_CLASS, *PER_OTHER_CLASS, "vocabulary", "fusion_weights")


def write_snapshot(path: Path, tables: Tables, *, durable: bool) -> None:
    """Write tables under a name that does not exist yet; with durable, wait for the disk.

    OSError when it cannot be written; then nothing is left behind.
    """
    layout: list[tuple[str, str, tuple[int, ...], int]] = []
    size = 0
    for name, array in _iter_arrays(tables):
        layout.append((name, array.dtype.str, array.shape, size))
        size += _round_to_pages(array.nbytes)
    header = {"bits": tables.bits, "classes": tables.classes, "arrays": layout, "bytes": size}
    text = json.dumps(header, separators=(",", ":")).encode()
    head = _MAGIC + b"%08x " % zlib.crc32(text) + text + b"\n"
    head = head.ljust(_round_to_pages(len(head)), b"\0")
    with create_atomically(path) as file:
        file.write(head)
        for (_, array), (*_, start) in zip(_iter_arrays(tables), layout, strict=True):
            file.seek(len(head) + start)
            file.write(np.ascontiguousarray(array).data)
        file.truncate(len(head) + size)  # the last page is whole
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        sync_directory(path.parent)


def _iter_arrays(tables: Tables) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "rows", tables.rows
    for number, column in enumerate(tables.columns):
        yield f"column {number}", column
    for name in _SMALL_ARRAYS:
        yield name, getattr(tables, name)


def _round_to_pages(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def read_snapshot(path: Path) -> Tables:
    """Map a snapshot: tables that are private to this process.

    TableError when the file is damaged or gone (a newer one may have replaced it).
    """
    try:
        with path.open("rb") as file:
            return _map_tables(path, file)
    except OSError as error:
        raise _damage_error(path, f"it cannot be read ({error.strerror})") from error


def _map_tables(path: Path, file: BinaryIO) -> Tables:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damage_error(path, "it is not a table file of this version")
    checksum, _, text = file.readline(_MAX_HEADER_BYTES).rstrip(b"\n").partition(b" ")
    if b"%08x" % zlib.crc32(text) != checksum:
        raise _damage_error(path, "its head is damaged")
    header: dict[str, Any] = json.loads(text)
    data = _round_to_pages(file.tell())
    if os.fstat(file.fileno()).st_size != data + header["bytes"]:
        raise _damage_error(path, "its length is wrong")
    if not all(np.dtype(dtype).isnative for _, dtype, *_ in header["arrays"]):
        raise _damage_error(path, "it was made by a machine with another order of bytes")
    arrays: dict[str, Any] = {
        name: _load_array(file, np.dtype(dtype), shape, data + start)
        for name, dtype, shape, start in header["arrays"]
    }
    columns = [arrays[f"column {number}"] for number in range(len(header["classes"]) - 2)]
    small = {name: arrays[name] for name in _SMALL_ARRAYS}
    return Tables(header["bits"], arrays["rows"], columns, header["classes"], **small)


def _load_array(file: BinaryIO, kind: np.dtype[Any], shape: list[int], start: int) -> NDArray[Any]:
    size = kind.itemsize * int(np.prod(shape))
    if size >= _MIN_MAPPED_BYTES:
        return np.asarray(np.memmap(file, kind, "c", start, tuple(shape)))  # copy-on-write
    file.seek(start)
    return np.frombuffer(bytearray(file.read(size)), kind).reshape(shape)


def _damage_error(path: Path, how: str) -> TableError:
    return TableError(
        f"{path}: {how}; the tables can be made anew from the ledger: run `spamguard rebuild`"
    )


# ---- events that the ledger has lost

LOSS_ADVICE = (
    "restore a backup made later (`spamguard restore`), or teach that mail again "
    "(`spamguard teach-folders`, `spamguard learn`)"
)
LOSS_REMEDY = f"{LOSS_ADVICE}; then `spamguard rebuild` ends this message"

_LOSS_KEY = "loss"
_SNAPSHOT_NAME = re.compile(rf"tables-{EXTRACTOR}-([0-9]+)-[0-9a-f]+\.bin")


@dataclass(frozen=True, slots=True)
class LedgerLoss:
    """A loss, as a snapshot proves it.

    snapshot: the file that holds more events than the ledger. events: how many are missing, at
    least. since, until: seconds since 1970 of the last event that is left (0: none is) and of that
    snapshot.
    """

    snapshot: str
    events: int
    since: int
    until: int


def describe_loss(loss: LedgerLoss) -> str:
    """What is missing, in one line; the remedy is LOSS_REMEDY."""
    events = "1 event is" if loss.events == 1 else f"{loss.events:,} events are"
    between = f"between {local_time(loss.since, exact=True)} and" if loss.since else "before"
    return (
        f"at least {events} missing from the ledger, taught {between} "
        f"{local_time(loss.until, exact=True)}: it or its log (-wal) was damaged"
    )


def find_loss(directory: Path, ledger: SqliteLedger) -> LedgerLoss | None:
    """The loss that is noted, and that a snapshot proves beyond it; None: none is known."""
    # before the ledger is asked: events are committed before a snapshot holds them
    newest = _newest_snapshot(directory)
    noted = _noted_loss(ledger)
    last = ledger.last_seq()
    if newest is None or newest.events <= last or (noted and noted.snapshot == newest.snapshot):
        return noted
    proven = replace(newest, events=newest.events - last, since=ledger.last_time())
    if noted is None:
        return proven
    return replace(proven, events=proven.events + noted.events, since=noted.since)


def record_loss(directory: Path, ledger: SqliteLedger) -> LedgerLoss | None:
    """Note a loss in the ledger; returns it, or None when nothing new was found."""
    loss = find_loss(directory, ledger)
    if loss is None or loss == _noted_loss(ledger):
        return None
    ledger.set_meta(_LOSS_KEY, json.dumps(asdict(loss)))
    return loss


def clear_loss(ledger: SqliteLedger) -> None:
    """Drop the note."""
    ledger.drop_meta([_LOSS_KEY])


def _newest_snapshot(directory: Path) -> LedgerLoss | None:
    """The snapshot of the highest event number, which stands in `events`."""
    paths = directory.glob(f"tables-{EXTRACTOR}-*.bin")
    snapshots = [
        (int(name[1]), path) for path in paths if (name := _SNAPSHOT_NAME.fullmatch(path.name))
    ]
    if not snapshots:
        return None
    seq, path = max(snapshots)
    try:
        return LedgerLoss(path.name, seq, 0, int(path.stat().st_mtime))
    except FileNotFoundError:  # replaced meanwhile: it was current, so nothing is missing
        return None


def _noted_loss(ledger: SqliteLedger) -> LedgerLoss | None:
    line = ledger.get_meta(_LOSS_KEY)
    return None if line is None else LedgerLoss(**json.loads(line))
