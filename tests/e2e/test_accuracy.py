"""Accuracy of the default profile on real mail: minimum figures, no records. Needs the SpamAssassin
corpus beside the project.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.engine import evaluate, measures
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example, ExampleReader
from spamguard.sources import read_messages
from tests.support.archives import unpack

SHARED = Path(__file__).parents[3] / "shared"
ARCHIVE = SHARED / "corpora" / "spamassassin.tar.xz"
KEY = b"the same in both, for one order."
Lesson = tuple[Example, str]

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, prepared: without verdict and mailbox-state headers, as all figures are taken."""
    if not ARCHIVE.exists():
        pytest.skip("the SpamAssassin corpus is not there (../shared/corpora/spamassassin.tar.xz)")
    place = tmp_path_factory.mktemp("corpus")
    unpack(ARCHIVE, place)
    (source,) = place.rglob("index")
    subprocess.run(
        [sys.executable, SHARED / "bench" / "prep.py", source.parent, place / "prepared"],
        check=True,
        capture_output=True,
    )
    return place / "prepared" / "index"


def roca(trials: Sequence[evaluate.ScoredMessage]) -> float:
    return measures.roca([row.gold == "spam" for row in trials], [row.score for row in trials])


@pytest.mark.nightly  # the record has the scores of a third
def test_online_it_ranks_better_than_any_peer(index: Path) -> None:
    trials = list(evaluate.run_trial("online", lambda: read_messages(index), "default"))
    assert len(trials) == 6047
    assert roca(trials) <= 0.20  # bogofilter 0.204, SpamBayes 0.272 on the same files


def test_teaching_class_by_class_does_no_harm(index: Path, tmp_path: Path) -> None:
    preparer = ExampleReader(KEY)
    corpus = [
        (preparer.read_example(message.raw), str(message.label))
        for message in islice(read_messages(index), 0, None, 3)
    ]
    border = int(0.7 * len(corpus))
    by_class = sorted(corpus[:border], key=lambda lesson: lesson[1] == "spam")
    apart = judged_after(by_class, corpus[border:], tmp_path / "apart")
    mixed = judged_after(corpus[:border], corpus[border:], tmp_path / "mixed")
    assert apart <= 1.3 * mixed


def judged_after(taught: Sequence[Lesson], judged: Sequence[Lesson], state: Path) -> float:
    """1-ROCA % on `judged` of a filter that was taught and settled."""
    state.mkdir()
    keys.store_key(state / "key", KEY)
    with Filter.open(state, _durable=False) as spam_filter:
        for ready, label in taught:
            spam_filter.learn_examples([ready], label)
            spam_filter.settle_if_due()
        spam_filter.settle()
        scores = [spam_filter.judge_features(ready.features).log_odds for ready, _ in judged]
    return measures.roca([label == "spam" for _, label in judged], scores)
