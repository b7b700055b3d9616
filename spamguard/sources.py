"""Mail in files: single messages, mboxes, Maildirs, trees, TREC indexes, standard input.

`read_messages` yields the messages at a path, whatever the path turns out to be, one after another.
It is written by hand because `mailbox` takes every line that begins with "From " for the start of a
message. An mbox here is a file that begins with a "From " line (RFC 4155, appendix A). Writers
disagree about the rest, so:

- The "From " line and the one empty line before the next are the store's; everything else is the
  message's, with the line ends it has. Content-Length is ignored: editing falsifies it.
- A later "From " line starts a message only if a header field follows it, and it ends in a date, or
  has nothing but "-" for a sender, or an empty line precedes an address or a time with seconds.
- A mark of the encoding (BOM) in front is left out, and lines may end in bare CR.
- A message that an IMAP server keeps there for its own notes is no mail.
- One level of ">From " quoting is undone: exact for writers that quote every level (mboxrd), else
  (mboxo) wrong only for lines that were ">From " when sent.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from spamguard import log
from spamguard.errors import SourceError, SpamguardError, error_text

MAX_MESSAGE_BYTES = 64 << 20
"""Bytes read of one message; the rest is dropped."""
_MAX_LINE_BYTES = 64 << 10  # held at a time: a file may have no line ends

_MESSAGE_DIRECTORIES = ("cur", "new")  # of a Maildir

# "From : a@b" is a header field in the obsolete syntax (RFC 5322, section 4.5).
_FROM_LINE = re.compile(rb"From (?!\s*:)")
_BARE_CR_LINE = re.compile(rb"[^\r\n]*\r(?!\n)")
_ENVELOPE_LINE = re.compile(rb"From [^\r\n]*(?:\r\n|\r|\n)?")  # may end in a bare CR
# Year and zone: what follows the time in a date.
_LINE_END = rb"(?:[ \t]++[A-Z0-9()+:-]{1,10}+){0,6}(?: remote from \S++)?[ \t]*+[\r\n]*+\Z"
_DATED_FROM_LINE = re.compile(
    rb"From (?:-|.{0,400}?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +(?:\d+ +)?"
    rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b.{0,20}?\d\d?:\d\d(?::\d\d)?)"
    + _LINE_END
)
_UNDATED_FROM_LINE = re.compile(rb"From (?:[^\s@]++@\S++|.{0,400}?\d\d?:\d\d:\d\d)" + _LINE_END)
# Some stores put ">From " lines of earlier hops on top of the header.
_FIELD_LINE = re.compile(rb">?(?:[!-9;-~]+[ \t]*:|From )")
_QUOTED_FROM = re.compile(rb">+From ")
_QUOTED_FROM_LINES = re.compile(rb"^>(>*From )", re.MULTILINE)
_LAST_EMPTY_LINE = re.compile(rb"(?:(?<=\n)\r?\n|(?<=\r)\r)\Z")

_HEADER_END = re.compile(rb"\r?\n\r?\n|\r\r")
_SERVER_NOTES = re.compile(  # of the library c-client, and of Dovecot
    rb"^(?:X-IMAP:|Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA)", re.M | re.I
)
_FLAGS_SUFFIX = re.compile(r"[:;!]2,([A-Za-z]*)")  # of file systems without the colon, too
# The first one counts: Thunderbird writes its own on top, and a sender's stands below.
_MOZILLA_STATUS = re.compile(rb"^X-Mozilla-Status:[ \t]*([0-9a-f]{1,8})\b", re.M | re.I)
_X_STATUS = re.compile(rb"^X-Status:[^\r\n]*D", re.M | re.I)

# Files that mail servers keep beside the mail.
_BOOKKEEPING_FILE = re.compile(
    r"dovecot[-.].*|maildirfolder|maildirsize|subscriptions|courierimap.*|courierpop3.*", re.DOTALL
)


class SourceMessage(NamedTuple):
    """One message of a source."""

    name: str  # the path, printable, and "#2" and so on for later messages of an mbox
    raw: bytes  # at most `MAX_MESSAGE_BYTES`
    label: str | None = None  # the class that a TREC index gives it
    deleted: bool = False  # as of `is_deleted`


def read_messages(path: str | Path) -> Iterator[SourceMessage]:
    """Yield the messages at a path.

    "-" is standard input: one message or an mbox. A directory is a Maildir (its cur and new, or one
    of these; no subfolders), or is read by its TREC index (`index` or `full/index`), or is a tree:
    walked in order of names, without hidden files, control files of mail servers and symbolic
    links. Any other file is an mbox, one message, or a TREC index.

    SourceError, while iterating: the path is unreadable or holds nothing that could be mail.
    """
    if os.fspath(path) == "-":
        is_empty = True
        with _map_read_errors("-"):
            for message in _split_stream("-", sys.stdin.buffer):
                is_empty = False
                yield message
        if is_empty:  # most likely a mistake in a pipe
            remedy = "send a message or an mbox to it, or name a file instead of '-'"
            raise SourceError(f"standard input is empty; {remedy}")
        return
    root = Path(path)
    with _map_read_errors(root):
        indexes = (root, root / "index", root / "full" / "index")
        if index := next(filter(_is_index, indexes), None):
            for number, label, file in _read_index(index):
                with _map_read_errors(file, f"{_printable_path(index)}:{number}: "):
                    raw = _read_one(file)
                    if _FROM_LINE.match(raw):  # an mbox of one
                        body = _QUOTED_FROM_LINES.sub(rb"\1", _ENVELOPE_LINE.sub(b"", raw, 1))
                        raw = _finish_body(body)
                    yield SourceMessage(_printable_path(file), raw, label)
        elif root.is_dir():
            yield from _read_directory(root)
        else:
            yield from _read_file(root)


# ---- one file, or standard input


def _read_file(path: Path) -> Iterator[SourceMessage]:
    with _map_read_errors(path), path.open("rb") as stream:
        yield from _split_stream(_printable_path(path), stream)


def _split_stream(name: str, stream: BinaryIO) -> Iterator[SourceMessage]:
    first = stream.readline(_MAX_LINE_BYTES)
    start, file = first.removeprefix(codecs.BOM_UTF8), name.rpartition("/")[2]
    if _FROM_LINE.match(start):
        for number, raw in enumerate(_split_mbox(_read_lines(start, stream)), 1):
            header = _HEADER_END.split(raw[:_MAX_LINE_BYTES], 1)[0]
            if not _SERVER_NOTES.search(header):
                where = name if number == 1 else f"{name}#{number}"
                yield SourceMessage(where, raw, deleted=is_deleted(file, header))
        return
    rest = stream.read(max(0, MAX_MESSAGE_BYTES - len(first)))
    raw = _unpack(name, (first + rest)[:MAX_MESSAGE_BYTES])
    if _FROM_LINE.match(raw):
        raise SourceError(
            f"{name}: is a compressed mbox: decompress it, as in "
            "`zcat mbox.gz | spamguard learn --as ham -`"
        )
    if raw:
        yield SourceMessage(name, raw, deleted=is_deleted(file))


def is_deleted(file: str, header: bytes = b"") -> bool:
    """Whether a message is marked as deleted, and only waits to be expunged: by the name of its
    file (in a Maildir flag T, in a folder of MH a comma in front), or, in an mbox, by its header.
    """
    flags = _FLAGS_SUFFIX.search(file)
    mozilla = _MOZILLA_STATUS.search(header)
    return (
        file.startswith(",")
        or (flags is not None and "T" in flags[1])
        or (mozilla is not None and int(mozilla[1], 16) & 0x0008 != 0)
        or _X_STATUS.search(header) is not None
    )


def _read_lines(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    if not _BARE_CR_LINE.match(start):
        yield start
        yield from iter(partial(stream.readline, _MAX_LINE_BYTES), b"")
        return
    while start:
        *lines, last = start.splitlines(keepends=True)
        yield from lines
        more = stream.read(_MAX_LINE_BYTES)
        if len(last) >= _MAX_LINE_BYTES or not more:
            yield last
            last = b""
        start = last + more


def _split_mbox(lines: Iterator[bytes]) -> Iterator[bytes]:
    line, body = next(lines), bytearray()
    was_whole, was_empty = _is_whole(line), False  # the line before, and no piece of one
    line = next(lines, b"")
    while line:
        following = next(lines, b"")
        if (
            was_whole
            and line.startswith(b"From ")
            and _FIELD_LINE.match(following)
            and (_DATED_FROM_LINE.match(line) or (was_empty and _UNDATED_FROM_LINE.match(line)))
        ):
            yield _finish_body(body)
            body = bytearray()
        elif len(body) < MAX_MESSAGE_BYTES:
            body += line[1:] if was_whole and _QUOTED_FROM.match(line) else line
        was_empty = was_whole and line in (b"\n", b"\r\n", b"\r")
        was_whole = _is_whole(line)
        line = following
    if body:
        yield _finish_body(body)


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") or (line.endswith(b"\r") and len(line) < _MAX_LINE_BYTES)


def _finish_body(body: bytes | bytearray) -> bytes:
    return _LAST_EMPTY_LINE.sub(b"", bytes(body))[:MAX_MESSAGE_BYTES]


def _read_one(path: Path) -> bytes:
    with path.open("rb") as stream:
        return _unpack(_printable_path(path), stream.read(MAX_MESSAGE_BYTES))


def _unpack(name: str, raw: bytes) -> bytes:
    try:
        return decompress(raw, MAX_MESSAGE_BYTES)
    except UnreadableFileError as error:
        raise SourceError(f"{name}: cannot be read: it {error}") from error


# ---- directories


def _read_directory(root: Path) -> Iterator[SourceMessage]:
    """An empty tree is a mistake, an empty Maildir is not."""
    is_empty, pending = True, [root]
    while pending:
        path = pending.pop()
        if not path.is_dir():
            yield from _read_file(path)
        elif _is_maildir(path):
            yield from _read_live_files([path / part for part in _MESSAGE_DIRECTORIES])
        elif path.name in _MESSAGE_DIRECTORIES and _is_maildir(path.parent):
            yield from _read_live_files([path])
        else:
            pending.extend(sorted(_list_directory(path), reverse=True))
            continue
        is_empty = False
    if is_empty:
        raise SourceError(
            f"{_printable_path(root)}: no mail in this directory (hidden files and symbolic links "
            "do not count); name a folder that has some"
        )


def _list_directory(directory: Path) -> list[Path]:
    with os.scandir(directory) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if not entry.name.startswith(".")
            and not _BOOKKEEPING_FILE.fullmatch(entry.name)
            and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            and not (entry.name == "index" and _is_index(Path(entry.path)))
        ]


def _is_maildir(path: Path) -> bool:
    parts = (path / name for name in _MESSAGE_DIRECTORIES)
    return all(part.is_dir() and not part.is_symlink() for part in parts)


def _read_live_files(folders: Sequence[Path]) -> Iterator[SourceMessage]:
    """Files may be renamed or deleted at any time. Those that are gone are looked for by their
    unique names once all others have been read: to list them for each would take hours.
    """
    missing: set[str] | None = None  # at first all
    for _ in range(10):  # a file that is renamed each time is left out
        files = [path for folder in folders for path in _list_directory(folder)]
        wanted, missing = missing, set()
        for path in sorted(files, key=lambda path: path.name):  # begins with the time of delivery
            unique = path.name.partition(":")[0]
            if path.is_dir() or (wanted is not None and unique not in wanted):
                continue
            with _map_read_errors(path):
                try:
                    raw = _read_one(path)
                except FileNotFoundError:
                    missing.add(unique)
                    continue
            if raw:
                yield SourceMessage(_printable_path(path), raw, deleted=is_deleted(path.name))
        if not missing:
            return


# ---- TREC indexes


def _is_index(path: Path) -> bool:
    """Whether a file called index begins with 'spam path', or a class and a path that exists."""
    if path.name != "index" or not path.is_file():
        return False  # also a pipe, which can be read only once
    with path.open("rb") as stream:
        words = stream.readline(_MAX_LINE_BYTES).split(maxsplit=1)
    return len(words) == 2 and (
        words[0].lower() in (b"spam", b"ham")
        or (path.parent / os.fsdecode(words[1].strip())).is_file()
    )


def _read_index(index: Path) -> Iterator[tuple[int, str, Path]]:
    with index.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            words = line.split(maxsplit=1)
            if len(words) == 1:
                raise SourceError(
                    f"{_printable_path(index)}:{number}: not 'class path', as in "
                    "'spam data/00001'; correct or remove the line"
                )
            if words:
                label = _printable(words[0])
                if label.lower() in ("spam", "ham"):  # TREC corpora also write Spam and HAM
                    label = label.lower()
                yield number, label, index.parent / os.fsdecode(words[1].rstrip())


# ---- names and errors


def _printable_path(path: Path) -> str:
    """Names may hold bytes that are not UTF-8, line ends, escape sequences."""
    return _printable(os.fsencode(path))


def _printable(name: bytes) -> str:
    return log.printable(name.decode("utf-8", "backslashreplace"), log.escape_letter)


@contextmanager
def _map_read_errors(path: Path | str, where: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        name = where + _printable_path(Path(getattr(error, "filename", None) or path))
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{name}: no such file or directory; check the path") from error
        raise SourceError(
            f"{name}: cannot be read ({error_text(error)}); check the path and its permissions"
        ) from error


# ---- compressed files

_MAX_STREAMS = 64  # one after another in a file; each costs a copy of the rest
_ZSTD_MAGIC = b"(\xb5/\xfd"
_DECOMPRESSORS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(memlimit=64 << 20),
}
_UNREADABLE = {
    b"Dovecot-LZ4\r*\x9b\xc5": (
        "is compressed with lz4, which cannot be read here: use gz or zstd"
    ),
    b"CRYPTED\x03\x07": "is encrypted",
}


class UnreadableFileError(SpamguardError):
    """The file will not become a message that can be read; the text says why."""


class DamagedFileError(UnreadableFileError):
    """The file is not what it should be, or not all of it."""


def decompress(data: bytes, max_bytes: int) -> bytes:
    """At most so many bytes of the content of a compressed file; any other data unchanged.
    UnreadableFileError: it is damaged, encrypted, or of a format that is unknown here.
    """
    for magic, reason in _UNREADABLE.items():
        if data.startswith(magic):
            raise UnreadableFileError(reason)
    try:
        if data.startswith(_ZSTD_MAGIC):
            return _decompress_zstd(data, max_bytes)
        for magic, make in _DECOMPRESSORS.items():
            if data.startswith(magic):
                return _decompress_streams(make, data, max_bytes)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DamagedFileError(f"is damaged where it is compressed ({error})") from error
    return data


def _decompress_streams(make: Callable[[], Any], data: bytes, max_bytes: int) -> bytes:
    content: bytes = b""
    for _ in range(_MAX_STREAMS):
        stream = make()
        content += stream.decompress(data, max_bytes - len(content))
        data = stream.unused_data
        if len(content) >= max_bytes or (stream.eof and not data):
            return content
    raise DamagedFileError("is compressed in too many pieces, or its end is missing")


def _decompress_zstd(data: bytes, max_bytes: int) -> bytes:
    """Does not notice a missing end; callers compare the size in the name."""
    import zstandard  # noqa: PLC0415  few need it, and all commands would wait 10 ms

    decompressor = zstandard.ZstdDecompressor(max_window_size=8 << 20)  # bytes
    try:
        return decompressor.stream_reader(data, read_across_frames=True).read(max_bytes)
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error  # as bz2 does
