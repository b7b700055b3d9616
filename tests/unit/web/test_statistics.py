"""Figures of the last hours and of the model, and counts of words: correct, and each user's own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from spamguard.config.options import HistorySettings
from spamguard.errors import NotAllowedError, UsageError
from spamguard.web import statistics
from spamguard.web.auth import Person
from spamguard.web.models import ConfusionCell
from spamguard.web.queries import Search
from spamguard.web.service import Service
from tests.support.waiting import PATIENCE
from tests.unit.filters import READER, opened, teach
from tests.unit.web.office import (
    ANNA,
    CARL,
    MAIL,
    OPERATOR,
    PASSED,
    TAUGHT,
    asked,
    name,
    settings,
    spooled,
)


def test_mail_of_the_last_hours(state: Path) -> None:
    async def work(service: Service) -> None:
        for person, passed in ((OPERATOR, 30), (ANNA, 20), (CARL, 0)):
            before = time.time()
            today = await service.today(person)
            told = (await service.history(person, Search(limit=100))).judgements
            assert len(today.hours) == 24
            assert {hour.start % 3600 for hour in today.hours} == {0.0}
            assert today.hours[-1].start <= time.time()
            assert before < today.hours[-1].start + 3600
            assert today.passed == passed
            labels = Counter[str]()
            for hour in today.hours:
                labels.update(hour.mail)
            assert labels == Counter(one.label for one in told)
        assert (await service.today(OPERATOR, 12)).passed == 30
        assert len((await service.today(OPERATOR, 10**9)).hours) == 31 * 24
        assert len((await service.today(OPERATOR, -1)).hours) == 1

    asked(state, work)


def test_lessons_corrections_and_how_often_we_were_wrong(state: Path) -> None:
    async def work(service: Service) -> None:
        mail = (await service.history(ANNA, Search(limit=100))).judgements
        said = {
            label: [message for message in mail if message.label == label]
            for label in ("spam", "ham", "unsure")
        }
        assert said["spam"]
        assert said["ham"]
        assert (await service.today(ANNA)).wrong == []
        await service.learn_passed(ANNA, said["spam"][0].id, "ham")
        await service.learn_passed(ANNA, said["ham"][0].id, "ham")
        for one in said["unsure"][:1]:
            await service.learn_passed(ANNA, one.id, "spam")
        today = await service.today(ANNA)
        unsure = len(said["unsure"][:1])
        assert today.wrong == [
            ConfusionCell("ham", "ham", 1),
            ConfusionCell("spam", "ham", 1),
            *[ConfusionCell("unsure", "spam", 1)] * bool(unsure),
        ]
        assert (today.lessons, sum(hour.corrections for hour in today.hours)) == (2 + unsure, 1)
        of_all = await service.today(OPERATOR)
        assert of_all.wrong == today.wrong
        assert of_all.lessons == today.lessons + len(TAUGHT)
        assert (await service.today(CARL)).lessons == 0
        await service.forget_passed(ANNA, said["spam"][0].id)
        assert ConfusionCell("spam", "ham", 1) not in (await service.today(ANNA)).wrong

    asked(state, work)


def test_no_numbers_of_whom_nothing_is_known(state: Path) -> None:
    with pytest.raises(NotAllowedError, match="keeps no addresses"):
        asked(
            settings(state, history=HistorySettings(addresses=False)),
            lambda service: service.today(ANNA),
        )


def test_the_model(state: Path) -> None:
    with opened(state) as spam_filter:
        teach(spam_filter, MAIL[100:105], "anna")

    async def work(service: Service) -> None:
        model = await service.model(OPERATOR)
        labels = Counter(label for label, _ in TAUGHT)
        labels.update(label for label, _ in MAIL[100:105])
        assert {name: one.messages for name, one in model.classes.items()} == labels
        assert [name for name, one in model.classes.items() if one.unwanted] == ["spam"]
        assert model.growth[-1].lessons == labels.total()
        assert all(point.day % 86_400 == 0 for point in model.growth)
        assert {user.user: sum(user.lessons.values()) for user in model.users} == {
            "": 70,
            "anna": 5,
        }
        assert all(abs(user.last - time.time()) < 600 for user in model.users)
        assert sum(bucket.messages for bucket in model.calibration) == labels.total()
        assert all(
            bucket.low <= bucket.predicted <= bucket.high and 0 <= bucket.unwanted <= 1
            for bucket in model.calibration
        )
        assert 0 < model.tables["words"].load < 1
        assert [user.user for user in (await service.model(ANNA)).users] == ["anna"]
        assert [user.user for user in (await service.model(Person("carl"))).users] == []
        await service.learn_passed(ANNA, name(0), "spam")
        assert (await service.model(OPERATOR)).growth[-1].lessons == labels.total() + 1
        await service.undo(ANNA, "anna", 0.0)
        assert (await service.model(OPERATOR)).growth[-1].lessons == len(TAUGHT)

    asked(state, work)


def test_a_word_is_found_wherever_it_stands(tmp_path: Path) -> None:
    raw = b"From: zyxwort@zyxwort.example\nSubject: ZYXwort now\n\nzyxwort there http://zyxwort.example/zyxwort\n"
    state = tmp_path / "state"
    (state / "spool").mkdir(parents=True)
    with opened(state, bits=20) as spam_filter:
        teach(spam_filter, [("spam", raw)])
        texts = {
            text
            for text in READER.extractor.token_texts(raw).values()
            if text.rpartition(":")[2] == "zyxwort"
        }
    assert {"zyxwort", "subject:zyxwort", "from:zyxwort"} <= texts

    async def work(service: Service) -> None:
        words = await service.words(OPERATOR, " Zyxwort ")
        assert {one.text for one in words} >= texts
        assert all(one.messages == {"ham": 0, "spam": 1} for one in words if one.text in texts)
        assert all(one.part > 0 for one in words if one.text in texts)
        assert [word.text for word in await service.words(OPERATOR, "zyxwort now")] == [
            "subject:zyxwort now"
        ]
        assert "host:zyxwort_example" in {
            word.text for word in await service.words(OPERATOR, "zyxwort.example")
        }
        assert await service.words(ANNA, "zyxwort") == []  # it may stand in somebody else's mail
        assert await service.words(OPERATOR, "nowhere") == []
        for number in range(statistics.MIN_LESSONS - 1):
            await service.learn(OPERATOR, spooled(state, raw + b"%d\n" % number), "spam")
        assert {word.text for word in await service.words(ANNA, "zyxwort")} == texts

    asked(state, work)


@pytest.mark.parametrize("word", ["", "  ", "x" * 65, "a\0b", "a\x1b[31m", "\ud800"])
def test_an_invalid_word(state: Path, word: str) -> None:
    with pytest.raises(UsageError, match="a word has"):
        asked(state, lambda service: service.words(OPERATOR, word))


@pytest.mark.parametrize(
    "word",
    ["<script>", "{0}", "a:b", "--=", "%s", "你好吗", "\u202eevil", "a b c d e f", "می\u200cخواهم"],
)
def test_odd_words_are_words(state: Path, word: str) -> None:
    try:
        assert asked(state, lambda service: service.words(OPERATOR, word)) is not None
    except UsageError:
        assert word == "\u202eevil"


def test_status_is_for_operators_and_for_json(state: Path) -> None:
    result = asked(state, lambda service: service.status(OPERATOR))
    assert json.loads(json.dumps(result)) == result
    assert result["classes"]["spam"]["unwanted"] is True
    assert result["daemon"]["pid"]
    assert sum(row["messages"] for row in result["classes"].values()) == len(TAUGHT)


def test_status_has_classes_that_were_never_taught(state: Path) -> None:
    with opened(state) as spam_filter:
        spam_filter.define_class("promo", unwanted=True)
    result = asked(state, lambda service: service.status(OPERATOR))
    assert result["classes"]["promo"] == {"messages": 0, "unwanted": True}


def test_classes(state: Path) -> None:
    with opened(state) as spam_filter:
        spam_filter.define_class("promo", unwanted=True)
        spam_filter.define_class("news", unwanted=False)
    result = asked(state, lambda service: service.classes(ANNA))
    assert list(result.items()) == [
        ("ham", False),
        ("spam", True),
        ("news", False),
        ("promo", True),
    ]
    assert PASSED


def test_reading_does_not_wait_for_the_filter(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(statistics, "count_word", lambda *_, **__: done.wait(PATIENCE))

    async def work(service: Service) -> None:
        counting = asyncio.create_task(service.words(ANNA, "x"))
        try:
            assert await service.classes(ANNA)
            assert (await service.history(ANNA, Search())).judgements
            assert not counting.done()
        finally:
            done.set()
            assert await counting

    asked(state, work)
