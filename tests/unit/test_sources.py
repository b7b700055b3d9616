"""Mail in files, in the form that it has there."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard import sources
from spamguard.errors import SourceError
from spamguard.sources import (
    UnreadableFileError,
    decompress,
    read_messages,
)

MAIL = b"Subject: one\nX: y\n\nbody\n"
OTHER = b"Subject: two\n\nother\n"
FROM = b"From anna@example.org Thu Jan  4 10:11:12 2024\n"


def write(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def raws(path: Path | str, limit: int = sources.MAX_MESSAGE_BYTES) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "MAX_MESSAGE_BYTES", limit)
        return [message.raw for message in read_messages(path)]


def maildir(path: Path) -> Path:
    for part in ("cur", "new", "tmp"):
        (path / part).mkdir(parents=True)
    return path


class Stdin:
    def __init__(self, raw: bytes) -> None:
        self.buffer = io.BytesIO(raw)


# ---- files


@pytest.mark.parametrize("size", [len(MAIL), (1 << 16) - 1, 1 << 16, (1 << 16) + 1, (1 << 17) + 5])
def test_a_file_of_any_size_is_read_whole_and_no_further_than_asked(
    tmp_path: Path, size: int
) -> None:
    long = MAIL.ljust(size, b"x")
    (maildir(tmp_path / "box") / "cur" / "1.a:2,S").write_bytes(long)
    (tmp_path / "index").write_text("spam m\n")
    for place in (write(tmp_path / "m", long), tmp_path / "index", tmp_path / "box"):
        assert raws(place) == [long]
        for limit in (size - 1, size, size + 1, 1 << 16):
            assert raws(place, limit=limit) == [long[:limit]]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(FROM + MAIL + b"\n" + FROM + OTHER,))
    writer.start()
    assert raws(pipe) == [MAIL, OTHER]
    writer.join()


# ---- mbox


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_other_systems_make_of_an_mbox(tmp_path: Path, mark: bytes, end: bytes) -> None:
    long = b"Subject: x\n\n" + b"y" * 200_000 + b"\n>From z\n"
    whole = FROM + MAIL + b"\n" + FROM + long + b"\n" + FROM + OTHER + b"\n"
    path = write(tmp_path / "box", mark + whole.replace(b"\n", end))
    expected = [MAIL, long.replace(b">From", b"From"), OTHER]
    assert raws(path) == [raw.replace(b"\n", end) for raw in expected]


@pytest.mark.parametrize(
    "notes",
    [
        b"X-IMAP: 1764000000 0000000004\nStatus: RO\n\ntext\n",
        b"Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\n\ntext\n",
    ],
)
def test_the_notes_of_a_server_are_no_mail(tmp_path: Path, notes: bytes) -> None:
    kept = b"X-IMAPbase: 1764000000 4\nSubject: one\n\nX-IMAP: no field\n"
    for order in ((notes, kept, MAIL), (MAIL, notes, kept), (kept, MAIL, notes)):
        path = write(tmp_path / "box", b"\n".join(FROM + raw for raw in order))
        assert raws(path) == [raw for raw in order if raw is not notes]


LINES = st.lists(
    st.sampled_from(
        [
            b"",
            b"From me",
            b">From you",
            b">>From all",
            b"text",
            b"A: b",
            b"\r",
            b"\xff\0",
            b"> From",
        ]
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=200, deadline=None)
@given(bodies=st.lists(LINES, min_size=1, max_size=4), end=st.sampled_from([b"\n", b"\r\n"]))
def test_what_an_mboxrd_writer_wrote_comes_back(
    bodies: list[list[bytes]], end: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def quoted(line: bytes) -> bytes:
        return b">" + line if line.lstrip(b">").startswith(b"From ") else line

    written = [end.join([b"Subject: x", b"", *lines]) + end for lines in bodies]
    stored = [end.join([b"Subject: x", b"", *map(quoted, lines)]) + end for lines in bodies]
    separator = FROM.replace(b"\n", end)
    path = write(
        tmp_path_factory.mktemp("p") / "box",
        b"".join(separator + message + end for message in stored),
    )
    assert raws(path) == written


# ---- standard input


@pytest.mark.parametrize(
    ("raw", "expected"), [(MAIL, [MAIL]), (FROM + MAIL + b"\n" + FROM + OTHER, [MAIL, OTHER])]
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, raw: bytes, expected: list[bytes]) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(raw))
    assert raws("-") == expected


# ---- Maildir


def test_maildir_in_order_of_delivery_without_tmp_and_subfolders(tmp_path: Path) -> None:
    box = maildir(tmp_path / "box")
    write(box / "cur" / "2.a:2,S", FROM + b">From is kept: a Maildir quotes nothing\n")
    write(box / "new" / "1.b", MAIL)
    write(box / "cur" / "3.c:2,", b"")
    write(box / "cur" / ".hidden", MAIL)
    write(box / "tmp" / "4.d", MAIL)
    write(box / "dovecot-uidlist", b"3 V1\n")
    write(maildir(box / ".Junk") / "cur" / "5.e", OTHER)
    assert raws(box) == [MAIL, FROM + b">From is kept: a Maildir quotes nothing\n"]


def test_a_maildir_in_use(tmp_path: Path) -> None:
    box = maildir(tmp_path / "box")
    for name in ("1", "2", "3"):
        write(box / "new" / name, b"Subject: " + name.encode() + b"\n")
    found = read_messages(box)
    assert next(found).raw == b"Subject: 1\n"
    (box / "new" / "2").rename(box / "cur" / "2:2,S")  # read by its owner
    (box / "new" / "3").unlink()
    assert [message.raw for message in found] == [b"Subject: 2\n"]


# ---- trees


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_what_dovecot_has_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    folder = maildir(tmp_path / "box")
    for path in (folder / "cur" / f"1.x,S={len(MAIL)}:2,S", tmp_path / "tree" / "1"):
        write(path, pack(MAIL))
    write(tmp_path / "tree" / "index", b"spam 1\n")
    for path in (folder, tmp_path / "tree", tmp_path / "tree" / "1"):
        assert raws(path) == [MAIL]
    with pytest.raises(SourceError, match="compressed mbox: decompress it"):
        raws(write(tmp_path / "mbox", pack(FROM + MAIL)))
    with pytest.raises(SourceError, match="secret: cannot be read: it is encrypted"):
        raws(write(tmp_path / "secret", b"CRYPTED\x03\x07xyz"))


# ---- TREC indexes


def test_an_index_gives_labels_and_order(tmp_path: Path) -> None:
    write(tmp_path / "data" / "2", MAIL)
    write(
        tmp_path / "data" / "1",
        FROM + OTHER + b"\n>From q\n\nFrom a@b Thu Jan  4 10:11:12 2024\nA: b\n",
    )
    index = write(tmp_path / "index", b"spam data/2\n\nHAM data/1\r\nnewsletters data/2\n")
    expected = [
        ("spam", MAIL),
        ("ham", OTHER + b"\nFrom q\n\nFrom a@b Thu Jan  4 10:11:12 2024\nA: b\n"),
        ("newsletters", MAIL),
    ]
    for path in (index, tmp_path, index.rename(tmp_path / "index")):
        assert [(message.label, message.raw) for message in read_messages(path)] == expected


@pytest.mark.parametrize(
    "raw",
    [b"Subject: not an index\n\nx", b"Hello world\n", b"From a b\nSubject: x\n\n", b"", b"spam\n"],
)
def test_a_message_may_be_called_index(tmp_path: Path, raw: bytes) -> None:
    assert all(message.label is None for message in read_messages(write(tmp_path / "index", raw)))


def test_what_an_index_gets_wrong_is_named(tmp_path: Path) -> None:
    write(tmp_path / "m", MAIL)
    index = write(tmp_path / "index", b"ham m\nspam gone\n")
    with pytest.raises(SourceError, match=r"index:2: .*gone: no such file") as caught:
        raws(index)
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match=r"index:2: not 'class path'"):
        raws(write(tmp_path / "index", b"ham m\nspam\n"))


# ---- errors


@pytest.mark.parametrize("path", ["gone", "nul\0byte", "m/below-a-file", "x" * 300])
def test_a_path_that_is_not_there(tmp_path: Path, path: str) -> None:
    write(tmp_path / "m", MAIL)
    with pytest.raises(SourceError, match="check the path") as caught:
        raws(tmp_path / path)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


# ---- compressed files

RAW = b"Subject: x\n\n" + b"hello\n" * 1000
MOST = 1 << 20


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_what_is_packed_is_bounded(pack):
    assert decompress(pack(b"x" * 10_000_000), 1000) == b"x" * 1000
    assert decompress(pack(RAW[:100]) + pack(RAW[100:]), MOST) == RAW
    with pytest.raises(UnreadableFileError, match="end is missing"):  # never a part for the whole
        decompress(pack(RAW)[:-1], MOST)


def test_zstd():
    assert decompress(zstandard.compress(RAW), MOST) == RAW
    assert decompress(zstandard.compress(RAW[:100]) + zstandard.compress(RAW[100:]), MOST) == RAW
    with pytest.raises(UnreadableFileError, match="damaged"):
        decompress(zstandard.compress(RAW)[:4] + b"\xff" * 50, MOST)
    assert decompress(zstandard.compress(b"x" * 10_000_000), 1000) == b"x" * 1000
