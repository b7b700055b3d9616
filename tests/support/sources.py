"""Which files the project consists of, with git or, in an unpacked source distribution, without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PLACES = (".ci", "config", "corpora", "spamguard", "systemd", "tests")
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")


def sources(root: Path) -> list[str]:
    """Their names, relative to the root. Files that git does not ignore count even before they are committed."""
    if (root / ".git").exists():
        line = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        found = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
        return sorted(name for name in found if (root / name).is_file())
    inside = [path for place in _PLACES for path in (root / place).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sorted([str(path.relative_to(root)) for path in inside] + [name for name in _FILES if (root / name).is_file()])
