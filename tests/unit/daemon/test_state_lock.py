"""A second daemon on one state directory gets an error; and nothing that a daemon leaves behind
keeps the next one from starting.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.daemon import status
from spamguard.engine.filter import Filter
from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE
from tests.unit.daemon.conftest import Daemon

pytestmark = pytest.mark.slow


@pytest.fixture
def second(daemon: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """Another one, which has not been started, on the state directory of the first."""
    place = tmp_path / "second"
    place.mkdir()
    one = Daemon(place)
    yield one
    one.end()


def refused(second: Daemon, first: Daemon) -> bool:
    assert second.process is not None
    assert second.process.wait(PATIENCE) == 2
    return f"{first.place}/state: another daemon runs on it: stop " in second.log()


def test_a_second_daemon_gets_an_error_and_the_first_serves_on(
    daemon: Daemon, second: Daemon
) -> None:
    daemon.start()
    second.configure([free_port()], state=str(daemon.place / "state"))
    second.start(wait=False)
    assert refused(second, daemon)
    with daemon.client() as client:
        assert client.ask("still here") == "still here"
    with Filter.open(daemon.place / "state") as beside:  # as commands do
        assert beside.learn(b"Subject: one\n\ntext\n", "ham")


def test_where_files_cannot_be_locked_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", without)
    status.lock_state(tmp_path).close()
    (tmp_path / status.LOCK_FILE).unlink()
    (tmp_path / status.LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    status.lock_state(tmp_path).close()
    assert caplog.text.count("cannot be locked") == 2
    assert not (tmp_path / "elsewhere").exists()
