"""What holds for all tests: neither a busy machine nor chance makes one of them fail, nor who started them."""

from __future__ import annotations

import compileall
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("the same each time", _UNHURRIED, derandomize=True)
settings.register_profile("search", _UNHURRIED)  # new examples each time: `pytest --hypothesis-profile=search`
settings.load_profile("the same each time")

# What a shell runs in the background ignores it, and so would every command under test: one that waits for its end would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands under test write no bytecode, or root would write it, or where the environment says so nobody does: each would spend a third of
# its start on compiling. They read what is there.
compileall.compile_dir(Path(__file__).parents[1] / "spamguard", quiet=2)
