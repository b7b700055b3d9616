"""Public corpora of mail: what is known of each, and how one is fetched and made ready.

A corpus is made in a directory of its own: `index` ("spam data/000001", in order of arrival),
`data/`, and SOURCE, which says what it is. An archive is bounded while it is fetched and unpacked,
and thrown away unless its checksum is right. A recipe has a checksum only if its publisher tells it
or we have the archive; for all others `fetch` prints what it got, and --sha256 pins it next time.

Must never write to a name that an archive gives: such names choose labels only, and messages are
data/000001 and so on. Links, devices and names that lead outside are passed over.
"""

from __future__ import annotations

import bz2
import email
import email.utils
import gzip
import hashlib
import http.client
import lzma
import posixpath
import re
import secrets
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from re import Pattern
from typing import IO, Any, BinaryIO, NamedTuple, cast

from spamguard.errors import SourceError, UsageError
from spamguard.storage import create_private

# ---- what is known of each corpus


@dataclass(frozen=True, slots=True)
class CorpusArchive:
    """One file to fetch. sha256: hexadecimal, if it is known."""

    url: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class LabelIndex:
    """Labels in a file of the archive, as lines "label path".

    member: that file. base: what its paths are relative to, seen from it.
    """

    member: Pattern[str]
    base: str = ""


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """The description of a corpus.

    licence: what to know before using it. labels: by the path of a member; the first that fits
    counts. index: instead of labels. page: of a corpus that must be fetched by hand. date_pattern:
    finds the day of a message in its path, where messages have no header.
    """

    name: str
    about: str
    licence: str
    archives: tuple[CorpusArchive, ...] = ()
    labels: tuple[tuple[Pattern[str], str], ...] = ()
    index: LabelIndex | None = None
    page: str = ""
    date_pattern: Pattern[str] | None = None


_SPAMASSASSIN_URL = "https://spamassassin.apache.org/old/publiccorpus/20030228_"
_AUEB_URL = "http://www.aueb.gr/users/ion/data/"
_TREC_URL = "https://plg.uwaterloo.ca/~gvcormac/"
_TREC_INDEX = LabelIndex(re.compile(r".*full/index"))
_TREC_LICENCE = "for research, after agreeing to its terms on its page; may not be passed on"


def _trec_recipe(name: str, about: str, page: str) -> CorpusRecipe:
    return CorpusRecipe(name, about, _TREC_LICENCE, index=_TREC_INDEX, page=_TREC_URL + page)


def _label_patterns(spam: str, ham: str) -> tuple[tuple[Pattern[str], str], ...]:
    return (re.compile(spam), "spam"), (re.compile(ham), "ham")


RECIPES = {
    recipe.name: recipe
    for recipe in (
        CorpusRecipe(
            "spamassassin",
            "6,047 messages of 2001 and 2002 with all headers, one man's mail and some mailing "
            "lists",
            "the senders' copyright; given for testing filters; never send these messages through "
            "a live system",
            tuple(
                CorpusArchive(f"{_SPAMASSASSIN_URL}{part}.tar.bz2")
                for part in ("easy_ham", "easy_ham_2", "hard_ham", "spam", "spam_2")
            ),
            _label_patterns(
                r"spam(?:_2)?/\d+\.[^/]+", r"(?:easy_ham|easy_ham_2|hard_ham)/\d+\.[^/]+"
            ),
        ),
        CorpusRecipe(
            "enron-spam",
            "33,716 messages of 1999 to 2005: the mail of six employees of Enron, spam from "
            "elsewhere; subjects and texts only",
            "the senders' copyright; published with Metsis, Androutsopoulos and Paliouras, CEAS "
            "2006",
            tuple(
                CorpusArchive(f"{_AUEB_URL}enron-spam/preprocessed/enron{number}.tar.gz")
                for number in range(1, 7)
            ),
            _label_patterns(r"enron\d/spam/[^/]+", r"enron\d/ham/[^/]+"),
            date_pattern=re.compile(r"/\d+\.(\d{4}-\d\d-\d\d)\."),
        ),
        CorpusRecipe(
            "ling-spam",
            "2,893 messages: the Linguist list, and spam; subjects and texts only",
            "the senders' copyright; published with Androutsopoulos and others, 2000",
            (CorpusArchive(f"{_AUEB_URL}lingspam_public.tar.gz"),),
            _label_patterns(r".*/bare/part\d+/spmsg[^/]*", r".*/bare/part\d+/[^/]+\.txt"),
        ),
        CorpusRecipe(
            "csdmc2010",
            "4,327 labelled messages of the data mining competition at ICONIP 2010, with headers",
            "the senders' copyright; given for the competition",
            index=LabelIndex(re.compile(r".*SPAMTrain\.label"), "TRAINING"),
            page="http://csmining.org/index.php/spam-email-datasets-.html",
        ),
        _trec_recipe("trec05p", "92,189 messages of 2001 to 2005, mostly of Enron", "treccorpus/"),
        _trec_recipe("trec06p", "37,822 messages, English", "treccorpus06/"),
        _trec_recipe("trec06c", "64,620 messages, Chinese", "treccorpus06/"),
        _trec_recipe("trec07p", "75,419 messages of 2007, one server", "treccorpus07/"),
    )
}


# ---- fetching

MAX_ARCHIVE_BYTES = 2 << 30
"""Of one archive: the largest known has some 400 MB."""
_FETCH_TIMEOUT = 60.0  # seconds of silence
_CHUNK_BYTES = 1 << 18

Advance = Callable[[int], object]
"""Is called with the number of bytes that have come."""


class _WebRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirections to the web only, never to a file of this machine."""

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*arguments)
        if request is not None and request.type not in ("http", "https"):
            raise urllib.error.URLError(f"it is redirected to {request.type}:")
        return request


def fetch_archive(
    archive: CorpusArchive, pinned: Collection[str], target: Path, advance: Advance
) -> str:
    """Fetch an archive to a new file; return its SHA-256.

    pinned: SHA-256 of which it must have one, unless its own is known. SourceError: the archive
    cannot be had, or is another one; nothing is kept.
    """
    try:
        with create_private(target) as file:
            digest = _download(archive.url, file, advance)
        expected = {archive.sha256} if archive.sha256 else set(pinned)
        if expected and digest not in expected:
            raise SourceError(f"{_mismatch(archive.url, digest, expected)}: nothing of it was kept")
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return digest


def _mismatch(source: str, digest: str, expected: Collection[str]) -> str:
    return f"{source}: its SHA-256 is {digest}, not {' or '.join(sorted(expected))}"


def _download(url: str, file: BinaryIO, advance: Advance) -> str:
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_WebRedirectHandler)
    try:
        with opener.open(url, timeout=_FETCH_TIMEOUT) as response:
            length = response.headers.get("Content-Length", "")
            while chunk := response.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_ARCHIVE_BYTES:
                    raise SourceError(
                        f"{url}: is larger than {MAX_ARCHIVE_BYTES:,} bytes: nothing of it was kept"
                    )
                digest.update(chunk)
                file.write(chunk)
                advance(len(chunk))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise SourceError(
            f"{url}: cannot be fetched ({reason}): try again, or fetch it by hand and give it with "
            "--archive"
        ) from error
    if length.isdecimal() and size != int(length):
        raise SourceError(f"{url}: ended after {size:,} of {int(length):,} bytes: try again")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file. SourceError: it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


# ---- unpacking

MAX_FILES = 500_000
MAX_TOTAL_BYTES = 8 << 30
"""Of all messages together."""
_MAX_MESSAGE_BYTES = 64 << 20
_DECOMPRESSORS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": gzip.open,  # type: ignore[dict-item]  # may also be text, by its mode
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_DAMAGE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
)
_LABEL_WORDS = {b"spam": "spam", b"ham": "ham", b"0": "spam", b"1": "ham"}  # digits: CSDMC's
_RECEIVED_DATE = re.compile(
    rb"^received:[^\n]*(?:\n[ \t][^\n]*)*;([^;\n]*(?:\n[ \t][^;\n]*)*)$",
    re.IGNORECASE | re.MULTILINE,
)
_DATE_FIELD = re.compile(rb"^date:([^\n]*)", re.IGNORECASE | re.MULTILINE)


class UnpackedFile(NamedTuple):
    """A file of an archive, on the disk.

    path: what the archive calls it. arrived: seconds since 1970, or a day. digest: of the file.
    """

    path: str
    file: Path
    arrived: float
    digest: bytes


def unpack_archives(
    archives: Iterable[Path], recipe: CorpusRecipe, directory: Path
) -> list[tuple[str, Path]]:
    """Write the messages into a directory; return label and file of each, in order of arrival.

    SourceError: an archive is damaged or too large.
    """
    files: list[UnpackedFile] = []
    labels: dict[str, tuple[int, str]] = {}
    for archive in archives:
        for path, content in _read_members(archive):
            if recipe.index is not None and recipe.index.member.fullmatch(path):
                labels |= _read_labels(path, content, recipe.index.base, len(labels))
            elif recipe.index is not None or _find_label(path, recipe) is not None:
                file = directory / f"{len(files) + 1:06}"
                with file.open("xb") as stream:
                    stream.write(content)
                arrived = _arrival_time(path, content, recipe)
                files.append(UnpackedFile(path, file, arrived, hashlib.sha256(content).digest()))
    if recipe.index is not None:
        labelled = sorted((*labels[file.path], file.file) for file in files if file.path in labels)
        return [(label, file) for _, label, file in labelled]
    files.sort(key=attrgetter("arrived", "digest"))
    return [(_find_label(file.path, recipe) or "", file.file) for file in files]


def _find_label(path: str, recipe: CorpusRecipe) -> str | None:
    return next((label for pattern, label in recipe.labels if pattern.fullmatch(path)), None)


def _read_labels(path: str, content: bytes, base: str, before: int) -> dict[str, tuple[int, str]]:
    """Number in the index and label of each message, by its path."""
    labels = {}
    for number, line in enumerate(content.splitlines(), start=before):
        word, _, target = line.strip().partition(b" ")
        if word.lower() in _LABEL_WORDS:
            name = posixpath.join(posixpath.dirname(path), base, target.decode("utf-8", "replace"))
            labels[posixpath.normpath(name)] = (number, _LABEL_WORDS[word.lower()])
    return labels


def _arrival_time(path: str, content: bytes, recipe: CorpusRecipe) -> float:
    """The time of the last server, else of the sender, or the day in the path; 0: none is there."""
    if recipe.date_pattern is not None:
        day = recipe.date_pattern.search(path)
        return float(day[1].replace("-", "")) if day else 0.0
    header = content[:65536].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    for pattern in (_RECEIVED_DATE, _DATE_FIELD):
        match = pattern.search(header)
        date = email.utils.parsedate_tz(match[1].decode("ascii", "replace")) if match else None
        if date is not None:
            with suppress(ValueError, OverflowError):
                return float(email.utils.mktime_tz(date))
    return 0.0


def _read_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of the regular files of an archive."""
    files, size_left = 0, MAX_TOTAL_BYTES
    try:
        for name, size, stream in _open_members(archive):
            files, size_left = files + 1, size_left - size
            if files > MAX_FILES or size_left < 0:
                raise SourceError(
                    f"{archive.name}: has more than {MAX_FILES:,} files or {MAX_TOTAL_BYTES:,} "
                    "bytes: it is not the archive that it should be"
                )
            path = posixpath.normpath(name)
            is_inside = path != ".." and not path.startswith(("/", "../"))
            if stream is not None and is_inside and size <= _MAX_MESSAGE_BYTES:
                content = stream.read(_MAX_MESSAGE_BYTES + 1)
                if len(content) == size:
                    yield path, content
    except _DAMAGE_ERRORS as error:
        raise SourceError(
            f"{archive.name}: cannot be unpacked ({' '.join(str(error).split())}): it is cut off, "
            "damaged or no archive"
        ) from error


def _open_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, size and stream of each member; without a stream if it is no regular file."""
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
    with (
        _open_decompressed(archive) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", _BoundedStream(stream)), mode="r:") as packed_tar,
    ):
        while (member := packed_tar.next()) is not None:
            packed_tar.members.clear()  # type: ignore[attr-defined]  # it would remember each
            content = packed_tar.extractfile(member) if member.isreg() else None
            with content or nullcontext():
                yield member.name, member.size, content


def _open_decompressed(archive: Path) -> IO[bytes]:
    """The archive within the compressed file."""
    with archive.open("rb") as file:
        start = file.read(6)
    for magic, open_compressed in _DECOMPRESSORS.items():
        if start.startswith(magic):
            return open_compressed(archive)
    return archive.open("rb")


class _BoundedStream:
    """Refuses long reads: `tarfile` reads extensions of a header whole, whatever their length."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.tell, self.seek = stream.tell, stream.seek
        self._read = stream.read

    def read(self, size: int) -> bytes:
        """Read so many bytes. tarfile.ReadError: a message may not have so many."""
        if not 0 <= size <= _MAX_MESSAGE_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError("a header in it is too long")
        return self._read(size)


# ---- making a corpus


class MadeCorpus(NamedTuple):
    """A corpus that was made.

    messages: their number by class. digests: SHA-256 of each archive, by its address or path.
    all_verified: whether all of these were checked.
    """

    messages: dict[str, int]
    digests: dict[str, str]
    all_verified: bool


def make_corpus(
    recipe: CorpusRecipe,
    target: Path,
    archives: Sequence[Path],
    pinned: Collection[str],
    advance: Advance,
) -> MadeCorpus:
    """Make the corpus at `target`, which must not exist; whole, or not at all.

    archives: files that are here already; none: fetch them. pinned: SHA-256 that archives must
    have.
    """
    if target.exists():
        raise UsageError(f"{target}: is there already: name a directory that is to be made")
    if not archives and not recipe.archives:
        raise UsageError(
            f"{recipe.name} must be fetched by hand ({recipe.licence}): see {recipe.page}, then "
            "give it with --archive FILE"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.new")
    try:
        (draft / "data").mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=draft) as directory:
            paths, digests = _get_archives(recipe, Path(directory), archives, pinned, advance)
            messages = unpack_archives(paths, recipe, draft / "data")
        _write_corpus(recipe, draft, messages, digests)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    have_sums = not archives and all(archive.sha256 for archive in recipe.archives)
    counts = Counter(label for label, _ in messages)
    return MadeCorpus(dict(counts), digests, bool(pinned) or have_sums)


def _get_archives(
    recipe: CorpusRecipe,
    directory: Path,
    archives: Sequence[Path],
    pinned: Collection[str],
    advance: Advance,
) -> tuple[list[Path], dict[str, str]]:
    if not archives:
        paths = [directory / f"{number}" for number in range(len(recipe.archives))]
        return paths, {
            archive.url: fetch_archive(archive, pinned, path, advance)
            for archive, path in zip(recipe.archives, paths, strict=True)
        }
    digests = {str(path): file_digest(path) for path in archives}
    for source, digest in digests.items():
        if pinned and digest not in pinned:
            raise SourceError(_mismatch(source, digest, pinned))
    return list(archives), digests


def _write_corpus(
    recipe: CorpusRecipe, draft: Path, messages: list[tuple[str, Path]], digests: dict[str, str]
) -> None:
    if {label for label, _ in messages} != {"ham", "spam"}:
        raise SourceError(
            f"{recipe.name}: no labelled mail of both kinds is in the archives: they are not those "
            "of this corpus"
        )
    index = "".join(f"{label} data/{file.name}\n" for label, file in messages)
    (draft / "index").write_text(index, encoding="ascii")
    labelled = {file.name for _, file in messages}
    for path in (draft / "data").iterdir():
        if path.name not in labelled:
            path.unlink()
    sources = "".join(f"{digest}  {source}\n" for source, digest in digests.items())
    (draft / "SOURCE").write_text(
        f"{recipe.name}: {recipe.about}\n{recipe.licence}\n{recipe.page}\n\nSHA-256\n{sources}",
        encoding="utf-8",
    )
