"""Figures of the last hours and of the model, and counts of words: correct, and each user's own."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from spamguard.config.options import HistorySettings
from spamguard.errors import NotAllowedError
from spamguard.web.auth import Person
from spamguard.web.history import Search
from spamguard.web.models import Class, ConfusionCell
from spamguard.web.service import Service
from tests.unit.filters import opened, teach
from tests.unit.web.office import (
    ANNA,
    CARL,
    MAIL,
    OPERATOR,
    TAUGHT,
    asked,
    name,
    settings,
)


def test_mail_of_the_last_hours(state: Path) -> None:
    async def work(service: Service) -> None:
        for person, passed in ((OPERATOR, 30), (ANNA, 20), (CARL, 0)):
            before = time.time()
            today = await service.today(person)
            told = (await service.history(person, Search(limit=100))).rows
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

    asked(state, work)


def test_lessons_and_how_often_we_were_wrong(state: Path) -> None:
    async def work(service: Service) -> None:
        mail = (await service.history(ANNA, Search(limit=100))).rows
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
        assert today.lessons == 2 + unsure
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
            settings(state, history=HistorySettings(private=True)),
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
        assert {user.user: sum(user.lessons.values()) for user in model.users} == {
            "": 70,
            "anna": 5,
        }
        assert all(abs(user.last - time.time()) < 600 for user in model.users)
        assert [user.user for user in (await service.model(ANNA)).users] == ["anna"]
        assert [user.user for user in (await service.model(Person("carl"))).users] == []
        await service.learn_passed(ANNA, name(0), "spam")
        users = (await service.model(OPERATOR)).users
        assert {user.user: sum(user.lessons.values()) for user in users} == {"": 70, "anna": 6}

    asked(state, work)


def test_the_model_has_classes_that_were_never_taught(state: Path) -> None:
    with opened(state) as spam_filter:
        spam_filter.define_class("promo", unwanted=True)
    result = asked(state, lambda service: service.model(OPERATOR))
    assert result.classes["promo"] == Class(0, unwanted=True)
