"""What is known from elsewhere: starting weights, which fade as lessons come and touch no count."""

import numpy as np
import pytest

from spamguard.bayes import fusion, logistic
from spamguard.bayes.prior import STEPS, WordOdds, lay
from spamguard.bayes.tables import Tables, counted_state, empty_tables

TOKENS = np.array([5 << 22, (5 << 22) + 1, 9 << 22, 3 << 30], np.uint32)  # the first two share a bucket of 2**10
ODDS = np.array([16, 16, -127, 1], np.int8)


def laid(lessons: int, *known: WordOdds) -> Tables:
    tables = empty_tables(10, 3, 2, fusion.START)
    lay(tables, known, lessons)
    return tables


@pytest.mark.parametrize(("lessons", "share"), [(0, 1), (50, 1 / 2), (150, 1 / 4), (450, 1 / 10)])
def test_it_fades(lessons, share):
    weights = laid(lessons, WordOdds(TOKENS, ODDS)).rows[:, 2]
    wanted = np.array([32, -127, 1]) / STEPS * 2 * logistic.ONE * share
    assert weights[[5, 9, 768]] == pytest.approx(wanted, abs=1)
    assert np.count_nonzero(weights) == 3


def test_lists_add_up_in_any_order():
    one, other = WordOdds(TOKENS[:2], ODDS[:2]), WordOdds(TOKENS[1:], ODDS[1:])
    assert np.array_equal(laid(7, one, other).rows, laid(7, other, one).rows)


def test_nothing_is_counted():
    before = dict(counted_state(laid(0)))
    assert all(np.array_equal(before[name], array) for name, array in counted_state(laid(0, WordOdds(TOKENS, ODDS))))
