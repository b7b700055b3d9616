"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from spamguard.engine.filter import Filter
from spamguard.learning import status_files
from tests.unit.filters import mail, opened, teach


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filter]:
    """Of four classes, settled; not to be changed."""
    with opened(tmp_path_factory.mktemp("engine") / "state") as one:
        one.define_class("promo", unwanted=True)
        one.define_class("news", unwanted=False)
        for number, (label, raw) in enumerate(mail(90)[:60]):
            other = {"ham": "news", "spam": "promo"}[label]
            teach(one, [(other if number % 3 == 0 else label, raw)])
        one.settle()
        yield one


TODAY = date(2026, 11, 20)


class _OneDay(date):
    """Of which one day is always today."""

    @classmethod
    def today(cls) -> date:
        return TODAY


@pytest.fixture
def one_day(monkeypatch: pytest.MonkeyPatch) -> date:
    """The day on which moves are refused, and asked about: in a test no midnight comes between."""
    monkeypatch.setattr(status_files, "date", _OneDay)
    return TODAY
