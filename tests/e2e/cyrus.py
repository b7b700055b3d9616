"""A real Cyrus for a test: IMAP on a port, for everybody, with any password.

It has what Dovecot has not, such as ids of messages (RFC 8474). `.ci/packages` unpacks it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.support.recipes import UNPACKED
from tests.support.waiting import PATIENCE

_PACKAGES = ("cyrus-common", "cyrus-imapd", "libical3", "libxapian30")
needs_cyrus = pytest.mark.skipif(
    not all((UNPACKED / package).is_dir() for package in _PACKAGES),
    reason="needs Cyrus: .ci/packages",
)

_SETTINGS = """configdirectory: {root}/conf
partition-default: {root}/spool
defaultpartition: default
proc_path: {root}/proc
mboxname_lockpath: {root}/lock
idlesocket: {root}/idle
allowplaintext: yes
sasl_pwcheck_method: alwaystrue
sasl_mech_list: PLAIN
altnamespace: yes
unixhierarchysep: yes
autocreate_quota: 0
autocreate_inbox_folders: Junk|Archive|Trash
search_engine: none
"""
_SERVICES = """START {{
  recover cmd="{bin}/ctl_cyrusdb -C {root}/imapd.conf -r"
}}
SERVICES {{
  imap cmd="{bin}/imapd -C {root}/imapd.conf" listen="127.0.0.1:{port}" prefork=0
}}
DAEMON {{
  idled cmd="{bin}/idled -d -C {root}/imapd.conf"
}}
"""


@dataclass(frozen=True, slots=True)
class Cyrus:
    """A running Cyrus."""

    imap_port: int


@contextmanager
def running() -> Iterator[Cyrus]:
    with open_directory() as root:
        cyrus = Cyrus(free_port())
        for package in _PACKAGES:  # to where every user may go
            shutil.copytree(UNPACKED / package / "usr/lib", root / "lib", dirs_exist_ok=True)
        text = {"root": root, "bin": root / "lib/cyrus/bin", "port": cyrus.imap_port}
        (root / "imapd.conf").write_text(_SETTINGS.format(**text))
        (root / "cyrus.conf").write_text(_SERVICES.format(**text))
        for name in ("conf", "spool", "proc", "lock"):
            (root / name).mkdir()
        user, group = ("nobody", "nogroup") if os.getuid() == 0 else (None, None)
        for path in (root, *root.iterdir()) if user else ():
            shutil.chown(path, user, group)
        libraries = next((root / "lib").glob("*-linux-gnu*"))
        environment = {"LD_LIBRARY_PATH": str(libraries), "CYRUS_USER": user or getpass.getuser()}
        line = [text["bin"] / "master", "-D", "-C", root / "imapd.conf", "-M", root / "cyrus.conf"]
        process = subprocess.Popen(
            [*line, "-p", root / "pid"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            user=user,
            group=group,
            extra_groups=[] if user else None,
            process_group=0,  # at its end it sends SIGTERM to all of its group that it may
        )
        try:
            wait_for_port(cyrus.imap_port)
            yield cyrus
        finally:
            process.terminate()
            process.wait(PATIENCE)
