"""Whether the daemon's user can read the mailboxes; some cases need root."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.config.options import Endpoint, Hop, Listener, Position, Protocol, Settings, Watch
from spamguard.doctor import StepOutcome
from tests.e2e.ports import open_directory
from tests.unit.folders.maildirs import deliver, maildir

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give mailboxes to others")
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def place() -> Iterator[Path]:
    """Where others get through: pytest's own directories they do not, as each run of it that begins
    sees to.
    """
    with open_directory() as found:
        for name in ("anna", "ben"):
            deliver(maildir(found / "home" / name), b"x", "cur")
        yield found


def settings(place: Path, **others: object) -> Settings:
    listener = Listener(
        Endpoint(Protocol.SMTP, "127.0.0.1", 25),
        Position.STANDALONE,
        Hop(Endpoint(Protocol.MAILDIR, path=place / "none")),
    )
    return Settings(place / "state", (listener,), watch=(Watch(f"{place}/home/*"),), **others)


@needs_root
@pytest.mark.parametrize("closed", ["home/anna", "home/anna/cur", "home/anna/cur/*"])
def test_what_the_user_cannot_read(place: Path, closed: str) -> None:
    assert doctor.check_access(settings(place), NOBODY) == doctor.MailboxAccess(
        [f"{place}/home/anna", f"{place}/home/ben"]
    )
    next(place.glob(closed)).chmod(0o600)
    step = doctor.check_mailboxes(settings(place), NOBODY)
    assert step.outcome is StepOutcome.FAILED
    assert step.detail == (
        f"1 of 2 mailboxes cannot be read by nobody, such as {place}/home/anna: moving mail "
        "there teaches nothing"
    )
    assert "spamguard-watch.service" in step.remedy
    assert os.geteuid() == 0


def test_where_nothing_is_a_maildir(place: Path) -> None:
    """`/home/*` instead of `/home/*/Maildir`, or mbox files: all was said to be well, and no move
    ever taught.
    """
    account = pwd.getpwuid(os.getuid())
    for name in ("anna", "ben"):
        (place / "home" / name).rename(place / f"Maildir-{name}")
        (place / "home" / name).mkdir()
    assert doctor.check_access(settings(place), account) == doctor.MailboxAccess(
        [f"{place}/home/anna", f"{place}/home/ben"],
        (
            "no directory that `watch` names is a Maildir, with `cur` in it, such as "
            f"{place}/home/anna: moving mail there teaches nothing",
            doctor.MAILDIR_REMEDY,
        ),
    )
    (place / "Maildir-anna").rename(place / "home/anna/Maildir")
    step = doctor.check_mailboxes(settings(place), account)
    assert (step.outcome, step.remedy) == (StepOutcome.FAILED, doctor.MAILDIR_REMEDY)
    (place / "Maildir-ben").rename(place / "home/ben/.INBOX")
    assert doctor.check_mailboxes(settings(place), account).outcome is StepOutcome.OK


def test_mailboxes_that_are_yet_to_come(tmp_path: Path) -> None:
    step = doctor.check_mailboxes(settings(tmp_path), pwd.getpwuid(os.getuid()))
    assert step.outcome is StepOutcome.SKIPPED


def test_a_socket_without_listener(place: Path) -> None:
    step = doctor.check_mailboxes(settings(place, watch_socket=place / "none.sock"), NOBODY)
    assert step.outcome is StepOutcome.FAILED
    assert "no mailbox broker there" in step.detail
    assert step.remedy == "systemctl status spamguard-watch"
