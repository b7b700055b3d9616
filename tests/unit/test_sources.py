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

from spamguard.errors import SourceError
from spamguard.sources import (
    SourceMessage,
    UnreadableFileError,
    decompress,
    is_compressed,
    read_messages,
)

MAIL = b"Subject: one\nX: y\n\nbody\n"
OTHER = b"Subject: two\n\nother\n"
FROM = b"From anna@example.org Thu Jan  4 10:11:12 2024\n"


def write(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def raws(path: Path | str, **settings: int) -> list[bytes]:
    return [message.raw for message in read_messages(path, **settings)]


def maildir(path: Path) -> Path:
    for part in ("cur", "new", "tmp"):
        (path / part).mkdir(parents=True)
    return path


class Stdin:
    def __init__(self, raw: bytes) -> None:
        self.buffer = io.BytesIO(raw)


# ---- files


@pytest.mark.parametrize(
    "raw",
    [
        MAIL,
        MAIL.replace(b"\n", b"\r\n"),
        MAIL.replace(b"\n", b"\r"),
        b"no header",
        b"a\0b\xff\n\n",
        b"\n" + MAIL,
        b"From : a@b\n\nx",
    ],
)
def test_a_single_file_is_given_as_it_is(tmp_path: Path, raw: bytes) -> None:
    path = write(tmp_path / "m", raw)
    assert list(read_messages(path)) == [SourceMessage(str(path), raw, None)]


def test_an_empty_file_has_no_messages(tmp_path: Path) -> None:
    assert raws(write(tmp_path / "m", b"")) == []


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


def test_a_big_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    assert raws(write(tmp_path / "m", MAIL * 1000), limit=100) == [(MAIL * 1000)[:100]]
    assert [
        len(raw)
        for raw in raws(
            write(tmp_path / "n", (FROM + MAIL + b"long\n" * 1000 + b"\n") * 2), limit=50
        )
    ] == [50, 50]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(FROM + MAIL + b"\n" + FROM + OTHER,))
    writer.start()
    assert raws(pipe) == [MAIL, OTHER]
    writer.join()


# ---- mbox


def test_mbox_messages_lose_their_wrapping_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "box", FROM + MAIL + b"\n" + FROM + OTHER + b"\n\n\n" + FROM + MAIL)
    assert raws(path) == [MAIL, OTHER + b"\n\n", MAIL]
    assert [message.name for message in read_messages(path)] == [
        str(path),
        f"{path}#2",
        f"{path}#3",
    ]


def test_mbox_with_crlf(tmp_path: Path) -> None:
    whole = (FROM + MAIL + b"\n" + FROM + OTHER + b"\n").replace(b"\n", b"\r\n")
    assert raws(write(tmp_path / "box", whole)) == [
        MAIL.replace(b"\n", b"\r\n"),
        OTHER.replace(b"\n", b"\r\n"),
    ]


def test_one_level_of_quoting_is_undone(tmp_path: Path) -> None:
    body = b"Subject: q\n\n>From me\n>>From you\n> From x\n>Fromage\nx >From y\n"
    assert raws(write(tmp_path / "box", FROM + body)) == [
        b"Subject: q\n\nFrom me\n>From you\n> From x\n>Fromage\nx >From y\n"
    ]


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (b"\nFrom - \n", 2),  # no date, but an empty line and a header field after it
        (b"\nFrom 1234@xxx\n", 2),
        (b"From - \n", 2),
        (b"\nFrom anna Do Jan  4 10:11:12 2024\n", 2),  # as an exporter writes it in Germany
        (b"From anna at example.org  Thu Jan  4 10:11:12 2024\n", 2),
        (b"From ann Thu Jan  4 10:11:12 GMT+0100 (CET) 2024 remote from there\n", 2),
        (b"From bo@example.org Sun Jul 16 15:06:25 2023\n", 2),  # no empty line, but a date
        (b"From bo@example.org Wed, 2 May 2001 10:10:26 +0200\n", 2),
        (b"From my point of view\n", 1),  # text
        (b"\nFrom Russia with love\n\n", 1),
        (b"\nFrom Mon 5 Jan 10:30 on we are open\nand after that closed\n\n", 1),
        (b"\nFrom my side: some questions follow\nNote: no field\n", 1),
        (b"\nFrom Mon 5 Jan 10:30 on we are open\nNote: bring your card\n", 1),
        (b"\nFrom Monday we are open until 10:30\nNote: bring your card\n", 1),
        (b"\nFrom ann@example.org I heard at 10:11:12 today\nNote: no field\n", 1),
        (b"\nFrom here\nNote: no field\n", 1),
    ],
)
def test_which_from_lines_separate(tmp_path: Path, between: bytes, expected: int) -> None:
    assert len(raws(write(tmp_path / "box", FROM + MAIL + between + OTHER))) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
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


def test_content_length_is_ignored(tmp_path: Path) -> None:
    lying = b"Content-Length: 5000\nSubject: x\n\nshort\n"
    assert raws(write(tmp_path / "box", FROM + lying + b"\n" + FROM + MAIL)) == [lying, MAIL]


def test_lines_of_any_length(tmp_path: Path) -> None:
    long = b"Subject: x\n\n" + b"y" * 200_000 + b"\nFrom here\n"
    assert raws(write(tmp_path / "box", FROM + long + b"\n" + FROM + MAIL)) == [long, MAIL]
    border = (
        b"Subject: x\n\n" + b"y" * 65_536 + b">From the middle of a line\n"
    )  # a piece must not look like a line
    assert raws(write(tmp_path / "box", FROM + border)) == [border]


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


def test_empty_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    with pytest.raises(SourceError, match="standard input is empty"):
        raws("-")


# ---- marked as deleted


@pytest.mark.parametrize(
    ("fields", "deleted"),
    [
        (b"X-Status: \n", False),
        (b"X-Status: AF\n", False),
        (b"Status: RO\nX-Status: AD\n", True),
        (b"X-Mozilla-Status: 0001\nX-Mozilla-Status2: 00000008\n", False),
        (b"X-Mozilla-Status: 0009\n", True),
        (b"x-mozilla-status: 1018\n", True),
        (b"X-Mozilla-Status: 0001\nX-Mozilla-Status: 0008\n", False),  # the second by a sender
    ],
)
def test_an_mbox_says_in_header_fields_what_is_deleted(
    tmp_path: Path, fields: bytes, deleted: bool
) -> None:
    raw = fields + b"Subject: x\n\nX-Status: D\n"
    for end in (b"\n", b"\r\n"):
        path = write(tmp_path / "box", (FROM + raw + b"\n" + FROM + MAIL).replace(b"\n", end))
        assert [message.deleted for message in read_messages(path)] == [deleted, False]
    (alone,) = read_messages(write(tmp_path / "one.eml", raw))
    assert not alone.deleted  # there the fields are the sender's


def test_a_maildir_and_a_folder_of_mh_say_in_names_what_is_deleted(tmp_path: Path) -> None:
    box = maildir(tmp_path / "tree" / "box")
    for name in ("1.a:2,S", "2.a:2,ST", "3.T:2,", "4.a!2,T", "5.a;2,DTab"):
        write(box / "cur" / name, MAIL)
    for name in ("1", ",2"):
        write(tmp_path / "tree" / "mh" / name, MAIL)
        write(tmp_path / "tree" / "mh" / f"{name}0", FROM + MAIL)
    found = {Path(each.name).name: each.deleted for each in read_messages(tmp_path / "tree")}
    deleted = {"2.a:2,ST", "4.a!2,T", "5.a;2,DTab", ",2", ",20"}
    assert {name for name, is_deleted in found.items() if is_deleted} == deleted
    assert len(found) == 9


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


def test_an_empty_maildir_is_no_mistake(tmp_path: Path) -> None:
    assert raws(maildir(tmp_path / "box")) == []


def test_a_maildir_in_use(tmp_path: Path) -> None:
    box = maildir(tmp_path / "box")
    for name in ("1", "2", "3"):
        write(box / "new" / name, b"Subject: " + name.encode() + b"\n")
    found = read_messages(box)
    assert next(found).raw == b"Subject: 1\n"
    (box / "new" / "2").rename(box / "cur" / "2:2,S")  # read by its owner
    (box / "new" / "3").unlink()
    assert [message.raw for message in found] == [b"Subject: 2\n"]


@pytest.mark.parametrize("place", ["box", "box/cur"])
def test_a_maildir_from_which_much_is_moved_away(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = maildir(tmp_path / "box")
    for number in range(100):
        write(box / "cur" / f"{number:03}:2,", b"Subject: x\n")
    found = read_messages(tmp_path / place)
    assert next(found).name.endswith("000:2,")
    looks = []
    monkeypatch.setattr(
        "spamguard.sources.os.scandir",
        lambda path, scan=os.scandir: looks.append(path) or scan(path),
    )
    for number in range(1, 99):
        (box / "cur" / f"{number:03}:2,").unlink()
    (box / "cur" / "099:2,").rename(box / "cur" / "099:2,S")
    assert [Path(message.name).name for message in found] == ["099:2,S"]
    assert len(looks) < 10


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


def test_a_tree_in_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "b" / "2", OTHER)
    write(tmp_path / "a", MAIL)
    write(tmp_path / "b" / "1", FROM + MAIL + b"\n" + FROM + OTHER)
    write(tmp_path / "c" / "cur" / "m", b"Subject: in maildir\n")
    (tmp_path / "c" / "new").mkdir()
    write(tmp_path / ".git" / "x", MAIL)
    write(tmp_path / "subscriptions", b"Junk\n")
    write(tmp_path / "d" / "index", b"spam ../a\n")
    assert raws(tmp_path) == [MAIL, MAIL, OTHER, OTHER, b"Subject: in maildir\n"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "secret", MAIL)
    tree = tmp_path / "tree"
    write(tree / "m", OTHER)
    (tree / "loop").symlink_to(tree)
    (tree / "file").symlink_to(tmp_path / "outside" / "secret")
    (tree / "dir").symlink_to(tmp_path / "outside")
    (tree / "box").mkdir()
    (tree / "box" / "cur").symlink_to(tmp_path / "outside")
    (tree / "box" / "new").mkdir()
    (tree / "self").symlink_to("self")
    os.mkfifo(tree / "pipe")
    assert raws(tree) == [OTHER]


def test_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real" / "m", MAIL)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert raws(tmp_path / "link") == [MAIL]


def test_a_very_deep_tree(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 500)
    write(deep / "m", MAIL)
    assert raws(tmp_path) == [MAIL]


def test_names_are_printable(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n\x1b[31m \xd0\xb6")
    write(tmp_path / name, MAIL)
    (message,) = read_messages(tmp_path)
    assert message.name == f"{tmp_path}/caf\\xe9\\n\\x1b[31m ж"


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


def test_the_trec_layout(tmp_path: Path) -> None:
    write(tmp_path / "data" / "inmail.1", MAIL)
    index = write(tmp_path / "full" / "index", b"spam ../data/inmail.1\n")
    assert [(message.label, message.raw) for message in read_messages(index)] == [("spam", MAIL)]
    assert [message.label for message in read_messages(tmp_path)] == ["spam"]


def test_only_a_file_called_index_is_one(tmp_path: Path) -> None:
    """A letter may begin so, and a file of that name may be there."""
    write(tmp_path / "m", MAIL)
    letter = write(tmp_path / "letter", b"ham m\n")
    assert list(read_messages(letter)) == [SourceMessage(str(letter), b"ham m\n")]


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


def test_a_directory_without_mail(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no mail in this directory"):
        raws(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    write(tmp_path / "t" / "m", MAIL).chmod(0)
    with pytest.raises(SourceError, match=r"t/m: cannot be read \(Permission denied\)"):
        raws(tmp_path / "t")
    (tmp_path / "t").chmod(0)
    with pytest.raises(SourceError, match=r"t: cannot be read \(Permission denied\)"):
        raws(tmp_path / "t")
    (tmp_path / "t").chmod(0o700)


def test_unreadable_as_the_system_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m", MAIL)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=r"m: cannot be read \(Permission denied\)"):
        raws(path)


# ---- compressed files

RAW = b"Subject: x\n\n" + b"hello\n" * 1000
MOST = 1 << 20


def test_what_is_not_packed_is_as_it_is():
    assert decompress(RAW, MOST) == RAW
    assert not is_compressed(RAW)
    assert is_compressed(gzip.compress(RAW))


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
