"""A real OpenSMTPD for a test, with its own configuration, queue and accounts, on loopback, made
from the snippet of config/opensmtpd.

It takes mail for example.net, and sends mail that spamguard returns to one next hop. Needs root
that may mount, because its paths and accounts are compiled in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.ports import open_directory, wait_for_port
from tests.support.recipes import program, snippet
from tests.support.waiting import COMMAND_SECONDS

PROGRAM = program("smtpd", "opensmtpd")
_ACCOUNTS = {"opensmtpd": 64001, "opensmtpq": 64002}

_CONFIGURATION = """listen on 127.0.0.1 port {port}
action "local_mail" relay host smtp+notls://127.0.0.1:{hop}
{snippet}
"""

_BEGINNING = """set -e
for place in /run /var/spool /var/lib; do mount -t tmpfs none $place; done
mkdir -p -m 711 /var/spool/smtpd /var/lib/opensmtpd/empty
for file in passwd group; do mount --bind {root}/$file /etc/$file; done
exec {program} -d -f {root}/smtpd.conf
"""


def runs() -> bool:
    """Whether it can be had here."""
    if PROGRAM is None or os.getuid() != 0 or shutil.which("unshare") is None:
        return False
    trying = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        subprocess.run(trying, capture_output=True, timeout=COMMAND_SECONDS, check=False).returncode
        == 0
    )


@contextmanager
def running(port: int, filter_port: int, back_port: int, hop: int) -> Iterator[None]:
    """An OpenSMTPD that has spamguard at filter_port, takes mail back at back_port, and hands that
    on to `hop`: all are ports.
    """
    with open_directory() as root:
        places = {
            "10025": str(filter_port),
            "10026 tag": f"{back_port} tag",
            "for local": "for domain example.net",
        }
        configuration = _CONFIGURATION.format(
            port=port, hop=hop, snippet=snippet("opensmtpd/smtpd.conf", **places)
        )
        (root / "smtpd.conf").write_text(configuration)
        for name, form in (
            ("passwd", "{name}:x:{number}:{number}::/nonexistent:/bin/false\n"),
            ("group", "{name}:x:{number}:\n"),
        ):
            own = "".join(
                form.format(name=account, number=number) for account, number in _ACCOUNTS.items()
            )
            (root / name).write_text(Path("/etc", name).read_text() + own)
        line = ["unshare", "--mount", "sh", "-c", _BEGINNING.format(root=root, program=PROGRAM)]
        with subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                wait_for_port(port)
                yield
            finally:
                process.terminate()
