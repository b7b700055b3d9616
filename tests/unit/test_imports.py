"""The drawing of who may import whom, kept true: imports run downwards only, and what is pure has no way to the world.

Looks at every import statement wherever it stands, those for type checkers apart: they are no dependency of the running program.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "spamguard"

# From the top down: a layer imports those below it, never one above, never a neighbour on its own line.
LAYERS = (
    ("cli",),
    ("daemon", "doctor"),
    ("bulk", "backup", "moving_in", "corpus", "evaluation", "doors", "web", "folders", "metrics"),
    ("proxy", "remembered", "renewal", "supposing", "undo"),
    ("engine", "config"),
    ("prepare", "model", "quarantine"),
    ("ledger", "relay", "sources", "secret", "history", "teaching", "reception"),
    ("policy", "explained", "mail", "bayes", "framed", "packed", "ages", "sqlitefile", "unixsocket", "ids", "spool", "signature", "wire"),
    (
        "batches",
        "errors",
        "records",
        "settings",
        "lately",
        "timed",
        "log",
        "kernel",
        "owner",
        "hostname",
        "files",
        "installed",
        "memory",
        "times",
    ),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ABOVE_ALL = ("__init__", "__main__")  # the package's own two files, which only pass on
APART = {"doors": {"bayes", "ledger"}}  # allowed by rank, forbidden all the same
PURE = ("mail", "bayes", "ids", "policy", "signature", "wire")
FILES = ("io", "os", "pathlib", "shutil", "sqlite3", "tempfile")
OTHERS = ("asyncio", "datetime", "logging", "multiprocessing", "random", "secrets", "socket", "subprocess", "threading", "time")
WORLD = frozenset((*FILES, *OTHERS))
HEAVY = frozenset(("sklearn", "scipy", "matplotlib", "tqdm", "pandas"))
ESTIMATORS = frozenset(("bernoulli", "categorical", "estimator_base", "gaussian", "multinomial"))  # of bayes, imported when asked for


def imports(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every module that is imported, as its path; of `from a import b` both a and, as it may be a module, b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else ()
            start = (*base, *(node.module or "").split(".")) if node.module else base
            yield from ((*start, alias.name) for alias in node.names)
        else:
            yield from imports(node, module)


def faults(module: tuple[str, ...], source: str) -> Iterator[str]:
    """What a module may not import, in words. module: path inside the package, such as ("mail", "split")."""
    here = module[0]
    for target in imports(ast.parse(source), ("spamguard", *module)):
        where = f"{'.'.join(module)} imports {'.'.join(target)}"
        if target[0] == "spamguard":
            yield from _faults_inside(here, target[1:], where)
        elif here in PURE and target[0] in WORLD:
            yield f"{where}: {here} is pure"
        elif here == "bayes" and target[0] in HEAVY and module[-1] not in ESTIMATORS:
            yield f"{where}: only estimators need it"


def _faults_inside(here: str, target: tuple[str, ...], where: str) -> Iterator[str]:
    there = target[0]
    if here in ABOVE_ALL or there == here or there not in RANKS:
        return  # a name of the package itself, such as its version
    if RANKS[here] >= RANKS[there]:
        yield f"{where}: upwards or sideways"
    elif there in APART.get(here, ()):
        yield f"{where}: only by way of the engine"


def modules() -> list[tuple[tuple[str, ...], str]]:
    found = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).with_suffix("").parts, path.read_text(encoding="utf-8")) for path in found]


def test_imports_run_downwards_only() -> None:
    assert len(modules()) > 40
    assert [fault for module, source in modules() for fault in faults(module, source)] == []


def test_every_part_of_the_package_has_its_layer() -> None:
    assert {module[0] for module, _ in modules()} - set(ABOVE_ALL) <= set(RANKS)


def other_doors(module: tuple[str, ...], source: str, doors: set[str]) -> set[str]:
    """Which other doors this module of a door imports. A door is a module or a package directly below `doors`."""
    targets = {
        target[2] for target in imports(ast.parse(source), ("spamguard", *module)) if target[:2] == ("spamguard", "doors") and target[2:]
    }
    return (targets & doors) - {module[1]}


def test_doors_do_not_know_each_other() -> None:
    found = [(module, source) for module, source in modules() if module[0] == "doors" and module[1] != "__init__"]
    doors = {module[1] for module, _ in found}
    assert "smtp" in doors
    assert [(module, others) for module, source in found if (others := other_doors(module, source, doors))] == []


def test_a_door_that_knows_another_is_found() -> None:
    doors = {"smtp", "milter"}
    inside = "from spamguard.doors.smtp import dialogue\nfrom spamguard.doors.smtp.lines import Lines\nfrom .patience import Patience"
    assert other_doors(("doors", "smtp", "session"), inside, doors) == set()
    for source in ("from spamguard.doors import milter", "import spamguard.doors.milter.frames", "from ..milter import frames"):
        assert other_doors(("doors", "smtp", "session"), source, doors) == {"milter"}
    assert other_doors(("doors", "milter"), "from spamguard.doors.smtp.lines import Lines", doors) == {"smtp"}


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("mail.split", "import os", "mail is pure"),
        ("mail.split", "def f():\n    if True:\n        from time import sleep", "mail is pure"),
        ("bayes.tables", "from os.path import join", "bayes is pure"),
        ("bayes.tables", "import sklearn.base", "only estimators"),
        ("bayes.tables", "from scipy import sparse", "only estimators"),
        ("bayes.tables", "from spamguard.mail import split", "upwards or sideways"),
        ("bayes.tables", "from spamguard import engine", "upwards or sideways"),
        ("bayes.tables", "from ..engine import Filter", "upwards or sideways"),
        ("ledger.sqlite", "import spamguard.model.store", "upwards or sideways"),
        ("errors", "from spamguard.records import Vote", "upwards or sideways"),
        ("doors.smtp", "from spamguard.ledger import SqliteLedger", "by way of the engine"),
        ("doors.smtp", "from spamguard.web import pages", "upwards or sideways"),
        ("policy", "try:\n    import logging\nexcept ImportError:\n    pass", "policy is pure"),
    ],
)
def test_a_violation_is_found(module: str, source: str, told: str) -> None:
    (fault,) = faults(tuple(module.split(".")), source)
    assert told in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mail.split", "from hashlib import blake2b\nfrom spamguard.mail.limits import Limits\nfrom spamguard.records import Features"),
        ("mail.split", "from .limits import Limits"),
        ("bayes.gaussian", "import sklearn"),
        ("mail.split", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os"),
        ("cli.judge", "from spamguard import __version__\nfrom spamguard.ledger import SqliteLedger\nimport time"),
        ("__init__", "from spamguard.engine import Filter"),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    assert list(faults(tuple(module.split(".")), source)) == []


def test_judging_never_loads_what_only_estimators_and_plots_need(tmp_path: Path) -> None:
    code = (
        "import sys, spamguard\n"
        "with spamguard.Filter.open(sys.argv[1], bits=12) as one:\n"
        "    one.learn(b'Subject: x\\n\\nbuy', 'spam'); one.settle(); one.judge(b'x'); one.explain(b'y')\n"
        f"print(sorted({set(HEAVY)!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == "[]\n"


def test_the_library_is_what_its_first_page_says() -> None:
    import spamguard

    assert set(spamguard.__all__) == {"Filter", "__version__"}
    with pytest.raises(AttributeError, match="nothing"):
        spamguard.nothing  # noqa: B018
