"""What evidence means: arrays in, numbers out.

The four families of naive Bayes as scikit-learn estimators, loaded when first asked for: whoever wants the formulas
alone must never pay for importing scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spamguard.bayes.bernoulli import BernoulliNB
    from spamguard.bayes.categorical import CategoricalNB
    from spamguard.bayes.gaussian import GaussianNB
    from spamguard.bayes.multinomial import MultinomialNB

__all__ = ["BernoulliNB", "CategoricalNB", "GaussianNB", "MultinomialNB"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.removesuffix('NB').lower()}"), name)
