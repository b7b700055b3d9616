"""What holds for all tests: neither a busy machine nor chance makes one of them fail, nor who
started them.
"""

from __future__ import annotations

import compileall
import importlib
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import postgres_server, shared_database

__all__ = ["postgres_server", "shared_database"]  # one server for all tests of a process

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("the same each time", _UNHURRIED, derandomize=True)
settings.register_profile(
    "search", _UNHURRIED
)  # new examples each time: `pytest --hypothesis-profile=search`
settings.load_profile("the same each time")

# What a shell runs in the background ignores it, and so would every command under test: one that
# waits for its end would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What pytest makes of a file with asserts costs as much as all else until the first test runs: it
# is kept, whatever the environment says.
sys.dont_write_bytecode = False

# Commands under test write no bytecode, or root would write it, or where the environment says so
# nobody does: each would spend a third of its start on compiling. They read what is there.
compileall.compile_dir(Path(__file__).parents[1] / "spamguard", quiet=2)


QUICK_SECONDS, SLOW_SECONDS = 60, 900  # for one test, with what it needs made first

_MEMORY_DISK = Path("/dev/shm")
_MEMORY_DISK_BYTES = 6 << 30  # that must be free


@pytest.hookimpl(tryfirst=True)  # before pytest makes the directory and reads the limit
def pytest_configure(config: pytest.Config) -> None:
    """Files begin in the order of their names: tests with real servers first, and none that takes
    long is left to the end.

    All but the nightly tests keep their files in memory where there is room: half of the time would
    go into waiting for the disk.

    No test waits for ever: pytest-timeout ends it.
    """
    config.option.loadscopereorder = False
    is_quick = "not slow" in config.option.markexpr
    config.option.timeout = QUICK_SECONDS if is_quick else SLOW_SECONDS
    is_for_memory = is_quick or "not nightly" in config.option.markexpr
    is_first = is_for_memory and not hasattr(config, "workerinput")
    if is_first and config.option.basetemp is None and os.access(_MEMORY_DISK, os.W_OK):
        disk = os.statvfs(_MEMORY_DISK)
        may_run_programs = not disk.f_flag & os.ST_NOEXEC
        if disk.f_bavail * disk.f_frsize >= _MEMORY_DISK_BYTES and (is_quick or may_run_programs):
            place = tempfile.TemporaryDirectory(prefix="spamguard-", dir=_MEMORY_DISK)
            config.add_cleanup(place.cleanup)
            config.option.basetemp = f"{place.name}/pytest"
            if not is_quick:
                Path(place.name).chmod(0o711)  # servers under other users walk through it
                os.environ["TMPDIR"] = tempfile.tempdir = place.name


NIGHTLY = {
    f"test_{name}.py"
    for name in (
        "container", "debian_package", "exim_asks", "grafana", "other_servers",
        "packaging", "recipes", "sendmail_asks", "several_machines", "two_primaries",
    )
}  # fmt: skip
"""Whole systems, installations and servers of others: `.ci/nightly` runs these, beside the tests
that say so themselves."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick set need not read what is slow altogether."""
    return True if collection_path.name == "e2e" and config.option.markexpr == "not slow" else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `.ci/nightly` runs, and as slow what the quick set leaves out, beside the tests
    that say so themselves.

    Tests in e2e start daemons and mail servers. Tests that may skip need root or a program that is
    not on every machine.
    """
    for item in items:
        if item.path.name in NIGHTLY:
            item.add_marker("nightly")
        if (
            "e2e" in item.path.parts
            or any(item.iter_markers("skipif"))
            or any(item.iter_markers("corpus"))
        ):
            item.add_marker("slow")


def pytest_collection() -> None:
    """Where several processes collect, each makes what is kept of some of the files, and finds the
    others'.
    """
    number, of = (
        int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]),
        int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
    )
    root = Path(__file__).parents[1]
    for file in sorted(root.glob("tests/**/test_*.py"))[number::of] if of > 1 else ():
        with suppress(Exception, pytest.skip.Exception):  # whoever collects it tells
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))
