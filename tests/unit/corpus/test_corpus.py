"""Public corpora: fetched from a server on this machine, checked, unpacked without trusting a name,
made whole or not at all.
"""

import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spamguard import corpus, sources
from spamguard.cli import main
from spamguard.corpus import RECIPES, CorpusArchive, CorpusRecipe, LabelIndex

HAM = (
    b"Received: by x; Fri, 1 Feb 2002 10:00:00 +0000\nDate: Mon, 1 Jan 2001 00:00:00 +0000\n"
    b"Subject: a\n\nham\n"
)
SPAM = b"Date: Wed, 30 Jan 2002 10:00:00 +0100\nSubject: b\n\nspam\n"


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = (
        len(content) if kind == tarfile.REGTYPE else 0,
        kind,
        target,
    )
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as packed:
        for info, content in members:
            packed.addfile(info, io.BytesIO(content))
    return stream.getvalue()


GOOD = tar(
    member("c/easy/1.a", HAM),
    member("c/spam/1.b", SPAM),
    member("c/easy/cmds", b"mv"),
    mode="w:bz2",
)


class Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    length: int | None

    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        found = self.files.get(self.path)
        self.send_response(200 if found is not None else 404)
        body = found or b""
        self.send_header("Content-Length", str(len(body) if self.path != "/short" else 10_000))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch) -> Iterator[dict[str, bytes]]:
    """Files by path, on a server whose address is in the recipe "small"."""
    files = {"/good": GOOD}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Handler,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("no_proxy", "*")
    files["base"] = f"http://127.0.0.1:{server.server_address[1]}".encode()
    yield files
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def recipe(site, monkeypatch):
    """Puts a recipe for these paths of the site into the table."""

    def put(*paths: str, sha256: str = "", **changes: object) -> None:
        archives = tuple(CorpusArchive(site["base"].decode() + path, sha256) for path in paths)
        labels = (
            (re.compile(r"c/spam/\d+\.[^/]+"), "spam"),
            (re.compile(r"c/easy/\d+\.[^/]+"), "ham"),
        )
        made = CorpusRecipe(
            "small",
            "about",
            "for tests only",
            **{"archives": archives, "labels": labels, **changes},
        )
        monkeypatch.setitem(corpus.RECIPES, "small", made)

    return put


@pytest.fixture
def fetch(tmp_path, capsys):
    """Runs `corpus fetch small`; exit status, answer, errors."""

    def run(*more: object) -> tuple[int, str, str]:
        status = main(
            ["corpus", "fetch", "small", str(tmp_path / "place" / "corpus"), *map(str, more)]
        )
        done = capsys.readouterr()
        return status, done.out, done.err

    return run


def nothing(tmp_path: Path) -> bool:
    """Whether nothing at all was left."""
    return not (tmp_path / "place").exists() or not list((tmp_path / "place").iterdir())


def test_fetched_it_is_a_corpus_in_order_of_arrival(recipe, fetch, tmp_path):
    recipe("/good")
    status, out, err = fetch()
    assert status == 0
    assert "1 message of ham, 1 message of spam; for tests only\n" in out
    assert hashlib.sha256(GOOD).hexdigest() in out
    assert "no checksum of these archives is known" in err
    corpus = tmp_path / "place" / "corpus"
    assert [(one.label, one.raw) for one in sources.read_messages(str(corpus / "index"))] == [
        ("spam", SPAM),
        ("ham", HAM),
    ]
    assert len(list((corpus / "data").iterdir())) == 2
    assert hashlib.sha256(GOOD).hexdigest() in (corpus / "SOURCE").read_text()
    assert [one.name for one in corpus.parent.iterdir()] == ["corpus"]
    assert "is there already" in fetch()[2]


def test_a_checksum_that_is_right(recipe, fetch):
    recipe("/good", sha256=hashlib.sha256(GOOD).hexdigest())
    status, out, err = fetch("--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["checked"] is True
    assert json.loads(out)["messages"] == {"ham": 1, "spam": 1}


@pytest.mark.parametrize("pinned", [True, False])
def test_a_checksum_that_is_wrong_keeps_nothing(recipe, fetch, tmp_path, pinned):
    recipe("/good", sha256="" if pinned else "0" * 64)
    status, out, err = fetch(*(["--sha256", "0" * 64] if pinned else []))
    assert (status, out) == (2, "")
    assert f"its SHA-256 is {hashlib.sha256(GOOD).hexdigest()}, not {'0' * 64}" in err
    assert nothing(tmp_path)


def test_a_checksum_that_is_pinned(recipe, fetch):
    recipe("/good")
    assert fetch("--sha256", hashlib.sha256(GOOD).hexdigest().upper())[::2] == (0, "")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/none", "cannot be fetched (Not Found)"),
        ("/short", "ended after"),
        ("/away", "cannot be fetched"),
        ("/html", "cannot be unpacked"),
        ("/cut", "cannot be unpacked"),
        ("/other", "no labelled mail of both kinds"),
        ("/half", "no labelled mail of both kinds"),
    ],
)
def test_what_is_no_corpus_keeps_nothing(site, recipe, fetch, tmp_path, path, words):
    site |= {
        "/html": b"<html>gone</html>",
        "/cut": GOOD[:-40],
        "/short": GOOD,
        "/other": tar(member("x", b"y")),
    }
    site["/half"] = tar(member("c/easy/1.a", HAM))
    recipe(path)
    status, out, err = fetch()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert nothing(tmp_path)


def test_too_large_keeps_nothing(recipe, fetch, tmp_path, monkeypatch):
    recipe("/good")
    monkeypatch.setattr(corpus, "MAX_ARCHIVE_BYTES", 100)
    assert "is larger than 100 bytes" in fetch()[2]
    monkeypatch.undo()
    assert nothing(tmp_path)


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 2), ("MAX_TOTAL_BYTES", 100)])
def test_an_archive_that_unpacks_to_too_much(recipe, fetch, tmp_path, monkeypatch, limit, value):
    recipe("/good")
    monkeypatch.setattr(corpus, limit, value)
    assert "it is not the archive that it should be" in fetch()[2]
    assert nothing(tmp_path)


def test_a_header_that_asks_for_much_memory(site, recipe, fetch, tmp_path):
    endless = tarfile.TarInfo("x")
    endless.size, endless.type = 1 << 30, tarfile.XHDTYPE
    site["/greedy"] = gzip.compress(endless.tobuf() + bytes(100_000))
    recipe("/greedy")
    assert "a header in it is too long" in fetch()[2]
    assert nothing(tmp_path)


EVIL = [
    member("c/easy/../../../../escaped", HAM),
    member("/escaped", HAM),
    member("../c/easy/9.x", HAM),
    member("c/easy/2.link", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    member("c/easy/3.hard", kind=tarfile.LNKTYPE, target="c/easy/1.a"),
    member("c/easy/4.device", kind=tarfile.CHRTYPE),
    member("c/easy/5.fifo", kind=tarfile.FIFOTYPE),
    member("c/spam/2.link", kind=tarfile.SYMTYPE, target="../../.."),
    member("c/spam/2.link/evil", SPAM),
]


def test_names_links_and_devices_lead_nowhere(site, recipe, fetch, tmp_path):
    site["/evil"] = tar(*EVIL, member("c/easy/1.a", HAM), member("c/spam/1.b", SPAM))
    recipe("/evil")
    assert fetch()[0] == 0
    corpus = tmp_path / "place" / "corpus"
    assert sorted(
        path.relative_to(tmp_path).parts[2:] for path in tmp_path.rglob("*") if not path.is_dir()
    ) == [
        ("SOURCE",),
        ("data", "000001"),
        ("data", "000002"),
        ("index",),
    ]
    assert not any(path.is_symlink() for path in corpus.rglob("*"))
    assert not Path("/escaped").exists()


def test_several_archives_are_one_corpus(site, recipe, fetch):
    site |= {"/a": tar(member("c/easy/1.a", HAM)), "/b": tar(member("c/spam/1.b", SPAM))}
    recipe("/a", "/b")
    assert json.loads(fetch("--json")[1])["messages"] == {"ham": 1, "spam": 1}


def test_by_hand_with_an_index(recipe, fetch, tmp_path):
    recipe(labels=(), index=RECIPES["trec07p"].index, page="https://example.org/terms")
    status, _, err = fetch()
    assert status == 2
    assert "must be fetched by hand (for tests only): see https://example.org/terms" in err
    index = b"ham ../data/inmail.2\nspam ../data/inmail.1\nrubbish\nham ../data/missing\n"
    archive = tmp_path / "trec.tgz"
    archive.write_bytes(
        tar(
            member("t/data/inmail.1", SPAM),
            member("t/data/inmail.2", HAM),
            member("t/full/index", index),
        )
    )
    assert fetch("--archive", archive)[0] == 0
    found = list(sources.read_messages(str(tmp_path / "place" / "corpus" / "index")))
    assert [(one.label, one.raw) for one in found] == [("ham", HAM), ("spam", SPAM)]


def test_a_zip_with_labels_of_its_own(recipe, fetch, tmp_path):
    recipe(labels=(), index=LabelIndex(re.compile(r".*SPAMTrain\.label"), "TRAINING"))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as packed:
        packed.writestr("C/SPAMTrain.label", "1 TRAIN_0.eml\n0 TRAIN_1.eml\n")
        packed.writestr("C/TRAINING/TRAIN_0.eml", HAM)
        packed.writestr("C/TRAINING/TRAIN_1.eml", SPAM)
        link = zipfile.ZipInfo("C/TRAINING/link")
        link.external_attr = 0o120777 << 16
        packed.writestr(link, "/etc/passwd")
    status, out, _ = fetch("--archive", tmp_path / "c.zip", "--json")
    assert (status, json.loads(out)["messages"]) == (0, {"ham": 1, "spam": 1})


def test_usage(recipe, fetch, tmp_path, capsys):
    recipe("/good")
    assert "64 hexadecimal digits" in fetch("--sha256", "x")[2]
    assert "cannot be read" in fetch("--archive", tmp_path / "none")[2]
    assert main(["corpus", "fetch", "nonesuch"]) == 2
    assert "no corpus 'nonesuch': choose one of spamassassin" in capsys.readouterr().err
    assert main(["corpus", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in RECIPES)


@pytest.mark.parametrize(
    ("name", "path", "label"),
    [
        ("spamassassin", "spam_2/00001.317e78fa8ee2f54cd4890fdc09ba8176", "spam"),
        ("spamassassin", "easy_ham_2/00001.1a31cc283af0060967a233d26548a6ce", "ham"),
        ("spamassassin", "hard_ham/cmds", None),
        ("enron-spam", "enron1/spam/0006.2003-12-18.GP.spam.txt", "spam"),
        ("enron-spam", "enron1/ham/0001.1999-12-10.farmer.ham.txt", "ham"),
        ("enron-spam", "enron1/Summary.txt", None),
        ("ling-spam", "lingspam_public/bare/part1/spmsga1.txt", "spam"),
        ("ling-spam", "lingspam_public/bare/part1/3-1msg1.txt", "ham"),
        ("ling-spam", "lingspam_public/lemm/part1/3-1msg1.txt", None),
    ],
)
def test_labels_of_the_recipes(name, path, label):
    assert corpus._find_label(path, RECIPES[name]) == label


def test_days_in_names_order_what_has_no_header():
    recipe = RECIPES["enron-spam"]
    names = ("0001.1999-12-10.a.ham.txt", "2.2003-12-18.GP.spam.txt")
    days = [corpus._arrival_time(f"enron1/ham/{name}", b"Subject: x", recipe) for name in names]
    assert days == [19991210.0, 20031218.0]
