"""What pyproject.toml alone cannot say of the distributions: a source distribution with everything
that the tests need, and a pure wheel on request.

pyproject.toml names this module. Builders run it in an environment that has setuptools only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools.command import bdist_wheel, sdist

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


class Wheel(bdist_wheel.bdist_wheel):
    """A wheel with the compiled part, or a pure one if SPAMGUARD_KERNEL is "numpy", which leaves
    that part out of a running program too.
    """

    def finalize_options(self) -> None:
        """Choose before the tags are."""
        if os.environ.get("SPAMGUARD_KERNEL") == "numpy":
            self.distribution.ext_modules = None
        super().finalize_options()
