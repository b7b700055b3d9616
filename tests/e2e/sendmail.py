"""A real Sendmail for a test, with its own configuration and queue, on loopback, made from the
snippet of config/sendmail.

It sends all mail to one next hop. Needs root, for a host name of its own: Sendmail waits a minute
if the name has no dot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.support.recipes import UNPACKED, snippet
from tests.support.waiting import COMMAND_SECONDS

PROGRAM = UNPACKED / "sendmail-bin" / "usr" / "libexec" / "sendmail" / "sendmail"
_MACROS = UNPACKED / "sendmail-cf" / "usr" / "share" / "sendmail" / "cf"
RUNS = (
    PROGRAM.exists()
    and _MACROS.exists()
    and os.getuid() == 0
    and all(map(shutil.which, ("m4", "unshare")))
)

_CONFIGURATION = """include(`{macros}/m4/cf.m4')dnl
OSTYPE(`linux')dnl
define(`confDOMAIN_NAME', `mx.example.net')dnl
define(`confPID_FILE', `{root}/pid')dnl
define(`confSERVICE_SWITCH_FILE', `{root}/services')dnl
define(`confDONT_PROBE_INTERFACES', `true')dnl
define(`confDONT_BLAME_SENDMAIL', `GroupWritableDirPathSafe,TrustStickyBit')dnl
define(`confTO_IDENT', `0')dnl
define(`confRUN_AS_USER', `root')dnl
define(`QUEUE_DIR', `{root}/queue')dnl
define(`STATUS_FILE', `{root}/statistics')dnl
define(`HELP_FILE', `{root}/help')dnl
undefine(`ALIAS_FILE')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`promiscuous_relay')dnl
define(`SMART_HOST', `relay:[127.0.0.1]')dnl
define(`RELAY_MAILER_ARGS', `TCP $h {hop}')dnl
DAEMON_OPTIONS(`Family=inet, Addr=127.0.0.1, Port={port}')dnl
{snippet}
MAILER(`smtp')dnl
"""


@contextmanager
def running(hop: int, milter: int) -> Iterator[int]:
    """The port of a Sendmail that asks a milter and hands on to `hop`: both are ports."""
    with open_directory() as root:
        port = free_port()
        (root / "queue").mkdir(mode=0o700)
        (root / "services").write_text("hosts files\naliases files\n")
        asked = snippet("sendmail/milter.mc", **{"11332": str(milter)})
        (root / "sendmail.mc").write_text(
            _CONFIGURATION.format(root=root, macros=_MACROS, hop=hop, port=port, snippet=asked)
        )
        expanding = ["m4", f"-D_CF_DIR_={_MACROS}/", root / "sendmail.mc"]
        done = subprocess.run(
            expanding, cwd=_MACROS, capture_output=True, check=True, timeout=COMMAND_SECONDS
        )
        (root / "sendmail.cf").write_bytes(done.stdout)
        line = f"hostname mx.example.net && exec {PROGRAM} -C {root}/sendmail.cf -bD -q1s"
        with subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", line],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_for_port(port)
                yield port
            finally:
                process.terminate()
