"""Fixtures that several tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spamguard import Filter
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
