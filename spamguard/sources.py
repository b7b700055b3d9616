"""Where the commands get their mail from: files, mboxes, Maildirs, trees, TREC indexes, standard input.

One call, `messages`, whatever the path turns out to be. It must never alter a message beyond the wrapping that the
store put round it, never hold more than one message of a store in memory, never follow a symbolic link that a tree
contains, and never write. What cannot be read is a `SourceError`; what merely looks odd is mail.

An mbox here is a file that begins with a "From " line (RFC 4155, appendix A). Writers disagree about the rest, so:

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

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from spamguard import packed
from spamguard.errors import SourceError

LIMIT = 64 * 1024 * 1024
"""Bytes read of one message unless the caller says otherwise; the rest is dropped."""

_CHUNK = 64 * 1024  # longest piece of a line held at a time: a file without line ends must not become one line
_SAMPLE = 1024 * 1024  # bytes of an mbox that `count` looks at before it extrapolates

_PARTS = ("cur", "new")  # of a Maildir, that hold messages
_ROUNDS = 10  # in which what was renamed meanwhile is looked for; what is renamed every time is left out

_MBOX = re.compile(rb"From (?!\s*:)")  # "From : a@b" is a header field in the obsolete syntax (RFC 5322, section 4.5)
_ENVELOPE = re.compile(rb"From [^\r\n]*(?:\r\n|\r|\n)?")
_DATED = re.compile(
    rb"From .*?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +(?:\d+ +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b.*?\d\d?:\d\d"
)
_FIELD = re.compile(rb">?(?:[!-9;-~]+[ \t]*:|From )")  # some stores put ">From " lines of earlier hops on top of the header
_SEPARATORS = re.compile(rb"^From [^\n]*\n" + _FIELD.pattern, re.MULTILINE)  # close enough for an estimate
_QUOTED = re.compile(rb">+From ")
_QUOTED_ANYWHERE = re.compile(rb"^>(>*From )", re.MULTILINE)
_LAST_EMPTY_LINE = re.compile(rb"(?<=\n)\r?\n\Z")

_CONTROL = ("dovecot-*", "dovecot.*", "maildirfolder", "maildirsize", "subscriptions", "courierimap*", "courierpop3*")
"""Names of files that mail servers keep beside the mail."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a source.

    name: where it was found, safe to print (path; "#2" and so on for the later messages of an mbox).
    raw: its bytes, at most the limit. label: the class that a TREC index gives it, else None.
    """

    name: str
    raw: bytes
    label: str | None = None


def messages(path: str | Path, limit: int = LIMIT) -> Iterator[Message]:
    """The messages at `path`, one after another, each cut at `limit` bytes.

    "-" is standard input: one message or an mbox. A directory is a Maildir (its cur and new, or one of these, in order of
    delivery; not tmp, no subfolders), or is read by its TREC index (`index` or `full/index`), or is a tree: walked in order of
    names, without hidden files, mail servers' control files and symbolic links. Any other file is a TREC index, an mbox
    or one message. An empty Maildir or file has no messages.

    Raises SourceError, while iterating, for what is missing, unreadable or holds nothing that could be mail.
    """
    if os.fspath(path) == "-":
        yield from _standard_input(limit)
        return
    root = Path(path)
    with _reading(root):
        index = _index_of(root)
        if index is not None:
            yield from _indexed(index, limit)
        elif root.is_dir():
            yield from _directory(root, limit)
        else:
            yield from _file(root, limit)


def count(path: str | Path) -> int | None:
    """About how many messages `messages(path)` will give, for progress bars; None for standard input.

    Exact for Maildirs and indexes; large mboxes are extrapolated from their first megabyte. Raises SourceError.
    """
    if os.fspath(path) == "-":
        return None
    root = Path(path)
    with _reading(root):
        index = _index_of(root)
        if index is not None:
            return sum(1 for _ in _entries(index))
        if not root.is_dir():
            return _estimate(root)
        return sum(len(_maildir_files(entry)) if entry.is_dir() else _estimate(entry) for entry in _walk(root))


# ---- one file, or standard input


def _standard_input(limit: int) -> Iterator[Message]:
    """The message or mbox on standard input; nothing at all is most likely a mistake in a pipe."""
    empty = True
    with _reading("-"):
        for message in _split("-", sys.stdin.buffer, limit):
            empty = False
            yield message
    if empty:
        raise SourceError("standard input is empty; send a message or an mbox to it, or name a file instead of '-'")


def _file(path: Path, limit: int) -> Iterator[Message]:
    with path.open("rb") as stream:
        yield from _split(_shown(path), stream, limit)


def _split(name: str, stream: BinaryIO, limit: int) -> Iterator[Message]:
    """The messages of an opened file: those of an mbox, or the one it is."""
    first = stream.readline(_CHUNK)
    if not _MBOX.match(first):
        raw = _unpacked(name, (first + _at_most(stream, limit - len(first)))[:limit], limit)
        if packed.is_packed(first) and _MBOX.match(raw):
            raise SourceError(f"{name}: is a packed mbox: unpack it, as in `zcat mbox.gz | spamguard learn --as ham -`")
        if raw:
            yield Message(name, raw)
        return
    for number, raw in enumerate(_mbox(first, stream, limit), 1):
        yield Message(name if number == 1 else f"{name}#{number}", raw)


def _mbox(line: bytes, stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """The messages of an mbox whose first line (or piece of it) is `line`; `stream` holds the rest."""
    body = bytearray(line[_envelope_length(line) :])
    whole, empty = line.endswith(b"\n"), False  # did the last piece end its line, and was that line empty?
    line = stream.readline(_CHUNK)
    while line:
        following = stream.readline(_CHUNK)
        if whole and line.startswith(b"From ") and _separates(line, following, empty):
            yield _finished(body, limit)
            body = bytearray()
        elif len(body) < limit:
            body += line[1:] if whole and _QUOTED.match(line) else line
        empty = whole and line in (b"\n", b"\r\n")
        whole = line.endswith(b"\n")
        line = following
    if body:
        yield _finished(body, limit)


def _envelope_length(line: bytes) -> int:
    """How many bytes of the first piece are the "From " line; it may end in a bare CR."""
    match = _ENVELOPE.match(line)
    return match.end() if match else 0


def _separates(line: bytes, following: bytes, empty_before: bool) -> bool:
    """Is this "From " line between two messages, or a sentence of one?"""
    return bool(_FIELD.match(following)) and (empty_before or bool(_DATED.match(line)))


def _finished(body: bytes | bytearray, limit: int) -> bytes:
    """A message without the empty line that the mbox put after it, at most `limit` bytes."""
    return _LAST_EMPTY_LINE.sub(b"", bytes(body))[:limit]


def _single(path: Path, limit: int) -> bytes:
    """A file that is one message whatever it looks like (an index says so), unwrapped as an mbox of one would be."""
    raw = _head(path, limit)
    if not _MBOX.match(raw):
        return raw
    return _finished(_QUOTED_ANYWHERE.sub(rb"\1", raw[_envelope_length(raw) :]), limit)


def _at_most(stream: BinaryIO, limit: int) -> bytes:
    """The rest of a stream, so many bytes at most.

    Asked for all of it at once, Python maps memory for the limit and gives nearly all of it back: three times the work for a usual mail.
    """
    start = stream.read(min(_CHUNK, max(0, limit)))
    return start if len(start) < _CHUNK else start + stream.read(max(0, limit - len(start)))


# ---- directories


def _directory(root: Path, limit: int) -> Iterator[Message]:
    """The messages of a Maildir or a tree. An empty Maildir is a folder without mail; an empty tree is a mistake."""
    if root.name in _PARTS and _is_maildir(root.parent):
        yield from _in_use(lambda: _files_of(root), limit)
        return
    found = False
    for entry in _walk(root):
        found = True
        with _reading(entry):
            yield from _maildir(entry, limit) if entry.is_dir() else _file(entry, limit)
    if not found:
        raise SourceError(
            f"{_shown(root)}: no mail in this directory (hidden files and symbolic links do not count); name a folder that has some"
        )


def _walk(root: Path) -> Iterator[Path]:
    """Files that may be mail, and Maildirs (as directories), below `root` in order of names. No link is followed."""
    pending = [root]
    while pending:
        path = pending.pop()
        if not path.is_dir() or _is_maildir(path):
            yield path
        else:
            pending.extend(sorted(_children(path), reverse=True))


def _children(directory: Path) -> list[Path]:
    """What a walk visits of one directory: regular files and directories that are neither hidden nor bookkeeping."""
    with _reading(directory), os.scandir(directory) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if not _is_bookkeeping(entry.name)
            and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            and not (entry.name == "index" and _is_index(Path(entry.path)))
        ]


def _is_bookkeeping(name: str) -> bool:
    return name.startswith(".") or any(fnmatch(name, pattern) for pattern in _CONTROL)


def _is_maildir(path: Path) -> bool:
    return all((path / part).is_dir() and not (path / part).is_symlink() for part in _PARTS)


def _maildir(folder: Path, limit: int) -> Iterator[Message]:
    """The messages of one Maildir, byte for byte as they lie there: a file is one message even if it begins with "From "."""
    return _in_use(lambda: _maildir_files(folder), limit)


def _in_use(files: Callable[[], list[Path]], limit: int) -> Iterator[Message]:
    """The messages of files that may be renamed (read, flagged) or deleted at any time. files: lists them.

    What is not there any more is looked for by its unique name once all others have been read: to list them for each would take hours
    where many are moved away.
    """
    pending = files()
    for _ in range(_ROUNDS):
        gone: set[str] = set()
        for path in pending:
            with _reading(path):
                try:
                    raw = _head(path, limit)
                except FileNotFoundError:
                    gone.add(_unique(path))
                    continue
            if raw:
                yield Message(_shown(path), raw)
        if not gone:
            return
        pending = [path for path in files() if _unique(path) in gone]


def _unique(path: Path) -> str:
    return path.name.partition(":")[0]


def _maildir_files(folder: Path) -> list[Path]:
    """Files of cur and new by unique name, which begins with the time of delivery."""
    return sorted((path for part in _PARTS for path in _files_of(folder / part)), key=lambda path: path.name)


def _files_of(part: Path) -> list[Path]:
    return sorted(path for path in _children(part) if not path.is_dir())


def _head(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        return _unpacked(_shown(path), _at_most(stream, limit), limit)


def _unpacked(name: str, raw: bytes, limit: int) -> bytes:
    try:
        return packed.unpacked(raw, limit)
    except packed.UnreadableError as error:
        raise SourceError(f"{name}: cannot be read: it {error}") from error


# ---- TREC indexes


def _index_of(path: Path) -> Path | None:
    """The TREC index that `path` is, or that lies in the directory `path`; None if there is none."""
    if not path.is_dir():
        return path if _is_index(path) else None
    if _is_maildir(path):
        return None
    return next((index for index in (path / "index", path / "full" / "index") if _is_index(index)), None)


def _is_index(path: Path) -> bool:
    """Is this a TREC index? By its first line: 'spam path' or 'ham path', or 'class path', where path exists.

    A file called index that begins with spam or ham is one even if the path does not exist: then that is the error.
    """
    if not path.is_file():
        return False  # also pipes, whose first line could be read only once
    with path.open("rb") as stream:
        words = stream.readline(_CHUNK).split(maxsplit=1)
    if len(words) != 2 or words[0].endswith(b":") or words[0] == b"From":
        return False
    usual, present = words[0].lower() in (b"spam", b"ham"), (path.parent / os.fsdecode(words[1].strip())).is_file()
    return (usual or present) if path.name == "index" else (usual and present)


def _entries(index: Path) -> Iterator[tuple[int, str, Path]]:
    """Line number, class and file of each line of a TREC index; paths count from the index's own directory."""
    with index.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            words = line.split(maxsplit=1)
            if len(words) == 1:
                raise SourceError(f"{_shown(index)}:{number}: not 'class path', as in 'spam data/00001'; correct or remove the line")
            if words:
                yield number, _class_name(words[0]), index.parent / os.fsdecode(words[1].rstrip())


def _class_name(word: bytes) -> str:
    """The class as written, except that TREC corpora also write Spam and HAM."""
    name = _printable(word)
    return name.lower() if name.lower() in ("spam", "ham") else name


def _indexed(index: Path, limit: int) -> Iterator[Message]:
    """The messages that an index names, one per line, in its order (the order of arrival)."""
    for number, label, path in _entries(index):
        with _reading(path, f"{_shown(index)}:{number}: "):
            yield Message(_shown(path), _single(path, limit), label)


# ---- counting, names, errors


def _estimate(path: Path) -> int:
    """About how many messages a file holds: 1, or the "From " lines of an mbox; a pipe counts as 1, it can be read only once."""
    if not path.is_file():
        path.stat()  # a missing file is an error, a pipe is not
        return 1
    with path.open("rb") as stream:
        sample = stream.read(_CHUNK)
        if not _MBOX.match(sample):
            return 1
        sample += stream.read(_SAMPLE - len(sample))
    seen = sum(1 for _ in _SEPARATORS.finditer(sample))
    return max(1, round(seen * path.stat().st_size / len(sample)))


def _shown(path: Path) -> str:
    """A path as printable text: names may hold bytes that are not UTF-8, line ends, escape sequences."""
    return _printable(os.fsencode(path))


def _printable(text: bytes) -> str:
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in decoded)


@contextmanager
def _reading(path: Path | str, where: str = "") -> Iterator[None]:
    """Turn what the operating system refuses into a SourceError that names the path; `where` names the line that led to it."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{where}{_shown(Path(path))}: no such file or directory; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise SourceError(f"{where}{_shown(Path(path))}: cannot be read ({reason}); check the path and its permissions") from error
