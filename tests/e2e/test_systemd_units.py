"""The units: systemd accepts them and finds little exposed, and they agree with the program and its
configuration.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.cli import arguments, run
from tests.e2e.daemon import ROOT
from tests.support.confined import options
from tests.support.waiting import COMMAND_SECONDS

UNITS = ROOT / "systemd"
SERVICES = ("spamguard.service", "spamguard-watch.service")
INSTALLED = "/opt/spamguard/bin/spamguard"
CONFIGURATION = "/etc/spamguard/spamguard.yaml"
MOST_EXPOSED = 1.5
analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories to others")


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
        env={**os.environ, "SYSTEMD_COLORS": "0"},
    )


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A copy of the units with the path of this program, because systemd checks that it exists."""
    for name in (*SERVICES, "spamguard.socket"):
        (tmp_path / name).write_text((UNITS / name).read_text().replace(INSTALLED, sys.executable))
    return tmp_path


@analyze
def test_systemd_finds_no_fault(units: Path) -> None:
    done = ran("systemd-analyze", "verify", "--man=no", *sorted(units.iterdir()))
    about = [
        line for line in done.stderr.splitlines() if "spamguard" in line
    ]  # it speaks of the machine's other units, too
    assert (done.returncode, about) == (0, []), done.stderr


@analyze
@pytest.mark.parametrize("name", SERVICES)
def test_little_is_exposed(name: str) -> None:
    done = ran("systemd-analyze", "security", "--offline=true", "--no-pager", UNITS / name)
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) <= MOST_EXPOSED, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_the_units_start_commands_that_exist(name: str) -> None:
    (line,) = options(UNITS / name)["ExecStart"]
    program, *words = shlex.split(line)
    assert program == INSTALLED
    parsed = arguments.build_parser().parse_args(words)
    assert str(parsed.config) == CONFIGURATION
    assert options(UNITS / name)["RestartPreventExitStatus"] == [str(run.EXIT_CONFIG)]


@analyze
def test_a_reload_fails_when_the_file_has_mistakes(tmp_path: Path) -> None:
    """Within the bounds of its unit; of the signal alone systemd hears no answer."""
    name = "spamguard.service"
    check, signal = options(UNITS / name)["ExecReload"]
    assert signal == "kill -HUP $MAINPID"
    file = tmp_path / "spamguard.yaml"
    file.write_bytes((ROOT / "config/minimal.yaml").read_bytes())
    command = shlex.split(
        check.replace(INSTALLED, f"{sys.executable} -m spamguard").replace(CONFIGURATION, str(file))
    )
    confined = (sys.executable, ROOT / "tests/support/confined.py", UNITS / name)
    done = ran(*confined, *command)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    file.write_text("listeners: []\n")
    done = ran(*confined, *command)
    assert done.returncode != 0
    assert f"{file}:1" in done.stderr


@needs_root
@pytest.mark.skipif(
    shutil.which("systemd-tmpfiles") is None,
    reason="needs systemd-tmpfiles: apt-get install systemd",
)
def test_users_and_directories(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = ran("systemd-sysusers", f"--root={tmp_path}", UNITS / "sysusers.d/spamguard.conf")
    assert done.returncode == 0, done.stderr
    users = {
        line.split(":")[0]: line.split(":")
        for line in (tmp_path / "etc/passwd").read_text().splitlines()
    }
    assert {options(UNITS / name)["User"][0] for name in SERVICES} <= set(users)
    assert users["spamguard"][5] == "/var/lib/spamguard"
    done = ran(
        "systemd-tmpfiles", f"--root={tmp_path}", "--create", UNITS / "tmpfiles.d/spamguard.conf"
    )
    assert done.returncode == 0, done.stderr
    for path, user, mode in (
        ("lib/spamguard", "spamguard", 0o700),
        ("spool/spamguard/teach", "spamguard", 0o3733),
    ):
        found = (tmp_path / "var" / path).stat()
        assert (str(found.st_uid), stat.S_IMODE(found.st_mode)) == (users[user][2], mode)
