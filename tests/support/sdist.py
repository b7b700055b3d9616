"""The source distribution with everything that the tests need; setuptools alone would leave most of
it out.

pyproject.toml names this module. Builders run it in an environment that has setuptools only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools.command import sdist

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # builders do not add it

from tests.support.sources import sources  # noqa: E402  needs the path


class SourceDistribution(sdist.sdist):
    """All sources, as they are."""

    def make_distribution(self) -> None:
        """Add our sources to the package, its metadata and its build files, which are listed
        already.
        """
        self.filelist.extend(sources(ROOT))
        self.filelist.sort()
        self.filelist.remove_duplicates()
        super().make_distribution()
