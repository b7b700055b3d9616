"""Teaching and undoing: repetition changes nothing, users may disagree, undoing leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spamguard.engine.filter import Filter
from spamguard.errors import UnknownClassError
from tests.unit.filters import mail, opened

MAIL = mail(60)
HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))


@pytest.fixture
def spam_filter(tmp_path: Path) -> Iterator[Filter]:
    with opened(tmp_path / "state") as spam_filter:
        yield spam_filter


@pytest.mark.parametrize(
    ("pair", "error"), [((HAM[1], "Ham"), UnknownClassError), (("text", "ham"), TypeError)]
)
def test_of_many_messages_all_are_taught_or_none(
    spam_filter: Filter, pair: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        spam_filter.learn_all([(SPAM[0], "spam"), pair])
    assert spam_filter.status().events == 0
