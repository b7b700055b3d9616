"""Sums in units hold every finite float64 exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array

from spamguard.bayes.naive_bayes import (
    UNIT_BITS,
    class_products,
    class_squares,
    class_sums,
    to_floats,
    to_units,
)
from tests.unit.bayes.support import assert_same, repeatable

finite = st.floats(allow_nan=False, allow_infinity=False)
tables = st.lists(st.tuples(finite, finite), min_size=1, max_size=12).map(np.array)


def fractions(units: Any, power: int = 1) -> list[Any]:
    return [Fraction(number, 1 << power * UNIT_BITS) for number in units.ravel()]


def exact_sum(values: Any) -> Fraction:
    return sum((Fraction(float(value)) for value in values), Fraction(0))


@repeatable
@given(tables)
def test_every_float_is_held_exactly(table: np.ndarray) -> None:
    units = to_units(table)
    assert fractions(units) == [Fraction(value) for value in table.ravel()]
    assert_same(to_floats(units), table + 0.0)  # there is no negative zero among integers


@repeatable
@given(tables)
def test_sums_squares_and_products_are_exact(table: np.ndarray) -> None:
    codes = np.arange(len(table)) % 2
    x, y = table.T
    for code in (0, 1):
        mine = codes == code
        assert fractions(class_sums(table, codes, 2))[2 * code : 2 * code + 2] == [
            exact_sum(x[mine]),
            exact_sum(y[mine]),
        ]
        xy = sum((Fraction(a) * Fraction(b) for a, b in table[mine].tolist()), Fraction(0))
        xx, yy = (
            sum((Fraction(a) ** 2 for a in column[mine].tolist()), Fraction(0)) for column in (x, y)
        )
        assert fractions(class_squares(table, codes, 2), 2)[2 * code : 2 * code + 2] == [xx, yy]
        assert fractions(class_products(table, codes, 2), 2)[4 * code : 4 * code + 4] == [
            xx,
            xy,
            xy,
            yy,
        ]


@repeatable
@given(tables)
def test_sparse_sums_are_the_dense_ones(table: np.ndarray) -> None:
    codes = np.arange(len(table)) % 2
    assert_same(class_sums(coo_array(table).tocsr(), codes, 2), class_sums(table, codes, 2))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**62, -1, 0])
def test_integers_do_not_wrap_around(value: int) -> None:
    codes = np.zeros(4, dtype=np.intp)
    assert fractions(class_sums(np.full((4, 1), value), codes, 1)) == [4 * value]
    assert fractions(class_squares(np.full((4, 1), value), codes, 1), 2) == [4 * value**2]
    assert fractions(to_units(np.array([2**64 - 1], dtype=np.uint64))) == [2**64 - 1]
