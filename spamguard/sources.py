"""Mail that Dovecot's zlib plugin has packed, as its files lie in a Maildir.

Must never unpack more than it is told to, or let what is packed decide how much memory is held.
Pure: bytes in, bytes out.

Where the commands get their mail from: files, mboxes, Maildirs, trees, TREC indexes, standard
input.

One call, `messages`, whatever the path turns out to be. It must never alter a message beyond the
wrapping that the store put round it, never hold more than one message of a store in memory, never
follow a symbolic link that a tree contains, and never write. What cannot be read is a
`SourceError`; what merely looks odd is mail.

An mbox here is a file that begins with a "From " line (RFC 4155, appendix A). Writers disagree
about the rest, so:

- The "From " line and the one empty line before the next are the store's; everything else is the message's, with the
  line ends it has. Content-Length is ignored: editing and line-end conversion falsify it.
- A later "From " line starts a message only if a header field follows it, and either an empty line precedes it or it
  carries a date. A sentence that happens to begin with "From " is then still text, and stores that leave out the date
  or the empty line are read all the same.
- One level of ">From " quoting is undone. For writers that quote every level (mboxrd) that is exact, for those that
  quote only the bare "From " (mboxo) it is wrong only for lines that were ">From " when sent. The bytes are
  then those that were delivered, so a message taught from an mbox is the same message in a Maildir.
- A file that holds one message behind a "From " line, as in many corpora, is an mbox of one.

Messages that Dovecot has packed (`packed`) are read as what they were.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from spamguard.errors import SourceError, SpamguardError

_MAX_STREAMS = 16  # one after another in a file; each costs a copy of what is left
_MAX_ZSTD_WINDOW = 8 << 20  # bytes that unpacking zstd may hold

Decompressor = Callable[[bytes, int], bytes]


class UnreadableFileError(SpamguardError):
    """The file will not become a message that can be read; the text says why."""


class DamagedFileError(UnreadableFileError):
    """It is not what it should be, or not all of it."""


def is_compressed(data: bytes) -> bool:
    """Whether a file that begins so is packed, or encrypted."""
    return data.startswith(tuple(_DECOMPRESSORS))


def decompress(data: bytes, max_bytes: int) -> bytes:
    """What is packed, at most so many bytes of it; anything else as it is. UnreadableError:
    damaged, encrypted, or of no format known here.
    """
    for magic, unpack in _DECOMPRESSORS.items():
        if data.startswith(magic):
            return unpack(data, max_bytes)
    return data


def _make_decompressor(make: Callable[[], Any]) -> Decompressor:
    """Unpacking by a decompressor of the standard library; files may be made of several streams."""

    def unpack(data: bytes, most: int) -> bytes:
        found: bytes = b""
        left = data
        try:
            for _ in range(_MAX_STREAMS):
                one = make()
                found += one.decompress(left, most - len(found))
                left = one.unused_data
                if not one.eof or not left or len(found) >= most:
                    break
            else:
                raise DamagedFileError(f"is compressed in more than {_MAX_STREAMS} pieces")
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise DamagedFileError(f"is damaged where it is compressed ({error})") from error
        if not one.eof and len(found) < most:
            raise DamagedFileError("is compressed, and its end is missing")
        return found

    return unpack


def _decompress_zstd(data: bytes, most: int) -> bytes:
    """An end that is missing is not noticed here, but by the size in the name."""
    import zstandard  # noqa: PLC0415  takes 10 ms, and is rarely needed

    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW).stream_reader(
        data, read_across_frames=True
    )
    try:
        return reader.read(most)
    except zstandard.ZstdError as error:
        raise DamagedFileError(f"is damaged where it is compressed ({error})") from error


def _make_refusal(why: str) -> Decompressor:
    def refuse(_: bytes, most: int) -> bytes:  # noqa: ARG001  a `Decompressor`
        raise UnreadableFileError(why)

    return refuse


_DECOMPRESSORS: dict[bytes, Decompressor] = {
    b"\x1f\x8b": _make_decompressor(lambda: zlib.decompressobj(wbits=31)),
    b"BZh": _make_decompressor(bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": _make_decompressor(lambda: lzma.LZMADecompressor(memlimit=64 << 20)),
    b"(\xb5/\xfd": _decompress_zstd,
    b"Dovecot-LZ4\r*\x9b\xc5": _make_refusal(
        "is compressed with lz4, which cannot be read here: use gz or zstd"
    ),
    b"CRYPTED\x03\x07": _make_refusal("is encrypted"),
}


MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bytes read of one message unless the caller says otherwise; the rest is dropped."""

_MAX_LINE_BYTES = (
    64 * 1024
)  # longest piece of a line held at a time: a file without line ends must not become one line
_SAMPLE_BYTES = 1024 * 1024  # bytes of an mbox that `count` looks at before it extrapolates

_MESSAGE_DIRECTORIES = ("cur", "new")  # of a Maildir, that hold messages
_MAX_ROUNDS = (
    10  # in which what was renamed meanwhile is looked for; what is renamed every time is left out
)

_FROM_LINE = re.compile(
    rb"From (?!\s*:)"
)  # "From : a@b" is a header field in the obsolete syntax (RFC 5322, section 4.5)
_ENVELOPE_LINE = re.compile(rb"From [^\r\n]*(?:\r\n|\r|\n)?")
_DATED_FROM_LINE = re.compile(
    rb"From .*?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +(?:\d+ +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b.*?\d\d?:\d\d"
)
_FIELD_LINE = re.compile(
    rb">?(?:[!-9;-~]+[ \t]*:|From )"
)  # some stores put ">From " lines of earlier hops on top of the header
_SEPARATORS = re.compile(
    rb"^From [^\n]*\n" + _FIELD_LINE.pattern, re.MULTILINE
)  # close enough for an estimate
_QUOTED_FROM = re.compile(rb">+From ")
_QUOTED_FROM_LINES = re.compile(rb"^>(>*From )", re.MULTILINE)
_LAST_EMPTY_LINE = re.compile(rb"(?<=\n)\r?\n\Z")

_BOOKKEEPING_FILES = (
    "dovecot-*",
    "dovecot.*",
    "maildirfolder",
    "maildirsize",
    "subscriptions",
    "courierimap*",
    "courierpop3*",
)
"""Names of files that mail servers keep beside the mail."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message of a source.

    name: where it was found, safe to print (path; "#2" and so on for the later messages of an
    mbox). raw: its bytes, at most the limit. label: the class that a TREC index gives it, else
    None.
    """

    name: str
    raw: bytes
    label: str | None = None


def read_messages(path: str | Path, limit: int = MAX_MESSAGE_BYTES) -> Iterator[SourceMessage]:
    """The messages at `path`, one after another, each cut at `limit` bytes.

    "-" is standard input: one message or an mbox. A directory is a Maildir (its cur and new, or one
    of these, in order of delivery; not tmp, no subfolders), or is read by its TREC index (`index`
    or `full/index`), or is a tree: walked in order of names, without hidden files, mail servers'
    control files and symbolic links. Any other file is a TREC index, an mbox or one message. An
    empty Maildir or file has no messages.

    Raises SourceError, while iterating, for what is missing, unreadable or holds nothing that could
    be mail.
    """
    if os.fspath(path) == "-":
        yield from _read_stdin(limit)
        return
    root = Path(path)
    with _map_read_errors(root):
        index = _find_index(root)
        if index is not None:
            yield from _read_indexed(index, limit)
        elif root.is_dir():
            yield from _read_directory(root, limit)
        else:
            yield from _read_file(root, limit)


def count_messages(path: str | Path) -> int | None:
    """About how many messages `messages(path)` will give, for progress bars; None for standard
    input.

    Exact for Maildirs and indexes; large mboxes are extrapolated from their first megabyte. Raises
    SourceError.
    """
    if os.fspath(path) == "-":
        return None
    root = Path(path)
    with _map_read_errors(root):
        index = _find_index(root)
        if index is not None:
            return sum(1 for _ in _read_index(index))
        if not root.is_dir():
            return _estimate_messages(root)
        return sum(
            len(_list_maildir(entry)) if entry.is_dir() else _estimate_messages(entry)
            for entry in _walk_files(root)
        )


# ---- one file, or standard input


def _read_stdin(limit: int) -> Iterator[SourceMessage]:
    """The message or mbox on standard input; nothing at all is most likely a mistake in a pipe."""
    empty = True
    with _map_read_errors("-"):
        for message in _split_stream("-", sys.stdin.buffer, limit):
            empty = False
            yield message
    if empty:
        raise SourceError(
            "standard input is empty; send a message or an mbox to it, or name a file instead of '-'"
        )


def _read_file(path: Path, limit: int) -> Iterator[SourceMessage]:
    with path.open("rb") as stream:
        yield from _split_stream(_printable_path(path), stream, limit)


def _split_stream(name: str, stream: BinaryIO, limit: int) -> Iterator[SourceMessage]:
    """The messages of an opened file: those of an mbox, or the one it is."""
    first = stream.readline(_MAX_LINE_BYTES)
    if not _FROM_LINE.match(first):
        raw = _decompress_source(
            name, (first + _read_limited(stream, limit - len(first)))[:limit], limit
        )
        if is_compressed(first) and _FROM_LINE.match(raw):
            raise SourceError(
                f"{name}: is a packed mbox: unpack it, as in `zcat mbox.gz | spamguard learn --as ham -`"
            )
        if raw:
            yield SourceMessage(name, raw)
        return
    for number, raw in enumerate(_split_mbox(first, stream, limit), 1):
        yield SourceMessage(name if number == 1 else f"{name}#{number}", raw)


def _split_mbox(line: bytes, stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """The messages of an mbox whose first line (or piece of it) is `line`; `stream` holds the rest."""
    body = bytearray(line[_envelope_length(line) :])
    whole, empty = (
        line.endswith(b"\n"),
        False,
    )  # did the last piece end its line, and was that line empty?
    line = stream.readline(_MAX_LINE_BYTES)
    while line:
        following = stream.readline(_MAX_LINE_BYTES)
        if whole and line.startswith(b"From ") and _is_separator(line, following, empty):
            yield _finish_body(body, limit)
            body = bytearray()
        elif len(body) < limit:
            body += line[1:] if whole and _QUOTED_FROM.match(line) else line
        empty = whole and line in (b"\n", b"\r\n")
        whole = line.endswith(b"\n")
        line = following
    if body:
        yield _finish_body(body, limit)


def _envelope_length(line: bytes) -> int:
    """How many bytes of the first piece are the "From " line; it may end in a bare CR."""
    match = _ENVELOPE_LINE.match(line)
    return match.end() if match else 0


def _is_separator(line: bytes, following: bytes, empty_before: bool) -> bool:
    """Is this "From " line between two messages, or a sentence of one?"""
    return bool(_FIELD_LINE.match(following)) and (
        empty_before or bool(_DATED_FROM_LINE.match(line))
    )


def _finish_body(body: bytes | bytearray, limit: int) -> bytes:
    """A message without the empty line that the mbox put after it, at most `limit` bytes."""
    return _LAST_EMPTY_LINE.sub(b"", bytes(body))[:limit]


def _read_single(path: Path, limit: int) -> bytes:
    """A file that is one message whatever it looks like (an index says so), unwrapped as an mbox of
    one would be.
    """
    raw = _read_start(path, limit)
    if not _FROM_LINE.match(raw):
        return raw
    return _finish_body(_QUOTED_FROM_LINES.sub(rb"\1", raw[_envelope_length(raw) :]), limit)


def _read_limited(stream: BinaryIO, limit: int) -> bytes:
    """The rest of a stream, so many bytes at most.

    Asked for all of it at once, Python maps memory for the limit and gives nearly all of it back:
    three times the work for a usual mail.
    """
    start = stream.read(min(_MAX_LINE_BYTES, max(0, limit)))
    return (
        start if len(start) < _MAX_LINE_BYTES else start + stream.read(max(0, limit - len(start)))
    )


# ---- directories


def _read_directory(root: Path, limit: int) -> Iterator[SourceMessage]:
    """The messages of a Maildir or a tree. An empty Maildir is a folder without mail; an empty tree
    is a mistake.
    """
    if root.name in _MESSAGE_DIRECTORIES and _is_maildir(root.parent):
        yield from _read_live_files(lambda: _list_files(root), limit)
        return
    found = False
    for entry in _walk_files(root):
        found = True
        with _map_read_errors(entry):
            yield from _read_maildir(entry, limit) if entry.is_dir() else _read_file(entry, limit)
    if not found:
        raise SourceError(
            f"{_printable_path(root)}: no mail in this directory (hidden files and symbolic links do not count); name a folder that has some"
        )


def _walk_files(root: Path) -> Iterator[Path]:
    """Files that may be mail, and Maildirs (as directories), below `root` in order of names. No
    link is followed.
    """
    pending = [root]
    while pending:
        path = pending.pop()
        if not path.is_dir() or _is_maildir(path):
            yield path
        else:
            pending.extend(sorted(_list_directory(path), reverse=True))


def _list_directory(directory: Path) -> list[Path]:
    """What a walk visits of one directory: regular files and directories that are neither hidden
    nor bookkeeping.
    """
    with _map_read_errors(directory), os.scandir(directory) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if not _is_bookkeeping(entry.name)
            and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            and not (entry.name == "index" and _is_index(Path(entry.path)))
        ]


def _is_bookkeeping(name: str) -> bool:
    return name.startswith(".") or any(fnmatch(name, pattern) for pattern in _BOOKKEEPING_FILES)


def _is_maildir(path: Path) -> bool:
    return all(
        (path / part).is_dir() and not (path / part).is_symlink() for part in _MESSAGE_DIRECTORIES
    )


def _read_maildir(folder: Path, limit: int) -> Iterator[SourceMessage]:
    """The messages of one Maildir, byte for byte as they lie there: a file is one message even if
    it begins with "From ".
    """
    return _read_live_files(lambda: _list_maildir(folder), limit)


def _read_live_files(files: Callable[[], list[Path]], limit: int) -> Iterator[SourceMessage]:
    """The messages of files that may be renamed (read, flagged) or deleted at any time. files:
    lists them.

    What is not there any more is looked for by its unique name once all others have been read: to
    list them for each would take hours where many are moved away.
    """
    pending = files()
    for _ in range(_MAX_ROUNDS):
        gone: set[str] = set()
        for path in pending:
            with _map_read_errors(path):
                try:
                    raw = _read_start(path, limit)
                except FileNotFoundError:
                    gone.add(_unique_name(path))
                    continue
            if raw:
                yield SourceMessage(_printable_path(path), raw)
        if not gone:
            return
        pending = [path for path in files() if _unique_name(path) in gone]


def _unique_name(path: Path) -> str:
    return path.name.partition(":")[0]


def _list_maildir(folder: Path) -> list[Path]:
    """Files of cur and new by unique name, which begins with the time of delivery."""
    return sorted(
        (path for part in _MESSAGE_DIRECTORIES for path in _list_files(folder / part)),
        key=lambda path: path.name,
    )


def _list_files(part: Path) -> list[Path]:
    return sorted(path for path in _list_directory(part) if not path.is_dir())


def _read_start(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        return _decompress_source(_printable_path(path), _read_limited(stream, limit), limit)


def _decompress_source(name: str, raw: bytes, limit: int) -> bytes:
    try:
        return decompress(raw, limit)
    except UnreadableFileError as error:
        raise SourceError(f"{name}: cannot be read: it {error}") from error


# ---- TREC indexes


def _find_index(path: Path) -> Path | None:
    """The TREC index that `path` is, or that lies in the directory `path`; None if there is none."""
    if not path.is_dir():
        return path if _is_index(path) else None
    if _is_maildir(path):
        return None
    return next(
        (index for index in (path / "index", path / "full" / "index") if _is_index(index)), None
    )


def _is_index(path: Path) -> bool:
    """Is this a TREC index? By its first line: 'spam path' or 'ham path', or 'class path', where
    path exists.

    A file called index that begins with spam or ham is one even if the path does not exist: then
    that is the error.
    """
    if not path.is_file():
        return False  # also pipes, whose first line could be read only once
    with path.open("rb") as stream:
        words = stream.readline(_MAX_LINE_BYTES).split(maxsplit=1)
    if len(words) != 2 or words[0].endswith(b":") or words[0] == b"From":
        return False
    usual, present = (
        words[0].lower() in (b"spam", b"ham"),
        (path.parent / os.fsdecode(words[1].strip())).is_file(),
    )
    return (usual or present) if path.name == "index" else (usual and present)


def _read_index(index: Path) -> Iterator[tuple[int, str, Path]]:
    """Line number, class and file of each line of a TREC index; paths count from the index's own
    directory.
    """
    with index.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            words = line.split(maxsplit=1)
            if len(words) == 1:
                raise SourceError(
                    f"{_printable_path(index)}:{number}: not 'class path', as in 'spam data/00001'; correct or remove the line"
                )
            if words:
                yield number, _class_name(words[0]), index.parent / os.fsdecode(words[1].rstrip())


def _class_name(word: bytes) -> str:
    """The class as written, except that TREC corpora also write Spam and HAM."""
    name = _escape_bytes(word)
    return name.lower() if name.lower() in ("spam", "ham") else name


def _read_indexed(index: Path, limit: int) -> Iterator[SourceMessage]:
    """The messages that an index names, one per line, in its order (the order of arrival)."""
    for number, label, path in _read_index(index):
        with _map_read_errors(path, f"{_printable_path(index)}:{number}: "):
            yield SourceMessage(_printable_path(path), _read_single(path, limit), label)


# ---- counting, names, errors


def _estimate_messages(path: Path) -> int:
    """About how many messages a file holds: 1, or the "From " lines of an mbox; a pipe counts as 1,
    it can be read only once.
    """
    if not path.is_file():
        path.stat()  # a missing file is an error, a pipe is not
        return 1
    with path.open("rb") as stream:
        sample = stream.read(_MAX_LINE_BYTES)
        if not _FROM_LINE.match(sample):
            return 1
        sample += stream.read(_SAMPLE_BYTES - len(sample))
    seen = sum(1 for _ in _SEPARATORS.finditer(sample))
    return max(1, round(seen * path.stat().st_size / len(sample)))


def _printable_path(path: Path) -> str:
    """A path as printable text: names may hold bytes that are not UTF-8, line ends, escape
    sequences.
    """
    return _escape_bytes(os.fsencode(path))


def _escape_bytes(text: bytes) -> str:
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in decoded
    )


@contextmanager
def _map_read_errors(path: Path | str, where: str = "") -> Iterator[None]:
    """Turn what the operating system refuses into a SourceError that names the path; `where` names
    the line that led to it.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(
            f"{where}{_printable_path(Path(path))}: no such file or directory; check the path"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise SourceError(
            f"{where}{_printable_path(Path(path))}: cannot be read ({reason}); check the path and its permissions"
        ) from error
