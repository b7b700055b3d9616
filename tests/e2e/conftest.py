"""A state directory for the real daemon, whose filter was taught mail of `corpora.synthetic`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import daemon
from tests.e2e.passing import ProxySite, passing


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return daemon.taught(tmp_path_factory.mktemp("taught") / "state")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The same for one test, to do with as it likes."""
    return daemon.taught(tmp_path / "state")


@pytest.fixture(scope="module")
def proxy_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxySite]:
    with passing(tmp_path_factory.mktemp("proxy")) as site:
        yield site


@pytest.fixture
def place(proxy_site: ProxySite) -> ProxySite:
    """As if nothing had passed yet."""
    return proxy_site.reset()
