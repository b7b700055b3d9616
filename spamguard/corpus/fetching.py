"""One archive from the network, or none: bounded, and thrown away unless its checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from spamguard.corpus.recipes import Archive
from spamguard.errors import SourceError
from spamguard.files import create_private

MOST_BYTES = 2 << 30  # of an archive: the largest known has some 400 MB
_SECONDS = 60.0  # of silence
_PIECE = 1 << 18

Advance = Callable[[int], object]


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Redirections lead to the web only, never to a file of this machine."""

    def redirect_request(self, *arguments: object) -> urllib.request.Request | None:
        new = super().redirect_request(*arguments)  # type: ignore[arg-type]
        if new is not None and new.type not in ("http", "https"):
            raise urllib.error.URLError(f"it is redirected to {new.type}:")
        return new


def fetch(archive: Archive, pinned: Collection[str], place: Path, advance: Advance) -> str:
    """Fetch an archive to a new file; its SHA-256. advance: is told how many bytes have come.

    pinned: SHA-256 of which it must have one, unless its own is known. SourceError: it cannot be had, or is another; nothing is left.
    """
    try:
        with create_private(place) as file:
            digest = _received(archive.url, file, advance)
        wanted = {archive.sha256} if archive.sha256 else set(pinned)
        if wanted and digest not in wanted:
            raise SourceError(f"{archive.url}: its SHA-256 is {digest}, not {' or '.join(sorted(wanted))}: nothing of it was kept")
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return digest


def _received(url: str, file: BinaryIO, advance: Advance) -> str:
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_WebOnly)
    try:
        with opener.open(url, timeout=_SECONDS) as answer:
            expected = answer.headers.get("Content-Length", "")
            while piece := answer.read(_PIECE):
                size += len(piece)
                if size > MOST_BYTES:
                    raise SourceError(f"{url}: is larger than {MOST_BYTES:,} bytes: nothing of it was kept")
                digest.update(piece)
                file.write(piece)
                advance(len(piece))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reported = " ".join(str(getattr(error, "reason", error)).split())
        raise SourceError(f"{url}: cannot be fetched ({reported}): try again, or fetch it by hand and give it with --archive") from error
    if expected.isdecimal() and size != int(expected):
        raise SourceError(f"{url}: ended after {size:,} of {int(expected):,} bytes: try again")
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """SHA-256 of a file that is here already. SourceError: it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
