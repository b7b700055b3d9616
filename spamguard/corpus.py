"""What is known of each public corpus. Data only.

A checksum stands here only if its publisher tells it or we have the archive; for all others `fetch`
prints what it got, and --sha256 pins it the next time.

One archive from the network, or none: bounded, and thrown away unless its checksum is right.

The messages of an archive, as data/000001 and so on: the names in an archive choose labels, and are
never written to.

Only regular files are looked at: links, devices and names that lead outside are passed over.

A corpus in a directory of its own: `index` ("spam data/000001", in order of arrival), `data/`, and
SOURCE, which says what it is.
"""

from __future__ import annotations

import bz2
import email
import email.utils
import gzip
import hashlib
import http
import http.client
import lzma
import posixpath
import re
import secrets
import shutil
import tarfile
import tempfile
import urllib
import urllib.error
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from typing import IO, Any, BinaryIO, NamedTuple, cast

from spamguard.errors import SourceError, UsageError
from spamguard.storage import create_private


@dataclass(frozen=True, slots=True)
class CorpusArchive:
    """One file to be fetched: its address, and its SHA-256 in hexadecimal if that is known."""

    url: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class LabelIndex:
    """Labels in a file of the archive: lines "label path". member: that file; base: what its paths
    are relative to, seen from it.
    """

    member: Pattern[str]
    base: str = ""


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """A corpus. labels: by the path of a member, the first that fits; or index. page: of one that
    must be fetched by hand.

    dated: finds the day of a message in its path, where messages have no header. licence: what one
    should know before using it.
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


RECIPES = {
    recipe.name: recipe
    for recipe in (
        CorpusRecipe(
            "spamassassin",
            "6,047 messages of 2001 and 2002 with all headers, one man's mail and some mailing lists",
            "the senders' copyright; given for testing filters; never send these messages through a live system",
            tuple(
                CorpusArchive(f"{_SPAMASSASSIN_URL}{part}.tar.bz2")
                for part in ("easy_ham", "easy_ham_2", "hard_ham", "spam", "spam_2")
            ),
            (
                (re.compile(r"spam(?:_2)?/\d+\.[^/]+"), "spam"),
                (re.compile(r"(?:easy_ham|easy_ham_2|hard_ham)/\d+\.[^/]+"), "ham"),
            ),
        ),
        CorpusRecipe(
            "enron-spam",
            "33,716 messages of 1999 to 2005: the mail of six employees of Enron, spam from elsewhere; subjects and texts only",
            "the senders' copyright; published with Metsis, Androutsopoulos and Paliouras, CEAS 2006",
            tuple(
                CorpusArchive(f"{_AUEB_URL}enron-spam/preprocessed/enron{number}.tar.gz")
                for number in range(1, 7)
            ),
            (
                (re.compile(r"enron\d/spam/[^/]+"), "spam"),
                (re.compile(r"enron\d/ham/[^/]+"), "ham"),
            ),
            date_pattern=re.compile(r"/\d+\.(\d{4}-\d\d-\d\d)\."),
        ),
        CorpusRecipe(
            "ling-spam",
            "2,893 messages: the Linguist list, and spam; subjects and texts only",
            "the senders' copyright; published with Androutsopoulos and others, 2000",
            (CorpusArchive(f"{_AUEB_URL}lingspam_public.tar.gz"),),
            (
                (re.compile(r".*/bare/part\d+/spmsg[^/]*"), "spam"),
                (re.compile(r".*/bare/part\d+/[^/]+\.txt"), "ham"),
            ),
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


MAX_ARCHIVE_BYTES = 2 << 30  # of an archive: the largest known has some 400 MB
_FETCH_TIMEOUT = 60.0  # of silence
_CHUNK_BYTES = 1 << 18

Advance = Callable[[int], object]


class _WebRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Redirections lead to the web only, never to a file of this machine."""

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        new = super().redirect_request(*arguments)
        if new is not None and new.type not in ("http", "https"):
            raise urllib.error.URLError(f"it is redirected to {new.type}:")
        return new


def fetch_archive(
    archive: CorpusArchive, pinned: Collection[str], place: Path, advance: Advance
) -> str:
    """Fetch an archive to a new file; its SHA-256. advance: is told how many bytes have come.

    pinned: SHA-256 of which it must have one, unless its own is known. SourceError: it cannot be
    had, or is another; nothing is left.
    """
    try:
        with create_private(place) as file:
            digest = _download(archive.url, file, advance)
        wanted = {archive.sha256} if archive.sha256 else set(pinned)
        if wanted and digest not in wanted:
            raise SourceError(
                f"{archive.url}: its SHA-256 is {digest}, not {' or '.join(sorted(wanted))}: nothing of it was kept"
            )
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return digest


def _download(url: str, file: BinaryIO, advance: Advance) -> str:
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_WebRedirectHandler)
    try:
        with opener.open(url, timeout=_FETCH_TIMEOUT) as answer:
            expected = answer.headers.get("Content-Length", "")
            while piece := answer.read(_CHUNK_BYTES):
                size += len(piece)
                if size > MAX_ARCHIVE_BYTES:
                    raise SourceError(
                        f"{url}: is larger than {MAX_ARCHIVE_BYTES:,} bytes: nothing of it was kept"
                    )
                digest.update(piece)
                file.write(piece)
                advance(len(piece))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reported = " ".join(str(getattr(error, "reason", error)).split())
        raise SourceError(
            f"{url}: cannot be fetched ({reported}): try again, or fetch it by hand and give it with --archive"
        ) from error
    if expected.isdecimal() and size != int(expected):
        raise SourceError(f"{url}: ended after {size:,} of {int(expected):,} bytes: try again")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file that is here already. SourceError: it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


MAX_FILES = 500_000
MAX_TOTAL_BYTES = 8 << 30  # of all messages together
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
_LABEL_WORDS = {
    b"spam": "spam",
    b"ham": "ham",
    b"0": "spam",
    b"1": "ham",
}  # the last two are CSDMC's
_RECEIVED_DATE = re.compile(
    rb"^received:[^\n]*(?:\n[ \t][^\n]*)*;([^;\n]*(?:\n[ \t][^;\n]*)*)$",
    re.IGNORECASE | re.MULTILINE,
)
_DATE_FIELD = re.compile(rb"^date:([^\n]*)", re.IGNORECASE | re.MULTILINE)


class UnpackedFile(NamedTuple):
    """A file of an archive, on the disk. path: what the archive calls it; arrived: seconds since
    1970, or a day; digest: of it.
    """

    path: str
    file: Path
    arrived: float
    digest: bytes


def unpack_archives(
    archives: Iterable[Path], recipe: CorpusRecipe, place: Path
) -> list[tuple[str, Path]]:
    """Label and file of each message in order of arrival, written into a directory. SourceError: an
    archive is damaged or too large.
    """
    kept: list[UnpackedFile] = []
    labels: dict[str, tuple[int, str]] = {}
    for archive in archives:
        for path, content in _read_members(archive):
            if recipe.index is not None and recipe.index.member.fullmatch(path):
                labels |= _read_labels(path, content, recipe.index.base, len(labels))
            elif recipe.index is not None or _find_label(path, recipe) is not None:
                kept.append(_keep_file(path, content, place / f"{len(kept) + 1:06}", recipe))
    if recipe.index is not None:
        known = [(*labels[one.path], one.file) for one in kept if one.path in labels]
        return [(label, file) for _, label, file in sorted(known)]
    kept.sort(key=lambda one: (one.arrived, one.digest))
    return [(_find_label(one.path, recipe) or "", one.file) for one in kept]


def _find_label(path: str, recipe: CorpusRecipe) -> str | None:
    return next((label for pattern, label in recipe.labels if pattern.fullmatch(path)), None)


def _read_labels(path: str, content: bytes, base: str, before: int) -> dict[str, tuple[int, str]]:
    """By the path of a message, its number in the index and its label."""
    found = {}
    for number, line in enumerate(content.splitlines(), start=before):
        word, _, target = line.strip().partition(b" ")
        if word.lower() in _LABEL_WORDS:
            name = posixpath.normpath(
                posixpath.join(posixpath.dirname(path), base, target.decode("utf-8", "replace"))
            )
            found[name] = (number, _LABEL_WORDS[word.lower()])
    return found


def _keep_file(path: str, content: bytes, file: Path, recipe: CorpusRecipe) -> UnpackedFile:
    with file.open("xb") as written:
        written.write(content)
    return UnpackedFile(
        path, file, _arrival_time(path, content, recipe), hashlib.sha256(content).digest()
    )


def _arrival_time(path: str, content: bytes, recipe: CorpusRecipe) -> float:
    """What orders messages: the last server's time, else the sender's, else the day in the path; 0
    where there is none of them.
    """
    if recipe.date_pattern is not None:
        day = recipe.date_pattern.search(path)
        return float(day[1].replace("-", "")) if day else 0.0
    header = content[:65536].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    for pattern in (_RECEIVED_DATE, _DATE_FIELD):
        if found := pattern.search(header):
            parsed = email.utils.parsedate_tz(found[1].decode("ascii", "replace"))
            if parsed is not None:
                try:
                    return float(email.utils.mktime_tz(parsed))
                except (ValueError, OverflowError):
                    continue
    return 0.0


def _read_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of the regular files of an archive."""
    files, left = 0, MAX_TOTAL_BYTES
    try:
        for name, size, stream in _open_members(archive):
            files, left = files + 1, left - size
            if files > MAX_FILES or left < 0:
                raise SourceError(
                    f"{archive.name}: has more than {MAX_FILES:,} files or {MAX_TOTAL_BYTES:,} bytes: it is not the archive that it should be"
                )
            path = posixpath.normpath(name)
            if (
                stream is not None
                and size <= _MAX_MESSAGE_BYTES
                and not path.startswith(("/", "../"))
                and path != ".."
            ):
                content = stream.read(_MAX_MESSAGE_BYTES + 1)
                if len(content) == size:
                    yield path, content
    except _DAMAGE_ERRORS as error:
        raise SourceError(
            f"{archive.name}: cannot be unpacked ({' '.join(str(error).split())}): it is cut off, damaged or no archive"
        ) from error


def _open_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
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
    with (
        _open_decompressed(archive) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", _BoundedStream(stream)), mode="r:") as packed_tar,
    ):
        while (member := packed_tar.next()) is not None:
            packed_tar.members.clear()  # type: ignore[attr-defined]  # it would remember each
            found = packed_tar.extractfile(member) if member.isreg() else None
            with found or nullcontext():
                yield member.name, member.size, found


def _open_decompressed(archive: Path) -> IO[bytes]:
    """The archive within the compressed file."""
    with archive.open("rb") as file:
        start = file.read(6)
    for magic, opened in _DECOMPRESSORS.items():
        if start.startswith(magic):
            return opened(archive)
    return archive.open("rb")


class _BoundedStream:
    """A stream of which nobody can have much at once: `tarfile` reads extensions of a header whole,
    however long they say they are.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.tell, self.seek = stream.tell, stream.seek
        self._read = stream.read

    def read(self, size: int) -> bytes:
        """So many bytes. tarfile.ReadError: they are more than a message may have."""
        if not 0 <= size <= _MAX_MESSAGE_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError("a header in it is too long")
        return self._read(size)


class MadeCorpus(NamedTuple):
    """A corpus that was made. digests: SHA-256 of each archive, by its address or path; known:
    whether all of them were checked.
    """

    messages: dict[str, int]
    digests: dict[str, str]
    all_verified: bool


def make_corpus(
    recipe: CorpusRecipe,
    target: Path,
    given: Sequence[Path],
    pinned: Collection[str],
    advance: Advance,
) -> MadeCorpus:
    """Make the corpus at `target`, which must not exist; whole, or not at all.

    given: archives that are here already, instead of fetching. pinned: SHA-256 that archives must
    have. SourceError, UsageError.
    """
    if target.exists():
        raise UsageError(f"{target}: is there already: name a directory that is to be made")
    if not given and not recipe.archives:
        raise UsageError(
            f"{recipe.name} must be fetched by hand ({recipe.licence}): see {recipe.page}, then give it with --archive FILE"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.new")
    try:
        (draft / "data").mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=draft) as place:
            archives, digests = _get_archives(recipe, Path(place), given, pinned, advance)
            found = unpack_archives(archives, recipe, draft / "data")
        _write_corpus(recipe, draft, found, digests)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    known = bool(pinned) or (not given and all(archive.sha256 for archive in recipe.archives))
    return MadeCorpus(dict(Counter(label for label, _ in found)), digests, known)


def _get_archives(
    recipe: CorpusRecipe,
    place: Path,
    given: Sequence[Path],
    pinned: Collection[str],
    advance: Advance,
) -> tuple[list[Path], dict[str, str]]:
    if not given:
        paths = [place / f"{number}" for number in range(len(recipe.archives))]
        return paths, {
            one.url: fetch_archive(one, pinned, path, advance)
            for one, path in zip(recipe.archives, paths, strict=True)
        }
    digests = {str(path): file_digest(path) for path in given}
    for path, digest in digests.items():
        if pinned and digest not in pinned:
            raise SourceError(f"{path}: its SHA-256 is {digest}, not {' or '.join(sorted(pinned))}")
    return list(given), digests


def _write_corpus(
    recipe: CorpusRecipe, draft: Path, found: list[tuple[str, Path]], digests: dict[str, str]
) -> None:
    if {label for label, _ in found} != {"ham", "spam"}:
        raise SourceError(
            f"{recipe.name}: no labelled mail of both kinds is in the archives: they are not those of this corpus"
        )
    (draft / "index").write_text(
        "".join(f"{label} data/{file.name}\n" for label, file in found), encoding="ascii"
    )
    labelled = {file.name for _, file in found}
    for path in (draft / "data").iterdir():
        if path.name not in labelled:
            path.unlink()
    sources = "".join(f"{digest}  {source}\n" for source, digest in digests.items())
    (draft / "SOURCE").write_text(
        f"{recipe.name}: {recipe.about}\n{recipe.licence}\n{recipe.page}\n\nSHA-256\n{sources}",
        encoding="utf-8",
    )
