"""`spamguard` whose listeners have other constants, so that a test need not wait for half an hour.

`python -m tests.e2e.tuned JSON ARGUMENTS …`; the JSON is a list of [port, group, values], where
port 0 is every listener.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from spamguard.__main__ import main
from spamguard.config import load
from spamguard.config.options import Settings


def command(*constants: tuple[int, str, dict[str, float]]) -> list[str]:
    """The words that start it."""
    return [sys.executable, "-m", "tests.e2e.tuned", json.dumps(constants)]


def _tune(constants: list[tuple[int, str, dict[str, float]]]) -> None:
    read = load.load_settings

    def tuned(*words: Any, **options: Any) -> Settings:
        settings = read(*words, **options)
        listeners = []
        for listener in settings.listeners:
            for port, group, values in constants:
                if port in (0, listener.listen.port):
                    changed: Any = replace(getattr(listener, group), **values)
                    listener = replace(listener, **{group: changed})  # noqa: PLW2901
            listeners.append(listener)
        return replace(settings, listeners=tuple(listeners))

    load.load_settings = tuned


if __name__ == "__main__":
    _tune(json.loads(sys.argv.pop(1)))
    sys.exit(main())
