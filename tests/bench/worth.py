"""What each test of the quick set is worth: the lines and branches that it alone runs, and the
faults that it alone finds.

    pip install coverage
    python -m tests.bench.worth cover DIRECTORY [TESTS]
    python -m tests.bench.worth mutants DIRECTORY ROOM [--number 200] [--seed 1]

`cover` runs the quick tests once under coverage, with the name of the running test function as the
context of every line and branch, in child processes too. Then it chooses greedily the functions
that together run all that all of them run: at each step the one with most new branches for each of
its lines. Functions that search (Hypothesis) and contract suites are always chosen.
DIRECTORY/worth.json says which are kept and what the others run.

`mutants` changes one thing in a module of a room (a comparison, an operator, a constant, what is
returned, a call left out), `--number` times by lot, and runs the functions that run the changed
line: first the kept ones, then, if all of them pass, the others. Of the others, those that fail
are kept from now on. So the kept functions find every mutant that all of them find. Functions run
from the quickest on, for at most `SECONDS` each time. A forked process that has only the libraries
loaded runs each mutant.
"""

from __future__ import annotations

import argparse
import ast
import copy
import heapq
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 10.0
_PLACE = "SPAMGUARD_WORTH"
_CONFIGURATION = """\
[run]
branch = true
source = {root}/spamguard
data_file = {place}/data
parallel = true
context = ${{{place_name}_TEST-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""

# ---- run under coverage: a plugin of pytest


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Lines belong to the function that runs them from here on, those of its children as well."""
    if _PLACE in os.environ:
        name = item.nodeid.partition("[")[0]
        os.environ[f"{_PLACE}_TEST"] = name
        if measured := coverage.Coverage.current():
            measured.switch_context(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each function takes; the process that collects notes it for all."""
    if _PLACE in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with (Path(os.environ[_PLACE]) / "seconds").open("a") as file:
            print(report.nodeid.partition("[")[0], report.duration, sep="\t", file=file)


def run_covered(place: Path, tests: list[str]) -> None:
    """Run tests with a context for each function; data and times go to the directory."""
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    configuration = place / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(root=ROOT, place=place, place_name=_PLACE))
    starter = Path(sysconfig.get_path("purelib")) / "spamguard_worth.pth"
    starter.write_text(
        "import os; 'COVERAGE_PROCESS_START' in os.environ and "
        "__import__('coverage').process_startup()\n"
    )
    environment = {
        **os.environ,
        _PLACE: str(place),
        "COVERAGE_PROCESS_START": str(configuration),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.bench.worth", "-q", "-n", "2"]
    command += ["--dist", "loadfile", "-o", "timeout=600", *(tests or ["-m", "not slow"])]
    try:
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
    finally:
        starter.unlink()
    data = coverage.Coverage(data_file=str(place / "data"), config_file=str(configuration))
    data.combine([str(place)], keep=False)
    data.save()


# ---- choose


def read_arcs(place: Path) -> dict[str, set[tuple[str, int, int]]]:
    """The branches (file, from, to) that each test function runs."""
    rows = sqlite3.connect(place / "data").execute(
        "SELECT context.context, file.path, fromno, tono FROM arc "
        "JOIN context ON context.id = context_id JOIN file ON file.id = file_id"
    )
    arcs: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
    for context, path, start, end in rows:
        name = context.partition("|")[2] or context.partition("|")[0]
        if name.startswith("tests/"):
            arcs[name].add((os.path.relpath(path, ROOT), start, end))
    return arcs


def find_functions() -> dict[str, tuple[int, bool]]:
    """All test functions: how many lines each has, and whether it stays whatever it runs."""
    found: dict[str, tuple[int, bool]] = {}
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text())
        stays = name.startswith(("tests/contract/", "tests/e2e/"))
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for each in inner:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min([each.lineno, *(line.lineno for line in each.decorator_list)])
                    searches = any("given" in ast.dump(line) for line in each.decorator_list)
                    lines = (each.end_lineno or first) - first + 1
                    found[f"{name}::{prefix}{each.name}"] = lines, stays or searches
    return found


def choose(
    arcs: dict[str, set[tuple[str, int, int]]], functions: dict[str, tuple[int, bool]]
) -> set[str]:
    """Functions that together run every branch that any runs."""
    kept = {name for name in arcs if functions.get(name, (0, True))[1]}
    seen: set[tuple[str, int, int]] = set()
    for name in kept:
        seen |= arcs[name]

    def gain(name: str) -> float:
        return len(arcs[name] - seen) / (functions[name][0] + 2)

    heap = [(-gain(name), name) for name in arcs if name not in kept]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        now = gain(name)
        if not now:
            continue
        if heap and -heap[0][0] > now:
            heapq.heappush(heap, (-now, name))
            continue
        kept.add(name)
        seen |= arcs[name]
    return kept


def cover(place: Path, tests: list[str]) -> None:
    """Run, choose, write worth.json and print a line for each room of tests."""
    if not (place / "data").exists():
        run_covered(place, tests)
    arcs, functions = read_arcs(place), find_functions()
    kept = choose(arcs, functions)
    seconds: Counter[str] = Counter()
    for line in (place / "seconds").read_text().splitlines():
        name, _, duration = line.partition("\t")
        seconds[name] += float(duration)
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name in arcs:
        room = name.rpartition("/")[0] if name.count("/") > 2 else name.partition("::")[0]
        lines = functions.get(name, (0, True))[0]
        counts = rooms[room]
        counts[0] += 1
        counts[1] += lines
        counts[2] += name in kept
        counts[3] += lines * (name in kept)
    print(f"{'functions':>10}{'lines':>8}{'kept':>8}{'lines':>8}")
    for room, counts in sorted(rooms.items()):
        print(f"{counts[0]:>10}{counts[1]:>8}{counts[2]:>8}{counts[3]:>8}  {room}")
    lines_of: dict[str, dict[str, list[int]]] = {}
    for name, found in arcs.items():
        by_file: dict[str, set[int]] = defaultdict(set)
        for file, start, end in found:
            by_file[file].update((abs(start), abs(end)))
        lines_of[name] = {file: sorted(lines) for file, lines in by_file.items()}
    result = {"kept": sorted(kept), "lines": lines_of, "seconds": seconds}
    (place / "worth.json").write_text(json.dumps(result))


# ---- mutants

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _change(node: ast.AST) -> str | None:
    """Change one node in place, and say what; None: nothing to change here."""
    what = None
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in _SWAPS:
            node.ops[0] = _SWAPS[type(operator)]()
            what = f"not {type(operator).__name__}"
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator):
            if type(operator) in _SWAPS:
                node.op = _SWAPS[type(operator)]()  # type: ignore[assignment]
                what = f"not {type(operator).__name__}"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            what = "condition turned"
        case ast.Constant(value=bool(value)):
            node.value = not value
            what = f"not {value}"
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
            what = f"not {value}"
        case ast.Constant(value=str(text) | bytes(text)):
            node.value = text + text[:1] if text else "x"
            what = f"{text!r:.20} longer"
        case ast.Return(value=ast.expr()):
            node.value = ast.copy_location(ast.Constant(None), node)
            what = "returns None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            node.value = ast.copy_location(ast.Constant(None), node)
            what = "call left out"
    return what


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes inside functions, without docstrings and annotations, in the order of the text."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body[ast.get_docstring(function) is not None :]:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from (
                        node for node in ast.walk(statement) if not isinstance(node, ast.AnnAssign)
                    )


def list_mutants(room: str) -> list[tuple[str, int, int, str]]:
    """All mutants of a room: (file, number of the node, line, what changes)."""
    mutants = []
    for path in sorted((ROOT / "spamguard" / room).glob("*.py")):
        nodes = list(_nodes(ast.parse(path.read_text())))
        for number, node in enumerate(nodes):
            if what := _change(copy.copy(node)):  # a shallow copy: the tree stays as it is
                name = path.relative_to(ROOT).as_posix()
                mutants.append((name, number, getattr(node, "lineno", 0), what))
    return mutants


class _Mutant(importlib.machinery.SourceFileLoader):
    """Loads one module with one node changed."""

    number: int | None

    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(Path(self.path).read_text())
        if self.number is not None:
            _change(list(_nodes(tree))[self.number])
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder:
    def __init__(self, module: str, file: str, number: int | None) -> None:
        self.module = module
        self.loader = _Mutant(module, str(ROOT / file))
        self.loader.number = number

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.loader.path, loader=self.loader)


class _Failed:
    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid.partition("[")[0]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = "import"


def run_mutant(file: str, number: int | None, tests: list[str]) -> str:
    """The first of these functions that fails with a mutant, `start` where pytest itself does, or
    `time`; empty: none does. None instead of a number changes nothing.
    """
    if not tests:
        return ""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        answer = "start"
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1), os.dup2(null, 2)
            module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            sys.meta_path.insert(0, _Finder(module, file, number))  # type: ignore[arg-type]
            failed = _Failed()
            options = [
                "-x",
                "-q",
                "--tb=no",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-o",
                "timeout=30",
            ]
            options += ["-o", "filterwarnings="]  # libraries are loaded before pytest
            code = pytest.main([*options, *tests], plugins=[failed])
            answer = failed.name or ("" if code == 0 else "start")
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    end, answer = time.monotonic() + 6 * SECONDS, "time"
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            answer = os.read(reading, 1000).decode()
            break
        time.sleep(0.05)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(reading)
    return answer


def try_mutants(place: Path, room: str, number: int, seed: int) -> None:
    """Try mutants by lot, keep what alone finds one, and print what was found."""
    worth = json.loads((place / "worth.json").read_text())
    kept, seconds = set(worth["kept"]), worth["seconds"]
    runs: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, files in worth["lines"].items():
        for file, lines in files.items():
            for line in lines:
                runs[file, line].append(name)
    everything = [mutant for mutant in list_mutants(room) if runs[mutant[0], mutant[2]]]
    mutants = random.Random(seed).sample(everything, min(number, len(everything)))
    for library in ("hypothesis", "scipy.sparse", "sklearn.naive_bayes", "yaml", "aiosmtpd.smtp"):
        importlib.import_module(library)
    for file in {mutant[0] for mutant in mutants}:
        if who := run_mutant(file, None, [next(iter(kept & {*worth["lines"]}))]):
            raise SystemExit(f"{file}: {who} fails without any mutant")
    found_by: Counter[str] = Counter()
    added: set[str] = set()
    for count, (file, node, line, what) in enumerate(mutants, 1):
        names = sorted(runs[file, line], key=lambda name: seconds.get(name, 0))
        who = ""
        for label, group in (
            ("kept", [name for name in names if name in kept]),
            ("others", [name for name in names if name not in kept]),
        ):
            total = itertools.accumulate(seconds.get(name, 0.0) for name in group)
            quick = [name for name, end in zip(group, total, strict=True) if end < SECONDS]
            if who := run_mutant(file, node, quick or group[:1]):
                found_by[label] += 1
                if label == "others" and who in worth["lines"]:
                    kept.add(who)
                    added.add(who)
                break
        else:
            found_by["nobody"] += 1
        print(f"{count:>4} {file}:{line} {what}: {who or 'not found'}", flush=True)
    print(room, len(everything), "mutants, tried", len(mutants), dict(found_by))
    result = {"room": room, "found": found_by, "added": sorted(added)}
    (place / f"mutants.{room}.json").write_text(json.dumps(result, indent=1))


def main() -> None:
    """Parse the command line and run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("cover")
    first.add_argument("place", type=Path)
    first.add_argument("tests", nargs="*")
    second = commands.add_parser("mutants")
    second.add_argument("place", type=Path)
    second.add_argument("room")
    second.add_argument("--number", type=int, default=200)
    second.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.command == "cover":
        cover(options.place.resolve(), options.tests)
    else:
        try_mutants(options.place.resolve(), options.room, options.number, options.seed)


if __name__ == "__main__":
    main()
