"""spamguard: a statistics-only spam filter.

from spamguard import Filter

with Filter.open(directory) as spam_filter:
    verdict = spam_filter.judge(raw)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

__all__ = ["Filter", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Filter":  # loaded when asked for, so that `--help` does not wait for numpy
        return import_module("spamguard.engine.filter").Filter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
