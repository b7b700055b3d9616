"""People's mail is opened by a process that parses nothing, for one that may open nothing; either
may die and come back.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from spamguard.folders import broker
from tests.e2e import daemon
from tests.e2e.daemon import COMMAND, ENVIRONMENT
from tests.e2e.moving import all_seen, said
from tests.e2e.ports import free_port, open_directory
from tests.support.processes import children
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually
from tests.unit.folders.maildirs import deliver, maildir

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give mailboxes to others")
OPENER, OWNER = "nobody", pwd.getpwnam("daemon")  # whoever opens, and whose mail it is
READS_ANYTHING = 1 << 2  # CAP_DAC_READ_SEARCH
RIGHT_TO_READ = (
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)
MAIL = (
    "Message-ID: <{0}@x.example>\nFrom: Anna <anna@x.example>\nSubject: number {0}\n\n"
    "lantern glacier orchid\n"
)


def another_user() -> str:
    """Whom to run the daemon as: without any rights, where this interpreter can be run by others;
    else as who we are.
    """
    try:
        subprocess.run(
            [sys.executable, "-c", ""],
            user="games",
            group="games",
            extra_groups=[],
            check=True,
            cwd="/",
        )
    except PermissionError:
        return ""
    return "games"


@dataclass
class Place:
    """A site: the configuration, and the mailbox of somebody else."""

    directory: Path
    port: int
    user: str

    def __post_init__(self) -> None:
        self.state = self.directory / "state"
        self.box = self.directory / "home" / "anna" / "Maildir"
        self.file = self.directory / "spamguard.yaml"
        self.log = self.directory / "opener.log"
        self.socket = self.directory / "run" / "mailboxes.sock"

    def configure(self, *others: str) -> None:
        settings = {
            "state": str(self.state),
            "user": self.user,
            "watch_socket": str(self.socket),
            "watch": [{"maildir": one} for one in (f"{self.directory}/home/*/Maildir", *others)],
            "listeners": [
                {
                    "listen": f"smtp://127.0.0.1:{self.port}",
                    "position": "standalone",
                    "next_hop": f"maildir:{self.state}/Maildir",
                }
            ],
        }
        self.file.write_text(yaml.safe_dump(settings))

    def give(self) -> None:
        """All mail belongs to its owner alone, as it should."""
        for path in (self.box.parent, *self.box.parent.rglob("*")):
            os.chown(path, OWNER.pw_uid, OWNER.pw_gid)
            path.chmod(0o700 if path.is_dir() else 0o600)

    @contextmanager
    def opening(self, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
        """`spamguard open-mailboxes` with the rights of its unit, ended by SIGTERM unless it was
        killed. before: words before the command.
        """
        self.socket.unlink(missing_ok=True)
        command = [*before, *COMMAND, "open-mailboxes", "--config", str(self.file)]
        if os.getuid() == 0:
            self.socket.parent.mkdir(exist_ok=True)
            shutil.chown(self.socket.parent, OPENER)
            command = [*_as(OPENER, *RIGHT_TO_READ), *command]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=ENVIRONMENT, stderr=log)
        try:
            eventually(lambda: self.socket.exists() or process.poll() is not None, "it listens")
            assert process.poll() is None, self.log.read_text()
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(PATIENCE) == 0, self.log.read_text()
        finally:
            process.kill()
            process.wait()

    def logged(self, text: str, count: int = 1) -> None:
        eventually(
            lambda: self.log.read_text().count(text) >= count,
            f"the opener says {text!r} {count} times",
        )

    def move(self, folder: str, to: str, count: int = 1) -> None:
        for message in sorted((self.box / folder / "cur").iterdir())[:count]:
            message.rename(self.box / to / "cur" / message.name)


@pytest.fixture
def place(taught: Path) -> Iterator[Place]:
    with open_directory() as directory:
        found = Place(directory, free_port(), another_user())
        shutil.copytree(taught, found.state)
        if found.user:
            for path in (found.state, *found.state.rglob("*")):
                shutil.chown(path, found.user, found.user)
        maildir(found.box, ".Junk")
        for number in range(10):
            deliver(found.box, MAIL.format(number).encode(), "cur", "S")
        if os.getuid() == 0:
            found.give()
        found.configure()
        yield found


def capabilities(process: int) -> dict[str, int]:
    text = Path(f"/proc/{process}/status").read_text()
    return {
        line[:6]: int(line.split()[1], 16) for line in text.splitlines() if line.startswith("Cap")
    }


@needs_root
def test_it_runs_as_anybody_but_root_and_loads_no_parser(place: Place) -> None:
    command = [*COMMAND, "open-mailboxes", "--config", str(place.file)]
    done = subprocess.run(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 2
    assert b"will not run as root" in done.stderr
    with place.opening() as process:
        place.logged("opening messages of")
        found = capabilities(process.pid)
        assert found["CapEff"] == found["CapPrm"] == found["CapBnd"] == READS_ANYTHING
        assert "numpy" not in Path(f"/proc/{process.pid}/maps").read_text()


@needs_root
def test_moving_teaches_a_daemon_that_may_read_nothing(place: Place) -> None:
    """And goes on to, whoever dies."""
    with daemon.running(
        place.state, "--config", str(place.file), port=place.port, log=place.directory / "log"
    ) as running:
        running.lines("no mailbox broker there")
        with place.opening() as opener:
            all_seen(place.state, place.box, 10)
            place.move("", ".Junk")
            eventually(lambda: said(place.state) == {"anna": "spam"}, "the move is learnt")
            opener.kill()
            opener.wait()
        place.move("", ".Junk")
        running.lines("no mailbox broker there", 2)
        with place.opening():
            eventually(
                lambda: said(place.state) == {"anna": "spam spam"},
                "what was moved meanwhile is learnt",
            )
            place.move("", ".Junk")
            eventually(
                lambda: said(place.state) == {"anna": "spam spam spam"}, "and what is moved now"
            )
    again = daemon.running(
        place.state, "--config", str(place.file), port=place.port, log=place.directory / "log"
    )
    with place.opening(), again as running:
        place.move("", ".Junk")
        eventually(
            lambda: said(place.state) == {"anna": "spam spam spam spam"},
            "the daemon may go and come back, too",
        )
        if place.user:
            assert {capabilities(one)["CapEff"] for one in children(running.process.pid)} == {0}
    assert "Traceback" not in place.log.read_text()
    assert "Traceback" not in (place.directory / "log").read_text()


@needs_root
def test_only_root_and_the_user_of_the_daemon_may_ask(place: Place) -> None:
    ask = (
        "import socket, sys; one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1]); "
        "sys.stdout.buffer.write(one.recv(1000))"
    )
    python = (
        shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    )  # one that others can run
    shutil.chown(place.state, "games")
    place.user = ""
    place.configure()
    with place.opening():
        for user, may in (("games", True), ("root", True), ("nobody", False), ("daemon", False)):
            asking = [python, "-c", ask, str(place.socket)]
            done = subprocess.run(
                asking,
                user=user,
                extra_groups=[],
                capture_output=True,
                check=True,
                timeout=COMMAND_SECONDS,
                cwd="/",
            )
            assert _welcomes(done.stdout) is may, (user, done.stdout)
        place.logged(f"uid {OWNER.pw_uid} is refused: only root")


def _welcomes(line: bytes) -> bool:
    with suppress(OSError):
        return bool(broker.unpack_answer(line))
    return False


def test_a_flood_of_connections_and_nonsense(place: Place) -> None:
    with place.opening() as opener:
        held = []
        for _ in range(40):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(PATIENCE)
            one.connect(str(place.socket))
            held.append(one)
        assert sum(_welcomes(one.recv(1000)) for one in held) == 16
        for number, one in enumerate(held):
            with suppress(OSError):
                one.send(os.urandom(number * 50 + 1))
            one.close()
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(PATIENCE)
                one.connect(str(place.socket))
                if _welcomes(one.recv(1000)):
                    break
            assert time.monotonic() < until
        assert opener.poll() is None
    assert "Traceback" not in place.log.read_text()


CONFINED = (sys.executable, str(daemon.ROOT / "tests/support/confined.py"))
REFUSED = ("not permitted", "Permission denied", "Bad system call", "Traceback")


@needs_root
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)
def test_both_work_within_the_bounds_of_their_units(place: Place) -> None:
    """Each with what its unit leaves it of capabilities and system calls: a filter is made, mail
    comes, moves teach, all is reloaded.
    """
    units = daemon.ROOT / "systemd"
    if not place.user:
        place.user = "root"  # this interpreter is for root only
        place.configure()
    opener = (*CONFINED, str(units / "spamguard-watch.service"))
    ours = (
        *_as(place.user, "--inh-caps=-all", "--bounding-set=-all"),
        *CONFINED,
        str(units / "spamguard.service"),
    )
    shutil.rmtree(place.state)
    place.state.mkdir()
    shutil.chown(place.state, place.user)
    log = place.directory / "log"
    log.touch()
    shutil.chown(log, place.user)
    with (
        place.opening(opener) as one,
        daemon.running(
            place.state, "--config", str(place.file), port=place.port, log=log, before=ours
        ) as two,
    ):
        for process in (one.pid, two.process.pid, *children(two.process.pid)):
            assert "Seccomp:\t2\n" in Path(f"/proc/{process}/status").read_text()
        all_seen(place.state, place.box, 10)
        with smtplib.SMTP("127.0.0.1", place.port) as client:
            for number in range(100, 110):
                client.sendmail("a@x.example", ["anna@x.example"], MAIL.format(number))
        delivered = [path for path in (place.state / "Maildir").rglob("*") if path.is_file()]
        assert len(delivered) == 10
        assert all(b"X-Spamguard: " in path.read_bytes() for path in delivered)
        place.move("", ".Junk", 5)
        eventually(
            lambda: said(place.state) == {"anna": " ".join(["spam"] * 5)}, "the moves are learnt"
        )
        place.configure(f"{place.directory}/more/*/Maildir")
        two.process.send_signal(signal.SIGHUP)
        two.lines("serving", 2)
        place.logged("more/*/Maildir for clients")
    said_both = two.log() + place.log.read_text()
    assert [line for line in said_both.splitlines() if any(word in line for word in REFUSED)] == []


def _as(name: str, *capabilities: str) -> tuple[str, ...]:
    """As systemd starts a service of theirs."""
    user = pwd.getpwnam(name)
    return (
        "setpriv",
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
        "--no-new-privs",
        *capabilities,
    )
