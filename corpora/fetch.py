"""Make a directory of a public corpus of labelled mail, to measure on.

    python corpora/fetch.py spamassassin DIR
    python corpora/fetch.py trec07p DIR trec07p.tgz

DIR gets `index` ("spam data/000001", in order of arrival) and `data/`. Without archives they are
fetched; those of TREC and CSDMC must be fetched by hand, after agreeing to their terms. What was
fetched is printed with its SHA-256. Never send such mail to anybody.

Names in an archive choose labels only; messages are data/000001 and so on. It needs nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import hashlib
import posixpath
import re
import tarfile
import tempfile
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

_SPAMASSASSIN = "https://spamassassin.apache.org/old/publiccorpus/20030228_"
_AUEB = "http://www.aueb.gr/users/ion/data/"
_TREC = (r".*full/index", "")
ARCHIVES = {
    "spamassassin": [
        f"{_SPAMASSASSIN}{part}.tar.bz2"
        for part in ("easy_ham", "easy_ham_2", "hard_ham", "spam", "spam_2")
    ],
    "enron-spam": [f"{_AUEB}enron-spam/preprocessed/enron{n}.tar.gz" for n in range(1, 7)],
    "ling-spam": [f"{_AUEB}lingspam_public.tar.gz"],
}
# By the path of a member; the first that fits counts.
LABELS = {
    "spamassassin": ((r"spam(_2)?/\d+\.[^/]+", "spam"), (r"\w+_ham(_2)?/\d+\.[^/]+", "ham")),
    "enron-spam": ((r"enron\d/spam/[^/]+", "spam"), (r"enron\d/ham/[^/]+", "ham")),
    "ling-spam": ((r".*/bare/part\d+/spmsg[^/]*", "spam"), (r".*/bare/part\d+/[^/]+\.txt", "ham")),
}
# A file of labels, and what its paths are relative to, seen from it.
INDEXES = {
    "csdmc2010": (r".*SPAMTrain\.label", "TRAINING"),
    **dict.fromkeys(("trec05p", "trec06p", "trec06c", "trec07p"), _TREC),
}
_LABEL_WORDS = {"spam": "spam", "ham": "ham", "0": "spam", "1": "ham"}  # digits: CSDMC's
_DATES = (
    re.compile(rb"^received:[^\n]*(?:\n[ \t][^\n]*)*;([^;\n]*(?:\n[ \t][^;\n]*)*)$", re.I | re.M),
    re.compile(rb"^date:([^\n]*)", re.I | re.M),
)
_DAY = re.compile(r"/\d+\.(\d{4}-\d\d-\d\d)\.")  # in the paths of Enron, which has no header


def read_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of the regular files of an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield posixpath.normpath(info.filename), packed.read(info)
        return
    with tarfile.open(archive) as unpacked:
        for member in unpacked:
            if (stream := unpacked.extractfile(member)) is not None:
                yield posixpath.normpath(member.name), stream.read()


def arrival(path: str, content: bytes) -> float:
    """The time of the last server, else of the sender, or the day in the path; 0: none is there."""
    if day := _DAY.search(path):
        return float(day[1].replace("-", ""))
    header = content[:65536].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    for pattern in _DATES:
        if found := pattern.search(header):
            date = email.utils.parsedate_tz(found[1].decode("ascii", "replace"))
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                return float(email.utils.mktime_tz(date))  # type: ignore[arg-type]  # or TypeError
    return 0.0


def read_labels(path: str, content: bytes, base: str) -> dict[str, str]:
    """Label by path, in the order of the index."""
    labels = {}
    for line in content.decode("utf-8", "replace").splitlines():
        word, _, target = line.strip().partition(" ")
        if label := _LABEL_WORDS.get(word.lower()):
            labels[posixpath.normpath(posixpath.join(posixpath.dirname(path), base, target))] = (
                label
            )
    return labels


def read_messages(name: str, archives: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Label and content of each message, in order of arrival."""
    members = [found for archive in archives for found in read_members(archive)]
    if name in INDEXES:
        pattern, base = INDEXES[name]
        contents = dict(members)
        labels: dict[str, str] = {}
        for path in filter(re.compile(pattern).fullmatch, contents):
            labels |= read_labels(path, contents[path], base)
        return [(label, contents[path]) for path, label in labels.items() if path in contents]
    found = []
    for path, content in members:
        label = next((label for fits, label in LABELS[name] if re.fullmatch(fits, path)), None)
        if label is not None:
            found.append((arrival(path, content), hashlib.sha256(content).digest(), label, content))
    return [(label, content) for _, _, label, content in sorted(found)]


def main() -> None:
    """Fetch, unpack, write."""
    parser = argparse.ArgumentParser(description="Make a directory of a public corpus.")
    parser.add_argument("name", choices=[*LABELS, *INDEXES])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("archives", nargs="*", type=Path, metavar="ARCHIVE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        archives = options.archives
        if not archives and options.name not in ARCHIVES:
            parser.error(f"{options.name} must be fetched by hand: name its archive")
        for number, url in enumerate([] if archives else ARCHIVES[options.name]):
            archives.append(Path(place, f"{number}"))
            urllib.request.urlretrieve(url, archives[-1])  # noqa: S310  one of the list above
            print(hashlib.sha256(archives[-1].read_bytes()).hexdigest(), url)
        messages = read_messages(options.name, archives)
    (options.directory / "data").mkdir(parents=True)
    with (options.directory / "index").open("w", encoding="ascii") as index:
        for number, (label, content) in enumerate(messages, 1):
            (options.directory / "data" / f"{number:06}").write_bytes(content)
            index.write(f"{label} data/{number:06}\n")
    print(f"{options.directory / 'index'}: {dict(Counter(label for label, _ in messages))}")


if __name__ == "__main__":
    main()
