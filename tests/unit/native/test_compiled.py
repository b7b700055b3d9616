"""The compiled module itself: built where it can be, without a warning; never called when it is of
another version; arguments that do not fit are refused, whatever they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import native
from tests.unit.native.both import COMPILED, needs_kernel, repeatable

SOURCES = sorted(Path(native.__file__).parent.glob("*.c"))
HEADERS = Path(sysconfig.get_paths()["include"])
COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or not (HEADERS / "Python.h").exists(), reason="no C compiler, or no Python.h"
)


@needs_compiler
def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    assert len(SOURCES) >= 3
    strict = (
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wconversion",
        "-Wno-sign-conversion",
        "-Wshadow",
        "-Wvla",
    )
    command = [
        str(COMPILER),
        *strict,
        "-c",
        "-DPy_LIMITED_API=0x030b0000",
        f"-I{HEADERS}",
        *map(str, SOURCES),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_can_be_switched_off() -> None:
    code = "from spamguard import native; print(native.implementation())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, native._ENVIRONMENT_VARIABLE: "numpy"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "numpy\n"


@pytest.mark.parametrize(
    "version", [0, native._ABI_VERSION - 1, native._ABI_VERSION + 1, native._ABI_VERSION]
)
def test_a_module_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.delenv(native._ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(native, "import_module", lambda _: SimpleNamespace(VERSION=version))
    assert (native._load() is not None) == (version == native._ABI_VERSION)


def arrays(*kinds: str) -> st.SearchStrategy[Any]:
    values = st.lists(st.integers(-3, 70) | st.sampled_from((2**31 - 1, -(2**31))), max_size=9)
    made = [
        values.map(lambda some, kind=kind: np.array(some, np.int64).astype(kind)) for kind in kinds
    ]
    return st.one_of(*made)


small = st.integers(-2, 40)
anything = (
    arrays("i4", "u4", "i8", "u1", "f8")
    | st.binary(max_size=80)
    | st.none()
    | small
    | st.tuples(st.binary(max_size=9))
)
texts = st.lists(st.binary(max_size=70), max_size=4).map(tuple)
wide, narrow = arrays("i8"), arrays("i4")
_hashed = (
    texts,
    st.binary(max_size=32),
    st.binary(max_size=4),
    st.just(bytes(64)),
    st.just(bytes(255) + b"\1"),
)
CALLS = {
    "tokens": st.tuples(*_hashed, small),
    "places": st.tuples(*_hashed, arrays("u4") | st.binary(max_size=8), small, small),
    "place": st.tuples(arrays("u4"), wide | st.none(), small),
    "gather": st.tuples(narrow, wide, narrow, small),
    "run_sums": st.tuples(small, narrow, wide, wide, wide, wide, small),
    "add_runs": st.tuples(small, narrow, wide, wide, wide, narrow),
    "add_shares": st.tuples(small, narrow, wide, wide, wide, narrow, narrow, small, narrow, narrow),
}


@needs_kernel
@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_do_not_fit_are_refused(name: str) -> None:
    function = getattr(COMPILED, name)

    @repeatable
    @given(CALLS[name] | st.lists(anything, max_size=10).map(tuple))
    def refused_or_done(arguments: tuple[Any, ...]) -> None:
        with suppress(TypeError, ValueError, IndexError, OverflowError, BufferError, MemoryError):
            function(*arguments)

    refused_or_done()


@needs_kernel
def test_what_lies_outside_is_never_touched() -> None:
    assert COMPILED is not None
    cells, one = np.arange(8, dtype=np.int32), np.array([1])
    sums = np.zeros(1, np.int64)
    for bucket in (-1, 2, 2**62, -(2**63)):
        outside = np.array([bucket])
        with pytest.raises(IndexError, match="outside"):
            COMPILED.run_sums(4, cells, np.array([2]), outside, one, sums, 9)
        with pytest.raises(IndexError, match="outside"):
            COMPILED.add_runs(4, cells, np.array([2]), outside, one, np.array([5], np.int32))
        for others in (cells, cells[:0]):
            with pytest.raises(IndexError, match="outside"):
                COMPILED.add_shares(
                    4,
                    cells,
                    np.array([2]),
                    outside,
                    one,
                    np.array([5], np.int32),
                    others,
                    4,
                    *[np.array([9], np.int32)] * 2,
                )
        with pytest.raises(IndexError, match="outside"):
            COMPILED.gather(cells, outside, np.zeros(3, np.int32), 4)
    for firsts in (np.array([4]), np.array([-1]), np.array([0, 0])):
        with pytest.raises(ValueError, match="fit"):
            COMPILED.add_runs(4, cells, firsts, one, one, np.array([5], np.int32))
    for first, wide, shares in (
        (0, 4, [9]),
        (2, 0, [9]),
        (2, 4, []),
    ):  # no count before the cell, none elsewhere, no shares
        numbers = (
            np.array([5], np.int32),
            cells,
            wide,
            np.array(shares, np.int32),
            np.array([9], np.int32),
        )
        with pytest.raises(ValueError, match="fit"):
            COMPILED.add_shares(4, cells, np.array([first]), one, one, *numbers)
    with pytest.raises(IndexError, match="outside"):  # the table of the other counts ends before
        COMPILED.add_shares(
            4,
            cells,
            np.array([2]),
            one,
            one,
            np.array([5], np.int32),
            cells[:4],
            4,
            *[np.array([9], np.int32)] * 2,
        )
    with pytest.raises(ValueError, match="fit"):  # a fade for each run
        COMPILED.add_shares(
            4,
            cells,
            np.array([2]),
            one,
            one,
            np.array([5], np.int32),
            cells,
            4,
            *[np.array([9, 9], np.int32)] * 2,
        )
    for sizes in (np.array([2]), np.array([-1, 2]), np.array([2, -1])):
        with pytest.raises(ValueError, match="fit"):
            COMPILED.add_runs(4, cells, np.array([0]), one, sizes, np.zeros(len(sizes), np.int32))
    for offsets in (
        np.array([0, 3]),
        np.array([1, 2]),
        np.array([0, 3, 2]),
        np.array([], np.int64),
    ):
        with pytest.raises(ValueError, match="offsets"):
            COMPILED.place(np.zeros(2, np.uint32), offsets, 10)
    assert cells.tolist() == list(range(8))


@needs_kernel
def test_what_may_not_be_written_is_not() -> None:
    assert COMPILED is not None
    cells = np.zeros(4, np.int32)
    cells.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        COMPILED.add_runs(
            4, cells, np.array([0]), np.array([0]), np.array([1]), np.array([5], np.int32)
        )
    with pytest.raises((ValueError, BufferError)):
        COMPILED.gather(cells, np.array([0]), b"1234", 4)
