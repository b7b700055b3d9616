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


def arrays(*kinds: str, width: int = 0) -> st.SearchStrategy[Any]:
    values = st.lists(st.integers(-3, 70) | st.sampled_from((2**31 - 1, -(2**31))), max_size=9)
    made = [
        values.map(lambda some, kind=kind: np.array(some, np.int64).astype(kind)) for kind in kinds
    ]
    flat = st.one_of(*made)
    return flat.map(lambda some: some.repeat(width).reshape(-1, width)) if width else flat


small = st.integers(-2, 40)
anything = (
    arrays("i4", "u4", "i8", "u1", "f8")
    | st.binary(max_size=80)
    | st.none()
    | small
    | st.tuples(st.binary(max_size=9))
)
texts = st.lists(st.binary(max_size=70), max_size=4).map(tuple)
wide, narrow, rows = arrays("i8"), arrays("i4"), arrays("i4", width=4)
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
    "place": st.tuples(arrays("u4"), wide, rows | narrow, narrow, small),
    "run_sums": st.tuples(rows, wide, wide, wide, small, small),
    "count_runs": st.tuples(rows, wide, wide, wide),
    "add_shares": st.tuples(rows, wide, wide, narrow, rows, narrow, narrow, small),
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


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@needs_kernel
def test_what_lies_outside_is_never_touched() -> None:
    assert COMPILED is not None
    cells, one = np.arange(8, dtype=np.int32).reshape(2, 4), np.array([1])
    sums, step = np.zeros(1, np.int64), whole(5)
    shares = step, cells, whole(9), whole(9)
    for place in (-1, 2, 2**62, -(2**63)):
        outside = np.array([place])
        with pytest.raises(IndexError, match="outside"):
            COMPILED.run_sums(cells, outside, one, sums, 2, 9)
        with pytest.raises(IndexError, match="outside"):
            COMPILED.count_runs(cells, outside, one, one)
        with pytest.raises(IndexError, match="outside"):
            COMPILED.add_shares(cells, outside, one, *shares, 2)
    for column in (4, -1):
        with pytest.raises(IndexError, match="outside"):
            COMPILED.count_runs(cells, one, one, np.array([column]))
        with pytest.raises(ValueError, match="fit"):
            COMPILED.run_sums(cells, one, one, sums, column, 9)
    for column, some in ((0, shares), (4, shares), (2, (*shares[:2], whole(), whole(9)))):
        with pytest.raises(ValueError, match="fit"):  # no count before the cell; no shares
            COMPILED.add_shares(cells, one, one, *some, column)
    with pytest.raises(IndexError, match="outside"):  # the table of the other counts ends before
        COMPILED.add_shares(cells, one, one, step, cells[:1], whole(9), whole(9), 2)
    with pytest.raises(ValueError, match="fit"):  # a fade for each run
        COMPILED.add_shares(cells, one, one, step, cells, whole(9), whole(9, 9), 2)
    for sizes in (np.array([2]), np.array([-1, 2]), np.array([2, -1])):
        with pytest.raises(ValueError, match="fit"):
            COMPILED.count_runs(cells, one, sizes, np.zeros(len(sizes), np.int64))
    assert cells.ravel().tolist() == list(range(8))


@needs_kernel
def test_tokens_have_places_in_messages_and_tables_only() -> None:
    assert COMPILED is not None
    tokens, both, rows = np.zeros(2, np.uint32), np.array([0, 2]), np.zeros((4, 4), np.int32)
    for offsets in ([0, 3], [1, 2], [0, 3, 2], []):
        with pytest.raises(ValueError, match="fit"):
            COMPILED.place(tokens, np.array(offsets, np.int64), rows, whole(0), 10)
    with pytest.raises(ValueError, match="fit"):
        COMPILED.place(tokens, both, rows[:, :2].copy(), whole(0), 10)
    for blocks in (whole(), whole(1), whole(-1), whole(2**31 - 1)):
        with pytest.raises(IndexError, match="outside"):
            COMPILED.place(tokens, both, rows, blocks, 10)
    assert len(COMPILED.place(tokens, both, rows, whole(0), 10)) == 8 * (12 + 1 + 3)


@needs_kernel
def test_what_may_not_be_written_is_not() -> None:
    assert COMPILED is not None
    cells, none, one = np.zeros((1, 4), np.int32), np.array([0]), np.array([1])
    cells.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        COMPILED.count_runs(cells, none, one, none)
    with pytest.raises((ValueError, BufferError)):
        COMPILED.run_sums(cells.copy(), none, one, bytes(8), 2, 9)
