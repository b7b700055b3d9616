"""Unpack archives with any Python: extraction filters came with 3.11.4, and Python 3.12 warns
without one.
"""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, place: Path) -> None:
    """Unpack into a directory that exists."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(place)
