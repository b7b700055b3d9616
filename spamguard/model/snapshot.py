"""Tables as a file: written once, complete before it has a name, mapped copy-on-write by every process.

A snapshot is a cache of the ledger: it must never be changed in place, and one that is cut short, or whose head is damaged, is an
error that names the remedy, never a wrong verdict. (What the disk does to the arrays is left to its own checks: to sum 64 MB
up at every opening would cost more than all else that opening does.) One file holds all arrays, each on a page border, so that
replacing it is one rename. The file has no holes: whoever touches a mapped hole on a full tmpfs is ended by SIGBUS.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes.tables import PER_CLASS, PER_OTHER_CLASS, Tables
from spamguard.errors import TableError
from spamguard.files import named_once_whole, sync_directory

_MAGIC = b"spamguard tables 1\n"
_PAGE = 4096
_MAPPED = 1 << 20  # bytes: an array of so many is mapped, a smaller one is read
_LONGEST_HEAD = 1 << 24  # some 200 bytes for each class
_SMALL = (*PER_CLASS, *PER_OTHER_CLASS, "vocabulary", "fusion_weights")


def _arrays(tables: Tables) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "rows", tables.rows
    for number, column in enumerate(tables.columns):
        yield f"column {number}", column
    for name in _SMALL:
        yield name, getattr(tables, name)


def write(path: Path, tables: Tables, *, durable: bool) -> None:
    """Write tables under a name that does not exist yet; durable: and wait for the disk.

    OSError when it cannot be written; then nothing is left behind.
    """
    layout: list[tuple[str, str, tuple[int, ...], int]] = []
    position = 0
    for name, array in _arrays(tables):
        layout.append((name, array.dtype.str, array.shape, position))
        position += _whole_pages(array.nbytes)
    head = _head({"bits": tables.bits, "classes": tables.classes, "arrays": layout, "bytes": position})
    with named_once_whole(path) as file:
        file.write(head)
        for (_, array), (*_, start) in zip(_arrays(tables), layout, strict=True):
            file.seek(len(head) + start)
            file.write(np.ascontiguousarray(array).data)
        file.truncate(len(head) + position)  # the last page is whole
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        sync_directory(path.parent)


def _head(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    head = _MAGIC + b"%08x " % zlib.crc32(text) + text + b"\n"
    return head.ljust(_whole_pages(len(head)), b"\0")


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def read(path: Path) -> Tables:
    """Map a snapshot: tables that are private to this process.

    TableError when the file is damaged or gone (a newer one may have replaced it).
    """
    try:
        return _map(path)
    except OSError as error:
        raise _damaged(path, f"it cannot be read ({error.strerror})") from error


def _map(path: Path) -> Tables:
    with path.open("rb") as file:
        header = _header(path, file)
        data = _whole_pages(file.tell())
        if os.fstat(file.fileno()).st_size != data + header["bytes"]:
            raise _damaged(path, "its length is wrong")
        if not all(np.dtype(dtype).isnative for _, dtype, *_ in header["arrays"]):
            raise _damaged(path, "it was made by a machine with another order of bytes")
        arrays = {name: _load(file, dtype, shape, data + start) for name, dtype, shape, start in header["arrays"]}
    columns = [arrays[f"column {number}"] for number in range(len(header["classes"]) - 2)]
    small: dict[str, Any] = {name: arrays[name] for name in _SMALL}
    return Tables(header["bits"], arrays["rows"], columns, header["classes"], **small)


def _load(file: BinaryIO, dtype: str, shape: list[int], start: int) -> NDArray[Any]:
    """Large arrays are mapped copy-on-write; small ones are read."""
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape))
    if size >= _MAPPED:
        return np.asarray(np.memmap(file, kind, "c", start, tuple(shape)))
    file.seek(start)
    return np.frombuffer(bytearray(file.read(size)), kind).reshape(shape)


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damaged(path, "it is not a table file of this version")
    checksum, _, text = file.readline(_LONGEST_HEAD).rstrip(b"\n").partition(b" ")
    if b"%08x" % zlib.crc32(text) != checksum:
        raise _damaged(path, "its head is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def _damaged(path: Path, how: str) -> TableError:
    return TableError(f"{path}: {how}; the tables can be made anew from the ledger: run `spamguard rebuild`")
