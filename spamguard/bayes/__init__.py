"""Naive Bayes as arithmetic: arrays in, numbers out. Nothing here knows mail, files or time.

The four estimators are loaded at first use, because importing scikit-learn takes long and judging
mail does not need it.
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
