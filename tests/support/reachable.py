"""Directories that other users can reach. Permission bits do not bind root, so a child without root
tries what must be refused.
"""

from __future__ import annotations

import os
from pathlib import Path


def let_others_pass(directory: Path) -> Path:
    """Let everybody through to a directory of pytest's, which keeps them out of all of its own."""
    for one in (directory, *directory.parents):
        if one.stat().st_uid == os.getuid() and not one.stat().st_mode & 0o001:
            one.chmod(one.stat().st_mode | 0o011)
    return directory
