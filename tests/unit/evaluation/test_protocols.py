"""Trials of a filter: what is judged before it is taught, in which order, and that nobody else's model is touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpora.synthetic import generate
from spamguard import Filter
from spamguard.evaluation import protocols
from spamguard.evaluation.protocols import PROTOCOLS, Settings, Trial, interleaved
from spamguard.sources import Message

pytestmark = pytest.mark.slow

MAIL = [Message(f"mail {number}", raw, label) for number, (label, raw) in enumerate(generate(80, 7))]
SETTINGS = Settings("default", delay=15, share=0.6)
every = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones only cost time here."""
    whole = Filter.open
    monkeypatch.setattr(Filter, "open", lambda directory, **settings: whole(directory, bits=14, **settings))


class Spy:
    """Notes what a filter judges and is taught, by the number of the message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.judged: list[int] = []
        self.taught: list[tuple[int, str]] = []
        self.settled = 0
        self._numbers: dict[bytes, int] = {}
        judge, learn, ready = Filter.judge_features, Filter.learn_ready, protocols.Preparer.ready
        settle = Filter.settle

        def noting_ready(preparer: Any, raw: bytes) -> Any:
            found = ready(preparer, raw)
            self._numbers[found.features.tokens.tobytes()] = next(at for at, one in enumerate(MAIL) if one.raw == raw)
            return found

        def noting_judge(one: Filter, features: Any) -> Any:
            self.judged.append(self._numbers[features.tokens.tobytes()])
            assert self.judged[-1] not in {number for number, _ in self.taught}, "judged after it was taught"
            return judge(one, features)

        def noting_learn(one: Filter, lessons: Any, label: str) -> Any:
            self.taught += [(self._numbers[lesson.features.tokens.tobytes()], label) for lesson in lessons]
            return learn(one, lessons, label)

        def noting_settle(one: Filter) -> None:
            self.settled += 1
            settle(one)

        monkeypatch.setattr(protocols.Preparer, "ready", noting_ready)
        monkeypatch.setattr(Filter, "judge_features", noting_judge)
        monkeypatch.setattr(Filter, "learn_ready", noting_learn)
        monkeypatch.setattr(Filter, "settle", noting_settle)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def tried(protocol: str, settings: Settings = SETTINGS, mail: Iterable[Message] = MAIL) -> list[Trial]:
    return list(protocols.run(protocol, lambda: iter(mail), settings))


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.row.n for trial in trials]


@every
def test_every_message_is_judged_once_and_never_after_it_was_taught(protocol: str, spy: Spy) -> None:
    trials = tried(protocol)
    first = 48 if protocol == "split" else 0
    assert spy.judged == list(range(first, 80))
    assert numbers(trials) == list(range(first + 1, 81))
    assert [trial.row.gold for trial in trials] == [message.label for message in MAIL[first:]]
    assert all(label == MAIL[number].label for number, label in spy.taught)
    assert all(0.0 <= trial.probability <= 1.0 for trial in trials)


def test_online_teaches_every_message_at_once(spy: Spy) -> None:
    assert all(trial.row.trained for trial in tried("online"))
    assert [number for number, _ in spy.taught] == list(range(80))


def test_delayed_teaches_so_many_messages_later_and_the_last_ones_never(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = []
    noting = Filter.learn_ready

    def learn(one: Filter, lessons: Any, label: str) -> Any:
        found = noting(one, lessons, label)
        gaps.append(spy.judged[-1] - spy.taught[-1][0])
        return found

    monkeypatch.setattr(Filter, "learn_ready", learn)
    trials = tried("delayed")
    assert [number for number, _ in spy.taught] == list(range(65))
    assert set(gaps) == {15}
    assert [trial.row.trained for trial in trials] == [True] * 65 + [False] * 15


def test_a_delay_longer_than_the_mail_teaches_nothing(spy: Spy) -> None:
    trials = tried("delayed", Settings("default", delay=500))
    assert spy.taught == []
    assert not any(trial.row.trained for trial in trials)
    assert {trial.row.label for trial in trials} == {"unsure"}


def test_corrections_teach_what_was_wrong_or_unsure_and_nothing_else(spy: Spy) -> None:
    trials = tried("corrections")
    assert [trial.row.trained for trial in trials] == [trial.row.label != trial.row.gold for trial in trials]
    assert [number + 1 for number, _ in spy.taught] == [trial.row.n for trial in trials if trial.row.trained]
    assert 0 < len(spy.taught) < 80


def test_split_teaches_the_first_part_and_settles_and_learns_no_more(spy: Spy) -> None:
    trials = tried("split")
    assert [number for number, _ in spy.taught] == list(range(48))
    assert spy.settled == 1
    assert not any(trial.row.trained for trial in trials)


@pytest.mark.parametrize(("share", "judged"), [(0.0, 80), (1.0, 0)])
def test_a_split_may_lie_at_either_end(share: float, judged: int) -> None:
    assert len(tried("split", Settings("default", share=share))) == judged


@every
def test_no_mail_gives_no_rows(protocol: str) -> None:
    assert tried(protocol, mail=[]) == []


@every
def test_the_same_mail_gives_the_same_figures(protocol: str) -> None:
    assert tried(protocol) == tried(protocol)


@every
def test_classes_of_similar_names_are_each_a_class_of_their_own(protocol: str) -> None:
    named = [replace(one, label="ham2") if one.label == "ham" and number % 2 else one for number, one in enumerate(MAIL)]
    assert {trial.row.gold for trial in tried(protocol, mail=named)} == {"ham", "ham2", "spam"}


def test_a_profile_is_tried_by_name() -> None:
    assert [trial.row.score for trial in tried("online")] != [trial.row.score for trial in tried("online", Settings("bernoulli"))]


@every
def test_nothing_is_written_but_in_a_directory_of_its_own_that_is_gone_afterwards(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []
    whole = Filter.open

    def noting(directory: str, **settings: Any) -> Filter:
        places.append(Path(directory))
        return whole(directory, **settings)

    monkeypatch.setattr(Filter, "open", noting)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPAMGUARD_STATE", str(tmp_path / "mine"))
    tried(protocol)
    assert [place.parent for place in places] == [tmp_path]
    assert list(tmp_path.iterdir()) == []


def test_whoever_stops_early_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trials = protocols.run("online", lambda: iter(MAIL), SETTINGS)
    next(iter(trials))
    assert len(list(tmp_path.iterdir())) == 1
    trials.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ham", "spam"), [(6, 3), (3, 6), (5, 5), (0, 4), (4, 0), (1, 100), (0, 0)])
def test_two_folders_keep_their_order_and_their_proportions(ham: int, spam: int) -> None:
    mixed = list(interleaved(*_folder("h", ham), *_folder("s", spam)))
    assert [message.name for message in mixed if message.label == "ham"] == [f"h{at}" for at in range(ham)]
    assert [message.name for message in mixed if message.label == "spam"] == [f"s{at}" for at in range(spam)]
    for length in range(len(mixed)):
        given = sum(message.label == "ham" for message in mixed[:length])
        assert abs(given - length * ham / (ham + spam)) <= 1


def _folder(name: str, size: int) -> tuple[list[Message], int]:
    return [Message(f"{name}{at}", b"", None) for at in range(size)], size


@pytest.mark.parametrize("counts", [(0, 0), (1, 9), (100, 2)])
def test_folders_that_were_miscounted_still_come_whole(counts: tuple[int, int]) -> None:
    (ham, _), (spam, _) = _folder("h", 5), _folder("s", 7)
    mixed = list(interleaved(ham, counts[0], spam, counts[1]))
    assert sorted(message.name for message in mixed) == sorted(message.name for message in (*ham, *spam))
