"""The messages of an archive, as data/000001 and so on: the names in an archive choose labels, and are never written to.

Only regular files are looked at: links, devices and names that lead outside are passed over.
"""

from __future__ import annotations

import bz2
import email.utils
import gzip
import hashlib
import lzma
import posixpath
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, NamedTuple, cast

from spamguard.corpus.recipes import Recipe
from spamguard.errors import SourceError

MOST_FILES = 500_000
MOST_BYTES = 8 << 30  # of all messages together
_MOST_MESSAGE = 64 << 20
_COMPRESSED: dict[bytes, Callable[[Path], IO[bytes]]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}  # type: ignore[dict-item]
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)
_WORDS = {b"spam": "spam", b"ham": "ham", b"0": "spam", b"1": "ham"}  # the last two are CSDMC's
_RECEIVED = re.compile(rb"^received:[^\n]*(?:\n[ \t][^\n]*)*;([^;\n]*(?:\n[ \t][^;\n]*)*)$", re.IGNORECASE | re.MULTILINE)
_DATE = re.compile(rb"^date:([^\n]*)", re.IGNORECASE | re.MULTILINE)


class Kept(NamedTuple):
    """A file of an archive, on the disk. path: what the archive calls it; arrived: seconds since 1970, or a day; digest: of it."""

    path: str
    file: Path
    arrived: float
    digest: bytes


def unpack(archives: Iterable[Path], recipe: Recipe, place: Path) -> list[tuple[str, Path]]:
    """Label and file of each message in order of arrival, written into a directory. SourceError: an archive is damaged or too large."""
    kept: list[Kept] = []
    labels: dict[str, tuple[int, str]] = {}
    for archive in archives:
        for path, content in _members(archive):
            if recipe.index is not None and recipe.index.member.fullmatch(path):
                labels |= _labels(path, content, recipe.index.base, len(labels))
            elif recipe.index is not None or _label(path, recipe) is not None:
                kept.append(_keep(path, content, place / f"{len(kept) + 1:06}", recipe))
    if recipe.index is not None:
        known = [(*labels[one.path], one.file) for one in kept if one.path in labels]
        return [(label, file) for _, label, file in sorted(known)]
    kept.sort(key=lambda one: (one.arrived, one.digest))
    return [(_label(one.path, recipe) or "", one.file) for one in kept]


def _label(path: str, recipe: Recipe) -> str | None:
    return next((label for pattern, label in recipe.labels if pattern.fullmatch(path)), None)


def _labels(path: str, content: bytes, base: str, before: int) -> dict[str, tuple[int, str]]:
    """By the path of a message, its number in the index and its label."""
    found = {}
    for number, line in enumerate(content.splitlines(), start=before):
        word, _, target = line.strip().partition(b" ")
        if word.lower() in _WORDS:
            name = posixpath.normpath(posixpath.join(posixpath.dirname(path), base, target.decode("utf-8", "replace")))
            found[name] = (number, _WORDS[word.lower()])
    return found


def _keep(path: str, content: bytes, file: Path, recipe: Recipe) -> Kept:
    with file.open("xb") as written:
        written.write(content)
    return Kept(path, file, _arrived(path, content, recipe), hashlib.sha256(content).digest())


def _arrived(path: str, content: bytes, recipe: Recipe) -> float:
    """What orders messages: the last server's time, else the sender's, else the day in the path; 0 where there is none of them."""
    if recipe.dated is not None:
        day = recipe.dated.search(path)
        return float(day[1].replace("-", "")) if day else 0.0
    header = content[:65536].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    for pattern in (_RECEIVED, _DATE):
        if found := pattern.search(header):
            parsed = email.utils.parsedate_tz(found[1].decode("ascii", "replace"))
            if parsed is not None:
                try:
                    return float(email.utils.mktime_tz(parsed))
                except (ValueError, OverflowError):
                    continue
    return 0.0


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of the regular files of an archive."""
    files, left = 0, MOST_BYTES
    try:
        for name, size, stream in _opened(archive):
            files, left = files + 1, left - size
            if files > MOST_FILES or left < 0:
                raise SourceError(
                    f"{archive.name}: has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes: it is not the archive that it should be"
                )
            path = posixpath.normpath(name)
            if stream is not None and size <= _MOST_MESSAGE and not path.startswith(("/", "../")) and path != "..":
                content = stream.read(_MOST_MESSAGE + 1)
                if len(content) == size:
                    yield path, content
    except _DAMAGE as error:
        raise SourceError(
            f"{archive.name}: cannot be unpacked ({' '.join(str(error).split())}): it is cut off, damaged or no archive"
        ) from error


def _opened(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, size and stream of each member; None for what is no regular file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = info.external_attr >> 28  # of the Unix mode: 0 none, 8 a regular file
                if info.is_dir() or kind not in (0, 8):
                    yield info.filename, info.file_size, None
                else:
                    with packed.open(info) as stream:
                        yield info.filename, info.file_size, stream
        return
    with _unpressed(archive) as stream, tarfile.open(fileobj=cast("IO[bytes]", _Bounded(stream)), mode="r:") as packed_tar:
        while (member := packed_tar.next()) is not None:
            packed_tar.members.clear()  # type: ignore[attr-defined]  # it would remember each
            found = packed_tar.extractfile(member) if member.isreg() else None
            with found or nullcontext():
                yield member.name, member.size, found


def _unpressed(archive: Path) -> IO[bytes]:
    """The archive within the compressed file."""
    with archive.open("rb") as file:
        start = file.read(6)
    for magic, opened in _COMPRESSED.items():
        if start.startswith(magic):
            return opened(archive)
    return archive.open("rb")


class _Bounded:
    """A stream of which nobody can have much at once: `tarfile` reads extensions of a header whole, however long they say they are."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.tell, self.seek = stream.tell, stream.seek
        self._read = stream.read

    def read(self, size: int) -> bytes:
        """So many bytes. tarfile.ReadError: they are more than a message may have."""
        if not 0 <= size <= _MOST_MESSAGE + tarfile.BLOCKSIZE:
            raise tarfile.ReadError("a header in it is too long")
        return self._read(size)
