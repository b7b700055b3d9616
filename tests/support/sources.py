"""The files of the project, by git or, in an unpacked source distribution, without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PLACES = (".ci", ".github", "config", "corpora", "spamguard", "systemd", "tests")
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")
_MADE = {"__pycache__", "unpacked"}  # directories of what is made from the sources, or fetched


def sources(root: Path) -> list[str]:
    """Their names, relative to the root. Files that git does not ignore count even before they are
    committed.
    """
    found = _listed_by_git(root) if (root / ".git").exists() else None
    return sorted(_listed_by_walk(root) if found is None else found)


def _listed_by_git(root: Path) -> list[str] | None:
    """None: there is no git, or it fails."""
    line = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        found = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in found.split("\0") if name and (root / name).is_file()]


def _listed_by_walk(root: Path) -> list[str]:
    inside = [
        path
        for place in _PLACES
        for path in (root / place).rglob("*")
        if path.is_file() and path.suffix != ".so"
    ]
    names = [str(path.relative_to(root)) for path in inside if not _MADE & set(path.parts)]
    return names + [name for name in _FILES if (root / name).is_file()]
