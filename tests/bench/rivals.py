"""Other filters, each driven the same way: asked about files, taught files, in a directory of its own.

It never tunes one: settings are stock, or what its authors advise, and are named here. Scores are log-odds of spam (natural logarithm;
higher is more likely spam), bounded by what the filter prints, so that a probability printed as 1 is not infinite evidence. Every process
ends with `close`.
"""

from __future__ import annotations

import email
import email.policy
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol

from spamguard import Filter, secret
from spamguard.prepare import Preparer, Teaching

KEY = b"the key of every filter on trial"


class Answer(NamedTuple):
    """score: log-odds of spam. label: "spam", "ham" or "unsure". doubt: taught by those who teach only what went wrong or nearly so."""

    score: float
    label: str
    doubt: bool


class Rival(Protocol):
    """A filter on trial."""

    def judge(self, path: Path) -> Answer:
        """What it says about the message in this file; nothing is taught by that."""

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        """The same for many, as it is."""

    def teach(self, path: Path, label: str) -> None:
        """Teach it this message."""

    def bulk_taught(self) -> None:
        """A pile of lessons is over, and somebody has time."""

    def close(self) -> None:
        """End its processes."""


def _log_odds(probability: float, resolution: float) -> float:
    """Of a printed probability; no nearer to 0 and 1 than half its last digit."""
    return math.log(max(probability, resolution / 2)) - math.log(max(1 - probability, resolution / 2))


def _answer(probability: float, resolution: float, ham_to: float, spam_from: float) -> Answer:
    label = "spam" if probability >= spam_from else "ham" if probability <= ham_to else "unsure"
    return Answer(_log_odds(probability, resolution), label, label == "unsure")


class _Filter:
    """What most have in common."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self._place = place

    def judge(self, path: Path) -> Answer:
        raise NotImplementedError

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        return [self.judge(path) for path in paths]

    def bulk_taught(self) -> None:
        """Most have nothing to do then."""

    def close(self) -> None:
        """Most keep no process."""


# ---- ours


class Spamguard(_Filter):
    """This package, from Python; settles when the daemon would. Reads each file once, whatever it is asked."""

    def __init__(self, place: Path, profile: str = "default", key: bytes = KEY) -> None:
        super().__init__(place)
        secret.store(place / "key", key)
        self.filter = Filter.open(place, profile=profile, durable=False)
        self._preparer = Preparer(key)
        self._read: dict[Path, Teaching] = {}

    def ready(self, path: Path) -> Teaching:
        if path not in self._read:
            self._read[path] = self._preparer.ready(path.read_bytes())
        return self._read[path]

    def judge(self, path: Path) -> Answer:
        verdict = self.filter.judge_features(self.ready(path).features)
        return Answer(verdict.log_odds, verdict.label, verdict.label == "unsure")

    def teach(self, path: Path, label: str) -> None:
        self.filter.learn_ready([self.ready(path)], label)
        self.filter.settle_if_due()

    def bulk_taught(self) -> None:
        self.filter.settle()

    def close(self) -> None:
        self.filter.close()


# ---- one process for each message


class Bogofilter(_Filter):
    """Debian's bogofilter, stock: spam from 0.99, ham up to 0.45. `-TT` prints 16 digits."""

    def _command(self, *options: str) -> list[str]:
        return ["bogofilter", "-C", "-d", str(self._place), *options]

    def judge(self, path: Path) -> Answer:
        return self.judge_all([path])[0]

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        if not (self._place / "wordlist.db").exists():  # it refuses to judge before it was taught anything
            return [Answer(0.0, "unsure", True)] * len(paths)
        given = "".join(f"{path}\n" for path in paths)
        said = _output(self._command("-TT", "-b"), given).splitlines()
        return [_answer(float(line.rpartition(" ")[2]), 1e-16, 0.45, 0.99) for line in said]

    def teach(self, path: Path, label: str) -> None:
        _output(self._command("-s" if label == "spam" else "-n", "-I", str(path)))


class Spamprobe(_Filter):
    """Debian's spamprobe, stock: spam from 0.6 (its own cutoff of 0.7 is for `receive`); prints seven digits. Every lesson counts."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        _output(self._command("create-db"))

    def _command(self, *options: str) -> list[str]:
        return ["spamprobe", "-d", str(self._place), *options]

    def judge(self, path: Path) -> Answer:
        return self.judge_all([path])[0]

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        answers = []
        for start in range(0, len(paths), 500):
            said = _output(self._command("-M", "score", *map(str, paths[start : start + 500]))).splitlines()
            # "FILE: SPAM 0.9999999 digest", without the file if there is only one
            answers += [self._of(line.split()) for line in said]
        return answers

    def _of(self, words: list[str]) -> Answer:
        return _answer(float(next(word for word in words if word[:2] in ("0.", "1."))), 1e-7, 0.6, 0.6 + 1e-9)

    def teach(self, path: Path, label: str) -> None:
        _output(self._command("-M", "spam" if label == "spam" else "good", str(path)))


def _output(command: list[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode > 3 or done.returncode < 0:  # 0 to 2 are verdicts
        raise SystemExit(f"{command[0]} failed: {done.stderr}")
    return done.stdout


# ---- a process that answers line for line: "J FILE" is answered by a number, "S FILE" and "H FILE" by anything


class _Server(_Filter):
    """One process for all messages."""

    def __init__(self, place: Path, command: list[str]) -> None:
        super().__init__(place)
        environment = os.environ | {"PLACE": str(place)}
        self._log = (place / "log").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1, env=environment, cwd=place
        )

    def _ask(self, line: str) -> str:
        given, said = _open(self._process.stdin), _open(self._process.stdout)
        given.write(line + "\n")
        answer = said.readline()
        if not answer:
            raise SystemExit(f"{self._process.args!r} ended: {(self._place / 'log').read_text(errors='replace')[-2000:]}")
        return answer

    def teach(self, path: Path, label: str) -> None:
        self._ask(f"{'S' if label == 'spam' else 'H'} {path.absolute()}")

    def close(self) -> None:
        self._process.terminate()
        for stream in (self._process.stdin, self._process.stdout):
            _open(stream).close()
        self._process.wait()
        self._log.close()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


_CRM = r"""
window
isolate (:stats:) /pR: 0/
{
    input <byline> (:line:)
    match [:line:] (:: :op: :file:) /^([JSH]) ([^\n]+)/
    input (:text:) [:*:file:]
    {
        match [:op:] /S/
        learn <osb unique microgroom> (:*:_env_PLACE:/spam.css) [:text:] /[[:graph:]]+/
        output /learnt\n/
    }
    {
        match [:op:] /H/
        learn <osb unique microgroom> (:*:_env_PLACE:/ham.css) [:text:] /[[:graph:]]+/
        output /learnt\n/
    }
    {
        match [:op:] /J/
        {
            classify <osb unique microgroom> (:*:_env_PLACE:/spam.css | :*:_env_PLACE:/ham.css) (:stats:) [:text:] /[[:graph:]]+/
        }
        match [:stats:] (:: :pr:) /pR: *([-+0-9.eE]+)/
        output /:*:pr:\n/
    }
    liaf
}
"""


class Crm114(_Server):
    """Debian's crm114, Markov pairs ("osb unique microgroom"), 2^20 slots for each class. near: in doubt below a pR of 10, its advice."""

    def __init__(self, place: Path, *, near: bool) -> None:
        place.mkdir(exist_ok=True)
        (place / "loop.crm").write_text(_CRM)
        for name in ("spam", "ham"):
            subprocess.run(["cssutil", "-b", "-r", "-S", "1048576", f"{place}/{name}.css"], capture_output=True, check=True)
        super().__init__(place, ["crm", "loop.crm"])
        self._near = near

    def judge(self, path: Path) -> Answer:
        ratio = float(self._ask(f"J {path.absolute()}"))
        return Answer(ratio * math.log(10), "spam" if ratio > 0 else "ham", self._near and abs(ratio) < 10)


class Crm114Near(Crm114):
    """The same, taught by its own advice: only what it gets wrong or nearly so, whatever is offered."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, near=True)

    def teach(self, path: Path, label: str) -> None:
        said = self.judge(path)
        if said.label != label or said.doubt:
            super().teach(path, label)


_BSFILTER = r"""
$VERBOSE = nil
ARGV.clear
load "/usr/bin/bsfilter"
place = ENV["PLACE"]
make = lambda { |*options| one = Bsfilter::new; one.setup(["--homedir", place, "--quiet", *options]); one }
teach = { "S" => make.call("--add-spam", "--update"), "H" => make.call("--add-clean", "--update") }
judge = make.call()
STDOUT.sync = true
while line = STDIN.gets
  operation, file = line.chomp.split(" ", 2)
  if operation == "J"
    judge.run([file])
    puts "%.17g" % judge.probability
  else
    teach[operation].run([file])
    puts "learnt"
  end
end
"""


class Bsfilter(_Server):
    """Debian's bsfilter (Robinson-Fisher), stock: spam from 0.582."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        (place / "loop.rb").write_text(_BSFILTER)
        super().__init__(place, ["ruby", "-Ku", "loop.rb"])

    def judge(self, path: Path) -> Answer:
        return _answer(float(self._ask(f"J {path.absolute()}")), 1e-16, 0.582, 0.582 + 1e-9)


_SPAMASSASSIN = r"""
use strict; use warnings; use Mail::SpamAssassin;
my $place = $ENV{PLACE};
my $sa = Mail::SpamAssassin->new({
    local_tests_only => 1, dont_copy_prefs => 1, site_rules_filename => "$place/site", rules_filename => "$place/rules",
    userprefs_filename => "$place/prefs", userstate_dir => "$place/state", home_dir_for_helpers => $place });
$sa->init(1);
$sa->init_learner({ wait_for_lock => 1, learn_to_journal => 0, force_expire => 0 });
$| = 1;
while (my $line = <STDIN>) {
    chomp $line;
    my ($operation, $file) = split / /, $line, 2;
    open(my $in, '<', $file) or die; binmode $in; local $/; my $text = <$in>; close $in;
    my $message = $sa->parse($text, 1);
    if ($operation eq 'J') {
        my $status = $sa->check($message);
        my $chance = $status->{bayes_score};
        $status->finish;
        printf "%.17g\n", defined $chance ? $chance : 0.5;
    } else {
        $sa->learn($message, undef, $operation eq 'S' ? 1 : 0, 0)->finish;
        print "learnt\n";
    }
    $message->finish;
    $/ = "\n";
}
"""

_PREFERENCES = """use_bayes 1
bayes_auto_learn 0
bayes_auto_expire 0
bayes_min_ham_num 1
bayes_min_spam_num 1
bayes_path {place}/bayes
"""


class SpamassassinBayes(_Server):
    """SpamAssassin's Bayes alone: no other rule, no network, no learning by itself, no expiry, in force from one lesson of each on."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        for name in ("site", "rules", "state"):
            (place / name).mkdir(exist_ok=True)
        shutil.copy("/usr/share/spamassassin/23_bayes.cf", place / "rules")
        plugins = "".join(f"loadplugin Mail::SpamAssassin::Plugin::{name}\n" for name in ("Bayes", "Check"))
        (place / "rules" / "init.pre").write_text(plugins)
        (place / "site" / "init.pre").write_text(plugins)
        (place / "site" / "local.cf").write_text(_PREFERENCES.format(place=place))
        (place / "prefs").write_text("")
        (place / "loop.pl").write_text(_SPAMASSASSIN)
        super().__init__(place, ["perl", "loop.pl"])

    def judge(self, path: Path) -> Answer:
        return _answer(float(self._ask(f"J {path.absolute()}")), 1e-16, 0.5, 0.5 + 1e-9)


# ---- scikit-learn


class ScikitLearn(_Filter):
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
        found = self._model.predict_joint_log_proba(self._stack([self._row(path) for path in paths]))
        return [Answer(float(spam - ham), "spam" if spam > ham else "ham", False) for ham, spam in found]

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
            pieces.append(decoded(content if isinstance(content, bytes) else b"", part.get_content_charset() or "utf-8"))
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
    """Those of these that can be run here; says which cannot."""
    for name in names:
        if name not in RIVALS:
            raise SystemExit(f"no filter {name!r}: choose from {', '.join(RIVALS)}")
        if name in PROGRAMS and shutil.which(PROGRAMS[name]) is None:
            print(f"{name}: not installed, left out")
    return [name for name in names if name not in PROGRAMS or shutil.which(PROGRAMS[name])]


class Trial:
    """A filter in a temporary directory, closed and removed at the end. make: another way to make it than by its name."""

    def __init__(self, name: str, make: Callable[[Path], Rival] | None = None) -> None:
        self._make = make or RIVALS[name]

    def __enter__(self) -> Rival:
        self._directory = tempfile.TemporaryDirectory(prefix="rival-")
        self._rival = self._make(Path(self._directory.name) / "state")
        return self._rival

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rival.close()
        self._directory.cleanup()
