"""What the tests of the estimators share: comparing everything that was learned, bit for bit, and
making data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spamguard.bayes.naive_bayes import NaiveBayes

repeatable = settings(derandomize=True, deadline=None, max_examples=25, database=None)

seeds = st.integers(0, 2**32 - 1)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, types of arrays included."""
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (
            one.tolist() == other.tolist()
            if one.dtype == object
            else one.tobytes() == other.tobytes()
        )
    else:
        assert one == other


def assert_same_knowledge(one: NaiveBayes, other: NaiveBayes) -> None:
    """Every attribute the same, public or not."""
    assert vars(one).keys() == vars(other).keys()
    for name, value in vars(one).items():
        assert_same(value, vars(other)[name])


def labels(random: np.random.Generator, size: int, n_classes: int = 3) -> NDArray[Any]:
    """At least six samples of each class, in any order, with names that are not numbers."""
    codes = np.concatenate(
        [np.repeat(np.arange(n_classes), 6), random.integers(0, n_classes, size - 6 * n_classes)]
    )
    return np.array(["ham", "newsletter", "spam", "zoo"])[random.permutation(codes)]
