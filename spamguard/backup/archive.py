"""The file of a backup: frames (`framed`), their magic b"spamguard backup\\n".

    "H"         header, JSON (`Header`)
    "F"         a file begins: its name, one of `NAMES`
    "D"         a piece of it, compressed

Readers refuse a higher format number than their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from spamguard.files import KEY, LEDGER, create_private
from spamguard.framed import HEADER, PIECE, FrameReader, FrameWriter
from spamguard.times import LATEST

FORMAT = 1
SIGHTINGS = "sightings.sqlite"
NAMES = (KEY, LEDGER, SIGHTINGS)
"""Of files that a backup may hold; the last only where folders are watched."""
_MAGIC = b"spamguard backup\n"
_FILE, _PIECE = b"F", b"D"

Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Header:
    """What the file holds. fingerprint: of the key. time: seconds since 1970. sizes: of the files, bytes, by name."""

    format: int
    program: str
    fingerprint: str
    time: int
    sizes: dict[str, int]


def write(stream: BinaryIO, header: Header, files: dict[str, Path], advance: Advance) -> int:
    """Write these files, by their names; how many bytes that took. advance: is told how many bytes of them were written."""
    writer = FrameWriter(stream, _MAGIC, json.dumps(asdict(header)).encode())
    for name, path in files.items():
        writer.frame(_FILE, name.encode())
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                writer.piece(_PIECE, piece)
                advance(len(piece))
    writer.end()
    return writer.bytes


class Archive(FrameReader):
    """A backup to be read from a stream that can be read twice. Everything raises SourceError for what is no whole backup."""

    magic, kinds = _MAGIC, (_FILE, _PIECE)
    foreign = "it is not a file that `spamguard backup` wrote (`import` takes those of `export`)"
    undone = "nothing was restored"

    def check(self) -> Header:
        """Look at every byte; what it holds."""
        header, sizes = None, dict[str, int]()
        for kind, payload in self.frames():
            if kind == HEADER:
                header = self._header(payload)
            elif kind == _FILE:
                sizes[name := self._file_name(payload, sizes)] = 0
            elif not sizes:
                self.refuse("it is damaged")
            else:
                sizes[name] += len(self.unpressed(payload))
        if header is None or sizes != header.sizes or not sizes.keys() >= {KEY, LEDGER}:
            self.refuse("it is damaged: its files are not those that it names")
        return header

    def extract(self, place: Path, advance: Advance) -> None:
        """Write its files into a directory that has none of them. It must have been checked."""
        file = None
        try:
            for kind, payload in self.frames():
                if kind == _FILE:
                    if file is not None:
                        file.close()
                    file = create_private(place / self._file_name(payload, {}))
                elif kind == _PIECE and file is not None:
                    advance(file.write(self.unpressed(payload)))
        finally:
            if file is not None:
                file.close()

    def _file_name(self, payload: bytes, seen: dict[str, int]) -> str:
        name = payload.decode("ascii", "replace")
        if name not in NAMES or name in seen:
            self.refuse("it is damaged: it names a file that no backup has")
        return name

    def _header(self, payload: bytes) -> Header:
        found = self.header(payload, FORMAT, Header)
        if not 0 <= found.time < LATEST:
            self.refuse("its header is damaged (time)")
        return found
