"""Snapshots: the file that holds tables, and the line of the ledger that says which file counts.

One file holds all arrays, each on a page border, and every process maps it copy-on-write. The file
has no holes: a process that touches a mapped hole on a full tmpfs ends by SIGBUS. Damage to the
arrays is left to the disk's own checks: summing them would cost more than all the rest of opening.

A settled state has a name, its *lineage*. The bytes of its file are a function of what it holds;
so where machines share a log, the SHA-256 of the state's file is its name on all of them. Elsewhere
it is the name of the file, which costs nothing.

Numbers of events that the ledger has lost are given again to new events. That is safe: a snapshot
counts only by its line in the ledger, and that line is lost together with the events, or
`TableStore` refuses it.

A file must have its name only when it is complete, and must never change afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes.tables import BLOCK, PER_CLASS, PER_OTHER_CLASS, Tables
from spamguard.errors import TableError
from spamguard.records import EXTRACTOR
from spamguard.storage import create_atomically, sync_directory
from spamguard.times import local_time

SNAPSHOT_KEY = f"tables.{EXTRACTOR}"
"""The ledger's note of the snapshot that counts, a `SnapshotStamp`."""
_MAGIC = b"spamguard tables 2\n"
_PAGE_BYTES = 4096
_MAX_HEADER_BYTES = 1 << 24  # some 200 bytes for each class
_SMALL_ARRAYS = (*PER_CLASS, *PER_OTHER_CLASS, "vocabulary", "fusion_weights")


@dataclass(frozen=True)
class SnapshotStamp:
    """The contents of a snapshot. Same lineage, settled and seq mean the same bits."""

    file: str = ""  # its name
    seq: int = 0  # the last event folded
    settled: int = 0  # the last event of the settled state it descends from
    lineage: str = ""  # the name of that state
    taken_back: int = 0  # lessons taken back since then, without another in their place

    @property
    def is_disowned(self) -> bool:
        """Whether the events of these tables have other positions by now (`disown_tables`)."""
        return bool(self.file) and not self.seq and not self.lineage


def snapshot_bytes(place: Path) -> int:
    """The bytes of the snapshots on the disk, without holes."""
    size = 0
    for path in place.glob("tables-*.bin"):
        with suppress(FileNotFoundError):  # another process has replaced it
            size += 512 * path.stat().st_blocks
    return size


def write_snapshot(path: Path, tables: Tables, *, durable: bool, hashed: bool = False) -> str:
    """Write tables under a name that does not exist yet; with durable, wait for the disk.

    Returns the SHA-256 of the file in hexadecimal, or an empty text when it is not to be hashed.
    It cannot be read back for that: another process may remove a file that does not count yet.

    Raises OSError when it cannot be written; then nothing is left behind.
    """
    digest = hashlib.sha256()
    text = _describe_layout(tables)
    head = _MAGIC + b"%08x " % zlib.crc32(text) + text + b"\n"
    with create_atomically(path, durable=durable) as file:
        for data in (np.frombuffer(head, np.uint8), *(array for _, array in _iter_arrays(tables))):
            content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            for part in (content.data, bytes(-content.nbytes % _PAGE_BYTES)):
                file.write(part)
                if hashed:
                    digest.update(part)
    if durable:
        sync_directory(path.parent)
    return digest.hexdigest() if hashed else ""


def _describe_layout(tables: Tables) -> bytes:
    layout: list[tuple[str, str, tuple[int, ...], int]] = []
    size = 0
    for name, array in _iter_arrays(tables):
        layout.append((name, array.dtype.str, array.shape, size))
        size += _round_to_pages(array.nbytes)
    names = ("bits", "used_blocks", "classes")
    header = {name: getattr(tables, name) for name in names} | {"arrays": layout, "bytes": size}
    return json.dumps(header, separators=(",", ":")).encode()


def _iter_arrays(tables: Tables) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "blocks", tables.blocks
    yield "rows", tables.rows
    for number, column in enumerate(tables.columns):
        yield f"column {number}", column
    for name in _SMALL_ARRAYS:
        yield name, getattr(tables, name)


def _round_to_pages(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def read_snapshot(path: Path) -> Tables:
    """Map a snapshot: tables that are private to this process.

    Raises TableError when the file is damaged or gone (a newer one may have replaced it).
    """
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(_read_header(path, file))
            data = _round_to_pages(file.tell())
            if os.fstat(file.fileno()).st_size != data + header["bytes"]:
                raise _damage_error(path, "its length is wrong")
            arrays: dict[str, Any] = {
                name: np.asarray(np.memmap(file, kind, "c", data + start, tuple(shape)))
                for name, kind, shape, start in header["arrays"]  # copy-on-write
            }
    except OSError as error:
        raise _damage_error(path, f"it cannot be read ({error.strerror})") from error
    blocks, used = arrays["blocks"], header["used_blocks"]
    # else verdicts would fail one by one; negative numbers are large ones here
    if blocks.view(np.uint32).max() >= used or used * BLOCK > len(arrays["rows"]):
        raise _damage_error(path, "its blocks are not where they should be")
    columns = [arrays[f"column {number}"] for number in range(len(header["classes"]) - 2)]
    small = {name: arrays[name] for name in _SMALL_ARRAYS}
    known = header["bits"], blocks, used, arrays["rows"], columns, header["classes"]
    return Tables(*known, **small)


def _read_header(path: Path, file: BinaryIO) -> bytes:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damage_error(path, "it is not a table file of this version")
    checksum, _, text = file.readline(_MAX_HEADER_BYTES).rstrip(b"\n").partition(b" ")
    if b"%08x" % zlib.crc32(text) != checksum:
        raise _damage_error(path, "its head is damaged")
    return text


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


@dataclass(frozen=True)
class LedgerLoss:
    """A loss, as the ledger's `LastNumber` proves it. Times are seconds since 1970."""

    events: int  # how many are missing
    since: int  # of the last event that is left; 0: none is
    until: int  # of the last event


def describe_loss(loss: LedgerLoss) -> str:
    """What is missing, in one line; the remedy is LOSS_REMEDY."""
    between = f"between {local_time(loss.since, exact=True)} and" if loss.since else "before"
    return (
        f"at least {loss.events:,} events are missing from the ledger, taught {between} "
        f"{local_time(loss.until, exact=True)}: it or its log (-wal) was damaged"
    )
