"""Recalibration finds what was done to honest scores, and doubt is counted completely."""

from __future__ import annotations

import pytest

from spamguard.errors import UsageError
from tests.bench.recalibration import best_recalibration


def test_one_kind_of_mail_cannot_be_recalibrated() -> None:
    with pytest.raises(UsageError, match="both spam and ham"):
        best_recalibration([True, True], [1.0, 2.0])
