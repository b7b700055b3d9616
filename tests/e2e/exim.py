"""A real Exim for a test, with its own configuration and queue, on loopback, made from the snippets
of config/exim.

It takes mail for example.net and puts it into the Maildirs of anna and ben. Needs root, and an Exim
that is installed or unpacked.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.support.recipes import program, snippet
from tests.support.waiting import COMMAND_SECONDS, PATIENCE

USER = "Debian-exim"
PROGRAM = program("exim4", "exim4-daemon-light")

_CONFIGURATION = """exim_path = {program}
spool_directory = {root}/spool
log_file_path = {root}/spool/%slog
pid_file_path = {root}/exim.pid
primary_hostname = mx.example.net
domainlist local_domains = example.net
domainlist relay_to_domains =
acl_smtp_rcpt = check
deliver_drop_privilege
never_users =
keep_environment =
tls_advertise_hosts =
chunking_advertise_hosts =
{main}
begin acl
check:
  accept domains = +local_domains
  deny
begin routers
{router}
local:
  driver = accept
  domains = +local_domains
  transport = maildir
begin transports
{transport}
maildir:
  driver = appendfile
  maildir_format
  directory = {root}/mail/${{if eq{{$local_part}}{{anna}}{{anna}}{{ben}}}}{junk}
begin retry
* * F,1h,1s
"""


@dataclass(frozen=True, slots=True)
class Exim:
    """A running Exim."""

    root: Path
    port: int

    def delivered(self, user: str, count: int, seconds: float = 30) -> list[bytes]:
        """A user's messages, oldest first; waits until there are `count`."""
        until = time.monotonic() + seconds
        while (
            len(
                found := sorted(
                    (self.root / "mail" / user / "new").glob("*"),
                    key=lambda path: path.stat().st_mtime_ns,
                )
            )
            < count
        ):
            assert time.monotonic() < until, (
                f"{len(found)} of {count} messages came; the log ends:\n{self.log()[-4000:]}"
            )
            time.sleep(0.05)
        return [path.read_bytes() for path in found]

    def log(self) -> str:
        """Its log so far."""
        return "".join(
            path.read_text(errors="replace")
            for path in sorted((self.root / "spool").glob("*log"))
            if path.is_file()
        )

    def command(self, *arguments: str) -> str:
        """The output of the program with this configuration."""
        line = [str(PROGRAM), "-C", str(self.root / "exim.conf"), *arguments]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def running(filter_port: int, back_port: int, junk: str = "") -> Iterator[Exim]:
    """An Exim that has spamguard at filter_port, and takes mail back at back_port. junk: added to
    the Maildir's path, such as for a folder below it.
    """
    with open_directory() as root:
        exim = Exim(root, free_port())
        for name in ("spool", "mail"):
            (root / name).mkdir()
            shutil.chown(root / name, USER, USER)
        listens = {
            "::0 ; 0.0.0.0": f"127.0.0.1.{exim.port}",
            "127.0.0.1.10026": f"127.0.0.1.{back_port}",
        }
        parts = {
            "main": snippet("exim/main.conf", **listens),
            "router": snippet("exim/router.conf", **{"{10026}": f"{{{back_port}}}"}),
            "transport": snippet(
                "exim/transport.conf", **{"port = 10025": f"port = {filter_port}"}
            ),
        }
        (root / "exim.conf").write_text(
            _CONFIGURATION.format(root=root, program=PROGRAM, junk=junk, **parts)
        )
        process = subprocess.Popen(
            [str(PROGRAM), "-C", root / "exim.conf", "-bdf", "-q1s"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_port(exim.port)
            yield exim
        finally:
            process.terminate()
            process.wait(PATIENCE)
