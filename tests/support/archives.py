"""Archives, unpacked by any Python: filters came with 3.11.4, and from 3.12 on it warns where none
is named.
"""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, place: Path) -> None:
    """Into a directory that is there."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(place)
