"""Whether the daemon's user can read the mailboxes; some cases need root."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.cli import main
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


def configuration(place: Path, watch: list[str], user: str, hop: str) -> Path:
    """A file with one listener."""
    listener = f"{{listen: 'smtp://127.0.0.1:10025', position: standalone, next_hop: '{hop}'}}"
    file = place / "spamguard.yaml"
    file.write_text(
        f"state: {place}/state\nuser: {user}\nwatch: {watch}\nlisteners: [{listener}]\n"
    )
    return file


@needs_root
@pytest.mark.parametrize("closed", ["home/anna", "home/anna/cur", "home/anna/cur/*"])
def test_what_the_user_cannot_read(place: Path, closed: str) -> None:
    assert doctor.check_access(settings(place), NOBODY) == doctor.MailboxAccess(
        [f"{place}/home/anna", f"{place}/home/ben"], []
    )
    next(place.glob(closed)).chmod(0o600)
    access = doctor.check_access(settings(place), NOBODY)
    assert access is not None
    assert access.unreadable == [f"{place}/home/anna"]
    step = doctor.check_mailboxes(settings(place), NOBODY)
    assert step.outcome is StepOutcome.FAILED
    assert step.detail == (
        f"1 of 2 mailboxes cannot be read by nobody, such as {place}/home/anna: moving mail "
        "there teaches nothing"
    )
    assert "spamguard-watch.service" in step.remedy
    assert os.geteuid() == 0


@pytest.mark.slow
@needs_root
def test_all_of_many_are_looked_at(place: Path) -> None:
    """The first thousand were, and the others said to be well."""
    for number in range(1200):
        (place / "home" / f"z{number}" / "cur").mkdir(parents=True)
    (place / "home/z999").chmod(0o700)
    access = doctor.check_access(settings(place), NOBODY)
    assert access is not None
    assert (len(access.paths), access.unreadable) == (1202, [f"{place}/home/z999"])


@needs_root
def test_members_of_the_group_may_read(place: Path) -> None:
    (group,) = set(os.getgrouplist("nobody", NOBODY.pw_gid)) - {0}
    os.chown(place / "home/anna", 0, group)
    (place / "home/anna").chmod(0o750)
    access = doctor.check_access(settings(place), NOBODY)
    assert access is not None
    assert access.unreadable == []


def test_a_mailbox_that_is_empty_or_not_whole(place: Path) -> None:
    maildir(place / "home" / "carl")
    (place / "home" / "dora").mkdir()
    access = doctor.check_access(settings(place), pwd.getpwuid(os.getuid()))
    assert access is not None
    assert (len(access.paths), access.unreadable) == (4, [])


def test_where_nothing_is_a_maildir(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`/home/*` instead of `/home/*/Maildir`, or mbox files: all was said to be well, and no move
    ever taught.
    """
    account = pwd.getpwuid(os.getuid())
    for name in ("anna", "ben"):
        (place / "home" / name).rename(place / f"Maildir-{name}")
        (place / "home" / name).mkdir()
    assert doctor.check_access(settings(place), account) == doctor.MailboxAccess(
        [f"{place}/home/anna", f"{place}/home/ben"],
        [],
        (
            "no directory that `watch` names is a Maildir, with `cur` in it, such as "
            f"{place}/home/anna: moving mail there teaches nothing"
        ),
    )
    (place / "Maildir-anna").rename(place / "home/anna/Maildir")
    step = doctor.check_mailboxes(settings(place), account)
    assert (step.outcome, step.remedy) == (StepOutcome.FAILED, doctor.MAILDIR_REMEDY)
    file = configuration(place, [f"{place}/home/*"], account.pw_name, "smtp://127.0.0.1:10026")
    assert main(["check", str(file)]) == 0
    assert "warning: no directory that `watch` names is a Maildir" in capsys.readouterr().err
    (place / "Maildir-ben").rename(place / "home/ben/.INBOX")
    assert doctor.check_mailboxes(settings(place), account).outcome is StepOutcome.OK


def test_mailboxes_that_are_yet_to_come(tmp_path: Path) -> None:
    step = doctor.check_mailboxes(settings(tmp_path), pwd.getpwuid(os.getuid()))
    assert (step.outcome, step.detail) == (
        StepOutcome.SKIPPED,
        f"there are none yet: nothing fits {tmp_path}/home/*",
    )


def test_a_pattern_that_matches_nothing_is_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in the path, and no move is ever learnt: `check` found nothing to say."""
    watch = [f"{place}/{name}" for name in ("home/*", "hmoe/*", "ours")]
    user = pwd.getpwuid(os.getuid()).pw_name
    file = configuration(place, watch, user, f"maildir:{place}/ours")
    assert main(["check", str(file)]) == 0
    told = (
        f"watch: nothing fits {place}/hmoe/* yet: until something does, moving mail there "
        "teaches nothing"
    )
    assert [line for line in capsys.readouterr().err.splitlines() if "fits" in line] == [
        f"spamguard: warning: {told}"
    ]


def test_a_socket_without_listener(place: Path) -> None:
    step = doctor.check_mailboxes(settings(place, watch_socket=place / "none.sock"), NOBODY)
    assert step.outcome is StepOutcome.FAILED
    assert "no mailbox broker there" in step.detail
    assert step.remedy == "systemctl status spamguard-watch"


@needs_root
def test_check_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configuration(place, [f"{place}/home/*"], "nobody", "smtp://127.0.0.1:10026")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""
    (place / "home/ben").chmod(0o700)
    assert main(["check", str(file)]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith(
        "spamguard: warning: 1 of 2 mailboxes cannot be read by nobody, such as "
        f"{place}/home/ben: moving mail there"
    )
    assert "spamguard-watch.service" in errors
    with file.open("a") as more:
        more.write("watch_socket: /run/spamguard-watch/mailboxes.sock\n")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""


@needs_root
def test_check_tells_of_files_that_the_user_cannot_read(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root starts the daemon with them, but as the user it cannot go on."""
    file, secret = place / "spamguard.yaml", place / "secret"
    file.write_text(
        f"state: {place}/state\nuser: nobody\nscanners: "
        f"[{{listen: 'rspamd://127.0.0.1:11333', password_file: {secret}}}]\n"
    )
    secret.write_text("geheim\n")
    why = (
        "cannot be read by nobody, whom the daemon runs as (Permission denied): give that "
        "user the right to, there and in the directories"
    )
    file.chmod(0o600)
    secret.chmod(0o600)
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr() == (
        "",
        f"spamguard: warning: {file}: {why} above it\nspamguard: {secret}: {why} above it\n",
    )
    file.chmod(0o644)
    os.chown(secret, NOBODY.pw_uid, 0)
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""


@needs_root
def test_check_tells_of_a_user_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        f"state: {tmp_path}/state\nuser: nosuchuser\nscanners: [{{listen: 'rspamd://127.0.0.1:11333'}}]\n"
    )
    assert main(["check", str(file)]) == 0
    told = "there is no user 'nosuchuser' on this machine: create it, or name another with `user`"
    assert capsys.readouterr().err == f"spamguard: warning: {told}\n"
