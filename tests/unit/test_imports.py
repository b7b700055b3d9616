"""The layers of the program: imports run downwards only, and pure rooms have no way to the world.

The order of rooms is that of the drawing in spamguard/README.md. Every import statement counts,
wherever it stands, except those for type checkers: they are no dependency of the running program.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "spamguard"

# From the bottom up, one line a room: a room imports the rooms above its line, never one below.
ROOMS = (
    "aio",
    "errors",
    "users",
    "records",
    "times",
    "times",
    "log",
    "storage",
    "status_file",
    "database",
    "native",
    "mail",
    "bayes",
    "config",
    "keys",
    "counters",
    "process",
    "sources",
    "ledger",
    "engine",
    "backup",
    "learning",
    "smtp",
    "delivery",
    "proxy",
    "servers",
    "folders",
    "imap",
    "shared",
    "web",
    "daemon",
    "doctor",
    "cli",
)
RANKS = {room: rank for rank, room in enumerate(ROOMS)}
OUTSIDE = ("__init__", "__main__")  # the package's own two files, which only pass calls on
FORBIDDEN = {"servers": {"bayes", "ledger"}}  # below, but reached by way of the engine only
PURE = (("mail",), ("bayes",), ("smtp",), ("engine", "policy"))
FILES = ("io", "os", "pathlib", "shutil", "sqlite3", "tempfile")
OTHERS = ("asyncio", "datetime", "logging", "multiprocessing", "random", "secrets")
PROCESSES = ("socket", "subprocess", "threading", "time")
WORLD = frozenset((*FILES, *OTHERS, *PROCESSES))
HEAVY = frozenset(("sklearn", "scipy", "matplotlib", "tqdm", "pandas"))
# Modules that may load them, or one another: none of them belongs to a process of the daemon.
HEAVY_MODULES = frozenset(
    (
        "bayes.naive_bayes",
        "bayes.estimators",
        "engine.measures",
        "engine.evaluate",
        "cli.evaluate",
    )
)
DRIVER_MODULES = ("shared.connection", "shared.admin")  # they alone load PostgreSQL's driver
DOORS = ("smtp", "milter", "rspamd", "spamd", "teach")  # prefixes of modules in `servers`


def imports(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield each imported module as its path; `from a import b` yields a.b, a module or a name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else ()
            start = (*base, *(node.module or "").split(".")) if node.module else base
            yield from ((*start, alias.name) for alias in node.names)
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from imports(node, module)


def faults(module: tuple[str, ...], source: str) -> Iterator[str]:
    """Yield each forbidden import in words. module: path in the package, as ("mail", "mime")."""
    pure = any(module[: len(path)] == path for path in PURE)
    for target in imports(ast.parse(source), ("spamguard", *module)):
        where = f"{'.'.join(module)} imports {'.'.join(target)}"
        if target[0] == "spamguard":
            yield from _inner_faults(module, target[1:], where)
        elif pure and target[0] in WORLD:
            yield f"{where}: {'.'.join(module)} is pure"
        elif target[0] in HEAVY - {"tqdm"} and ".".join(module) not in HEAVY_MODULES:
            yield f"{where}: it is heavy"
        elif target[0] == "tqdm" and module[0] != "cli":
            yield f"{where}: only the command line shows progress"
        elif target[0] == "psycopg" and ".".join(module) not in DRIVER_MODULES:
            yield f"{where}: mail never depends on the database"


def _inner_faults(module: tuple[str, ...], target: tuple[str, ...], where: str) -> Iterator[str]:
    room, other = module[0], target[0]
    if room in OUTSIDE or other not in RANKS:
        return  # a name of the package itself, such as its version
    if room == other and ".".join(target[:2]) not in HEAVY_MODULES:
        if room == "servers" and len(target) > 1 and door(target[1]) not in ("", door(module[-1])):
            yield f"{where}: doors do not know each other"
        return
    if RANKS[room] < RANKS[other]:
        yield f"{where}: upwards"
    elif ".".join(target[:2]) in HEAVY_MODULES and ".".join(module) not in HEAVY_MODULES:
        yield f"{where}: it is heavy"
    elif other in FORBIDDEN.get(room, ()):
        yield f"{where}: only by way of the engine"


def door(module: str) -> str:
    """Return the door that a module of `servers` belongs to, "" for what all doors share."""
    return next((name for name in DOORS if module.startswith(name)), "")


def modules() -> list[tuple[tuple[str, ...], str]]:
    return [
        (path.relative_to(PACKAGE).with_suffix("").parts, path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def test_imports_run_downwards_only() -> None:
    assert [fault for module, source in modules() for fault in faults(module, source)] == []


def test_every_room_has_its_line_and_every_line_its_room() -> None:
    assert {module[0] for module, _ in modules()} - set(OUTSIDE) == set(ROOMS)


def test_judging_never_loads_what_only_estimators_and_plots_need(tmp_path: Path) -> None:
    code = (
        "import sys, spamguard\n"
        "with spamguard.Filter.open(sys.argv[1], _bits=12) as one:\n"
        "    one.learn(b'Subject: x\\n\\nbuy', 'spam'); one.settle()\n"
        "    one.judge(b'x'); one.explain(b'y')\n"
        f"print(sorted({set(HEAVY)!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    assert done.stdout == "[]\n"


def test_only_the_page_loads_fastapi() -> None:
    """And only when it is opened."""
    modules = (
        *("daemon.master", "daemon.worker", "daemon.doors", "daemon.learner", "proxy.scorer"),
        "cli.ask",
        *("web.models", "web.numbers", "web.monitor", "daemon.web"),
    )
    names = ", ".join(f"spamguard.{module}" for module in modules)
    line = [sys.executable, "-c", f"import sys, {names}; print('fastapi' in sys.modules)"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == "False\n"


def test_a_worker_starts_its_scorers_before_it_loads_what_takes_long() -> None:
    code = (
        "import sys, spamguard.daemon.worker; "
        "print([name for name in ('numpy', 'aiosmtpd', 'h11') if name in sys.modules])"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "module",
    ["daemon.master", "daemon.doors", "daemon.learner", "daemon.settle", "daemon.web", "web.app",
     "proxy.scorer", "cli.run", "cli.status", "engine.filter"],
)  # fmt: skip
def test_a_single_machine_loads_nothing_of_the_shared_log(module: str) -> None:
    code = (
        f"import sys, spamguard.{module}; print([name for name in sys.modules if name in "
        "('psycopg', 'httpx') or name.startswith(('spamguard.shared', 'spamguard.ledger.shared'))])"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == "[]\n"


def test_the_library_is_what_its_first_page_says() -> None:
    import spamguard

    assert set(spamguard.__all__) == {"Filter", "__version__"}
    with pytest.raises(AttributeError, match="nothing"):
        spamguard.nothing  # noqa: B018  asking for it fails
