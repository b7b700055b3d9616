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
from spamguard.config.options import Listener
from spamguard.config.schema import Part


def command(*constants: tuple[int, str, dict[str, float]]) -> list[str]:
    """The words that start it."""
    return [sys.executable, "-m", "tests.e2e.tuned", json.dumps(constants)]


def _tune(constants: list[tuple[int, str, dict[str, float]]]) -> None:
    build = Part.build

    def tuned(part: Part) -> Any:
        settings = build(part)
        if isinstance(settings, Listener):
            for port, group, values in constants:
                if port in (0, settings.listen.port):
                    changed = replace(getattr(settings, group), **values)
                    settings = replace(settings, **{group: changed})
        return settings

    Part.build = tuned  # type: ignore[method-assign]


if __name__ == "__main__":
    _tune(json.loads(sys.argv.pop(1)))
    sys.exit(main())
