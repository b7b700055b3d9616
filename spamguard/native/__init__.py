"""The inner loops in C: hashing tokens, rows of tables.

The extension is optional. Each function has a reference in Python or numpy where it is called, and
both give the same bits (`tests/unit/native`), so a state directory may go from one to the other at
any time. A buffer among their arguments is a contiguous array of the items that the C source names,
or their bytes; ValueError, IndexError and TypeError mean that arguments do not fit together, which
is the caller's mistake. A function is here only if it is worth some 5 % of judging or settling
(RESULTS, "The inner loops in C"). Where `functions` is None, callers take the reference. No formula
may stand in C, and nothing may be learnt or judged differently because of it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

_ABI_VERSION = 14  # of the compiled functions, as in module.c
_ENVIRONMENT_VARIABLE = "SPAMGUARD_KERNEL"


def _load() -> Any:
    if os.environ.get(_ENVIRONMENT_VARIABLE) == "numpy":  # all tests pass without the extension
        return None
    try:
        compiled = import_module("spamguard.native.compiled")
    except ImportError:  # a pure wheel, no compiler, or built for another machine
        return None
    return compiled if getattr(compiled, "VERSION", 0) == _ABI_VERSION else None


functions = _load()
"""The compiled functions, or None if the references in Python and numpy are in force."""


def implementation() -> str:
    """Which implementation is in force: "compiled" or "numpy"."""
    return "numpy" if functions is None else "compiled"
