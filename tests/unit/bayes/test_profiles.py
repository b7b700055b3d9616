"""Single experts by name, through the whole path from text to probability: the notes' examples.

`tests/contract/test_profiles_and_estimators.py` holds them against the estimators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from spamguard import keys
from spamguard.bayes import experts
from spamguard.bayes.profiles import DEFAULT_PROFILE, PROFILES
from spamguard.bayes.tables import make_evidence
from spamguard.engine.filter import Filter
from spamguard.records import Features
from tests.unit.bayes.lessons import BITS, made_up, replayed

KEY = b"a key under which no words share"  # a bucket
TEXTS = (
    ("ham", "Buy this online today"),
    ("spam", "Send us money today"),
    ("spam", "Send money today"),
    ("spam", "Buy online today"),
    ("ham", "Send us money"),
    ("spam", "Send this money"),
)
QUERY = "Buy money online today"
KNOWN = {"bernoulli-ml": 0.558621, "bernoulli": 0.651918, "multinomial": 0.657628}

Wrap = Callable[[str, int], bytes]


def _plain(text: str, number: int) -> bytes:
    return text.encode() + b"\n"


def _with_subject(text: str, number: int) -> bytes:
    return b"Subject: number %d\n\n%s\n" % (number, text.encode())


wraps = pytest.mark.parametrize("wrap", [_plain, _with_subject])


def opened(directory: Path, profile: str = DEFAULT_PROFILE) -> Filter:
    directory.mkdir(exist_ok=True)
    if not (directory / "key").exists():
        keys.store_key(directory / "key", KEY)
    return Filter.open(directory, profile=profile, bits=16, durable=False)


def teach(spam_filter: Filter, wrap: Wrap) -> None:
    for number, (label, text) in enumerate(TEXTS):
        spam_filter.learn(wrap(text, number), label)


def probability(directory: Path, profile: str, wrap: Wrap) -> float:
    with opened(directory, profile) as spam_filter:
        return spam_filter.judge(wrap(QUERY, 99)).probability


@wraps
@pytest.mark.parametrize("profile", KNOWN)
def test_the_notes_example(tmp_path: Path, wrap: Wrap, profile: str) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, wrap)
    assert probability(tmp_path, profile, wrap) == pytest.approx(KNOWN[profile], abs=5e-7)


@wraps
def test_the_notes_example_after_settling_and_after_lessons_that_were_taken_back(
    tmp_path: Path, wrap: Wrap
) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, wrap)
        spam_filter.settle()
        assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
            KNOWN, abs=5e-7
        )
        others = [wrap(f"Robots {number} sell watches online", 50 + number) for number in range(12)]
        for number, raw in enumerate(others):
            spam_filter.learn(raw, "ham" if number % 2 else "spam")
        assert probability(tmp_path, "bernoulli", wrap) != pytest.approx(
            KNOWN["bernoulli"], abs=1e-3
        )
        for raw in others:
            spam_filter.forget(raw)
        assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
            KNOWN, abs=5e-7
        )
        spam_filter.settle()
    assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
        KNOWN, abs=5e-7
    )


def test_a_word_never_seen_in_spam_does_not_acquit_once_smoothing_is_on(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, _plain)
        spam_filter.learn(b"robot\n", "ham")
    robot = b"Send money today robot\n"
    for profile, certain in (
        ("bernoulli", False),
        ("multinomial", False),
        ("bernoulli-ml", True),
        ("multinomial-ml", True),
    ):
        with opened(tmp_path, profile) as spam_filter:
            assert (spam_filter.judge(robot).probability < 1e-300) is certain


@pytest.mark.slow
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != DEFAULT_PROFILE])
def test_a_profile_knows_certainty_but_never_nan(tmp_path: Path, profile: str) -> None:
    mails = [
        b"one two\n",
        b"two three\n",
        b"\n",
        b"",
        b"Subject: x\n\none one one\n",
        b"new words only\n",
    ]
    for taught in itertools.product(("", "ham", "spam", "news"), repeat=2):
        with opened(tmp_path / "-".join(("x", *taught)), profile) as spam_filter:
            for raw, label in zip(mails, taught, strict=False):
                if label:
                    spam_filter.learn(raw, label)
            for raw in mails:
                verdict = spam_filter.judge(raw)
                assert 0.0 <= verdict.probability <= 1.0
                assert abs(verdict.log_odds) <= 1000
                assert sum(verdict.probabilities.values()) == pytest.approx(1.0)


def test_words_only_profiles_see_the_words_of_the_whole_extraction(tmp_path: Path) -> None:
    raw = b"Subject: money\nContent-Type: text/html\n\n<b>Buy</b> money online today <a href=http://x.example/>\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e</a>\n"
    with opened(tmp_path, "bernoulli") as spam_filter:
        extractor = spam_filter._reader.extractor
        every = extractor.features(raw).tokens
        assert extractor.word_features(raw).tokens.tolist() == every[every < 1 << 30].tolist()
        teach(spam_filter, _plain)
        assert spam_filter.judge(raw) == spam_filter.judge_features(extractor.features(raw))


def test_the_prior_of_a_profile_is_the_share_of_lessons() -> None:
    lessons = made_up(9, 30)
    tables = replayed(lessons)
    silent: NDArray[np.uint32] = np.zeros(0, np.uint32)
    nothing = make_evidence(
        Features(silent, lessons[0].features.traits, lessons[0].features.numbers), BITS
    )
    joint = PROFILES["multinomial"].judge(tables, experts.estimate_parameters(tables), nothing)
    np.testing.assert_allclose(np.exp(joint), tables.messages / 30)
