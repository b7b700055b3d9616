"""A service process of the master, such as the learner: it is restarted with pauses and ends with
the master.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard import process
from spamguard.config.options import Settings
from spamguard.daemon.children import FIRST_PAUSE, Service
from tests.support.processes import alive, children
from tests.support.waiting import eventually
from tests.unit.daemon.conftest import Daemon
from tests.unit.folders.maildirs import deliver, maildir, move

pytestmark = pytest.mark.slow

SETTINGS = Settings(Path("/nowhere"), ())


@pytest.fixture
def service(
    selector: selectors.BaseSelector,
) -> Iterator[Service]:
    service = Service("sleeper", selector)
    service.module = "tests.unit.daemon.sleeper"
    yield service
    service.end()


def running(service: Service) -> int:
    service.maintain()
    (child,) = service.children
    return child.process.pid


def test_it_is_restarted_with_growing_pauses(service):
    service.begin(SETTINGS)
    pauses = []
    for _ in range(3):
        eventually(lambda: service.next_start() == 0 or service.children)
        killed = running(service)
        os.kill(killed, signal.SIGKILL)
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
        service.maintain()
        assert not service.children
        pauses.append(service.next_start())
    assert pauses == pytest.approx([FIRST_PAUSE * each for each in (1, 2, 4)], abs=0.1)
    time.sleep(service.next_start())
    assert alive(running(service))


def test_its_request_to_settle_is_received(service, selector):
    service.begin(SETTINGS)
    running(service)

    def heard() -> bool:
        for key, _ in selector.select(0.1):
            key.data()
        return service.settling_due

    eventually(heard)


def test_one_that_stops_listening_is_killed(service, selector):
    service.begin(SETTINGS)
    pid = running(service)
    selector.select(20)  # it has said its word, so it runs
    os.kill(pid, signal.SIGSTOP)
    service.end()
    assert not alive(pid)


def test_a_failing_start_is_logged_once_and_retried_with_growing_pauses(
    service, monkeypatch, caplog
):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(process, "start_process", refused)
    service.begin(SETTINGS)
    pauses = []
    for _ in range(3):
        eventually(lambda: service.next_start() == 0)
        service.maintain()
        pauses.append(service.next_start())
    assert pauses == pytest.approx([FIRST_PAUSE * each for each in (1, 2, 4)], abs=0.1)
    assert caplog.text.count("cannot start the sleeper") == 1


def learners(daemon: Daemon) -> list[int]:
    """Children of the master that learn."""
    daemon.workers()  # which remembers them, to leave none behind
    return children(daemon.pid, "spamguard.daemon.learner")


def test_the_learner_runs_under_the_master_and_ends_with_it(daemon, tmp_path):
    box = maildir(tmp_path / "mail" / "anna", ".Junk")
    message = deliver(box, b"Subject: x\n\nbuy")
    daemon.configure(watch=[f"{tmp_path}/mail/*"], workers=1)
    daemon.start()
    daemon.logged("seen for the first time")
    move(message, box / ".Junk")
    daemon.logged("lesson user=anna from='INBOX' to='Junk' class=spam")
    (first,) = learners(daemon)
    os.kill(first, signal.SIGKILL)
    daemon.logged("SIGKILL: replaced")
    eventually(lambda: learners(daemon) not in ([], [first]))
    (second,) = learners(daemon)
    assert daemon.process is not None
    daemon.process.kill()
    daemon.process.wait()
    eventually(lambda: not alive(second))
    assert "Traceback" not in daemon.log()
