"""Other filters behind one interface: they judge files, learn files, and have a directory of their
own.

It never tunes one: settings are stock, or those that its authors advise, and are named here.
"""

from __future__ import annotations

import email
import email.policy
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from spamguard import keys
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example, ExampleReader
from tests.bench.contest import Answer, Rival, answer
from tests.bench.rival_servers import Bsfilter, Crm114, Crm114Near, SpamassassinBayes

KEY = b"the key of every filter on trial"


# ---- ours


class Spamguard(Rival):
    """This package, from Python; settles when the daemon would. Reads each file once."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        keys.store_key(place / "key", KEY)
        self.filter = Filter.open(place, _durable=False)
        self._preparer = ExampleReader(KEY)
        self._read: dict[Path, Example] = {}

    def ready(self, path: Path) -> Example:
        if path not in self._read:
            self._read[path] = self._preparer.read_example(path.read_bytes())
        return self._read[path]

    def judge(self, path: Path) -> Answer:
        verdict = self.filter.judge_features(self.ready(path).features)
        return Answer(verdict.log_odds, verdict.label, verdict.label == "unsure")

    def teach(self, path: Path, label: str) -> None:
        self.filter.learn_examples([self.ready(path)], label)
        self.filter.settle_if_due()

    def close(self) -> None:
        self.filter.close()


# ---- one process for each message


class Bogofilter(Rival):
    """Debian's bogofilter, stock: spam from 0.99, ham up to 0.45. `-TT` prints 16 digits."""

    def _command(self, *options: str) -> list[str]:
        return ["bogofilter", "-C", "-d", str(self.place), *options]

    def judge(self, path: Path) -> Answer:
        return self.judge_all([path])[0]

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        if not (
            self.place / "wordlist.db"
        ).exists():  # it refuses to judge before it was taught anything
            return [Answer(0.0, "unsure", True)] * len(paths)
        given = "".join(f"{path}\n" for path in paths)
        said = _output(self._command("-TT", "-b"), given).splitlines()
        return [answer(float(line.rpartition(" ")[2]), 1e-16, 0.45, 0.99) for line in said]

    def teach(self, path: Path, label: str) -> None:
        _output(self._command("-s" if label == "spam" else "-n", "-I", str(path)))


class Spamprobe(Rival):
    """Debian's spamprobe, stock: spam from 0.6 (its own cutoff of 0.7 is for `receive`); prints
    seven digits. Every lesson counts.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        _output(self._command("create-db"))

    def _command(self, *options: str) -> list[str]:
        return ["spamprobe", "-d", str(self.place), *options]

    def judge(self, path: Path) -> Answer:
        return self.judge_all([path])[0]

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        answers = []
        for start in range(0, len(paths), 500):
            said = _output(
                self._command("-M", "score", *map(str, paths[start : start + 500]))
            ).splitlines()
            # "FILE: SPAM 0.9999999 digest", without the file if there is only one
            answers += [self._of(line.split()) for line in said]
        return answers

    def _of(self, words: list[str]) -> Answer:
        return answer(
            float(next(word for word in words if word[:2] in ("0.", "1."))), 1e-7, 0.6, 0.6 + 1e-9
        )

    def teach(self, path: Path, label: str) -> None:
        _output(self._command("-M", "spam" if label == "spam" else "good", str(path)))


def _output(command: list[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode > 3 or done.returncode < 0:  # 0 to 2 are verdicts
        raise SystemExit(f"{command[0]} failed: {done.stderr}")
    return done.stdout


# ---- scikit-learn


class ScikitLearn(Rival):
    """MultinomialNB, alpha 1, over 2^18 hashed words of header and decoded text."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from scipy.sparse import vstack
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.naive_bayes import MultinomialNB

        self._words = HashingVectorizer(n_features=2**18, alternate_sign=False, norm=None)
        self._model = MultinomialNB()
        self._stack = vstack
        self._taught: set[str] = set()
        self._read: dict[Path, Any] = {}

    def _row(self, path: Path) -> Any:
        if path not in self._read:
            self._read[path] = self._words.transform([text_of(path.read_bytes())])
        return self._read[path]

    def judge(self, path: Path) -> Answer:
        return self.judge_all([path])[0]

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        if len(self._taught) < 2:
            return [Answer(0.0, "unsure", True)] * len(paths)
        found = self._model.predict_joint_log_proba(
            self._stack([self._row(path) for path in paths])
        )
        return [
            Answer(float(spam - ham), "spam" if spam > ham else "ham", False) for ham, spam in found
        ]

    def teach(self, path: Path, label: str) -> None:
        self._model.partial_fit(self._row(path), [label], classes=["ham", "spam"])
        self._taught.add(label)


def text_of(raw: bytes) -> str:
    """Header fields and decoded text parts of a message, by the standard library."""
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    pieces = [f"{name}: {value}" for name, value in message.items()]
    for part in message.walk():
        if part.get_content_maintype() == "text":
            content = part.get_payload(decode=True)
            pieces.append(
                decoded(
                    content if isinstance(content, bytes) else b"",
                    part.get_content_charset() or "utf-8",
                )
            )
    return "\n".join(pieces)


def decoded(content: bytes, charset: str) -> str:
    """Text in a declared charset, or in Latin-1."""
    try:
        return content.decode(charset, "replace")
    except (LookupError, ValueError):
        return content.decode("latin-1")


# ---- by name

RIVALS: dict[str, Callable[[Path], Rival]] = {
    "spamguard": Spamguard,
    "bogofilter": Bogofilter,
    "crm114": lambda place: Crm114(place, near=False),
    "crm114-near": Crm114Near,
    "spamprobe": Spamprobe,
    "bsfilter": Bsfilter,
    "spamassassin-bayes": SpamassassinBayes,
    "scikit-learn": ScikitLearn,
}
PROGRAMS = {
    "bogofilter": "bogofilter",
    "crm114": "crm",
    "crm114-near": "crm",
    "spamprobe": "spamprobe",
    "bsfilter": "bsfilter",
    "spamassassin-bayes": "sa-learn",
}


def available(names: Sequence[str]) -> list[str]:
    """Those of these filters that can run here; prints the others."""
    for name in names:
        if name not in RIVALS:
            raise SystemExit(f"no filter {name!r}: choose from {', '.join(RIVALS)}")
        if name in PROGRAMS and shutil.which(PROGRAMS[name]) is None:
            print(f"{name}: not installed, left out")
    return [name for name in names if name not in PROGRAMS or shutil.which(PROGRAMS[name])]


@contextmanager
def trial(make: Callable[[Path], Rival]) -> Iterator[Rival]:
    """A filter in a temporary directory, closed and removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="rival-") as directory,
        closing(make(Path(directory) / "state")) as rival,
    ):
        yield rival
