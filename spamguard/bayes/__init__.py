"""Naive Bayes as arithmetic: arrays in, numbers out.

`formulas` has the mathematics. `tables` holds the counts and weights of all features, `experts`
gives the ten log-odds of a message by them, of which `logistic` has the weights, and `fusion`
combines these into one, or takes that apart. `training` changes the tables by one lesson, or makes
them from all lessons. `personal` adds a user's own votes. `estimators`, on the base of
`naive_bayes`, offers the same formulas as estimators of scikit-learn; they are loaded at first use,
because importing scikit-learn takes long and judging mail does not need it.

Must never touch mail, files, clocks or sockets, and never depend on the machine: the same lessons
give the same bits everywhere. Read `tables` first, then `experts`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spamguard.bayes.estimators import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB

__all__ = ["BernoulliNB", "CategoricalNB", "GaussianNB", "MultinomialNB"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("spamguard.bayes.estimators"), name)
