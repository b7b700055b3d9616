"""Exim's `spam` condition in both variants, with our daemon in the place of rspamd and of
SpamAssassin.
"""

from __future__ import annotations

import os
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import exim
from tests.e2e.exim import Exim
from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.e2e.scanning import HAM, SPAM, ScannerSite, site
from tests.support.recipes import UNPACKED, snippet
from tests.support.waiting import PATIENCE

PROGRAM = UNPACKED / "exim4-daemon-heavy" / "usr" / "sbin" / "exim4"
pytestmark = pytest.mark.skipif(
    not PROGRAM.exists() or os.getuid() != 0,
    reason="needs root, and an Exim with content scanning, unpacked by .ci/packages",
)

WAYS = {"rspamd": "127.0.0.1 {port} variant=rspamd", "spamd": "127.0.0.1 {port}"}
_CONFIGURATION = """exim_path = {program}
spool_directory = {root}/spool
log_file_path = {root}/spool/%slog
pid_file_path = {root}/exim.pid
primary_hostname = mx.example.net
local_interfaces = <; 127.0.0.1.{port}
acl_smtp_rcpt = check
never_users =
keep_environment =
tls_advertise_hosts =
chunking_advertise_hosts =
{main}
begin acl
check:
  accept
{acl}
begin routers
local:
  driver = accept
  transport = maildir
begin transports
maildir:
  driver = appendfile
  maildir_format
  directory = {root}/mail/${{if eq{{$local_part}}{{anna}}{{anna}}{{ben}}}}
begin retry
* * F,1h,1s
"""


@contextmanager
def asking(address: str) -> Iterator[Exim]:
    """An Exim that asks at that address."""
    with open_directory() as root:
        found = Exim(root, free_port())
        program = shutil.copy(PROGRAM, root)  # it starts itself as another user
        for name in ("spool", "mail"):
            (root / name).mkdir()
            subprocess.run(["chown", f"{exim.USER}:", root / name], check=True)
        parts = {
            "main": snippet("exim/scan.main.conf", **{WAYS["rspamd"].format(port=11333): address}),
            "acl": snippet("exim/scan.acl.conf"),
        }
        (root / "exim.conf").write_text(
            _CONFIGURATION.format(root=root, port=found.port, program=program, **parts)
        )
        line = [program, "-C", root / "exim.conf", "-bdf", "-q1s"]
        with subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                wait_for_port(found.port)
                yield found
            finally:
                process.terminate()


@pytest.fixture(scope="module", params=WAYS)
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ScannerSite, Exim]]:
    with (
        site(
            tmp_path_factory.mktemp(request.param),
            request.param,
            ""
            if request.param == "spamd"
            else "    rules: [{when: spam, from_probability: 0.95, action: reject}]\n",
        ) as found,
        asking(WAYS[request.param].format(port=found.port)) as server,
    ):
        yield found, server


def send(server: Exim, raw: bytes) -> None:
    with smtplib.SMTP("127.0.0.1", server.port, "there.example", timeout=PATIENCE) as client:
        client.sendmail("a@x.example", ["anna@example.net", "ben@example.net"], raw)


def test_exim_shows_our_verdict(asked: tuple[ScannerSite, Exim]) -> None:
    found, server = asked
    for raw in (*SPAM, *HAM):
        send(server, b"X-Spam-Status: No, score=-99\r\n" + raw)
    mail = server.delivered("anna", len(SPAM + HAM))
    judged = found.running.lines("verdict=", len(mail))
    assert all(raw.count(b"X-Spam-Status: ") == raw.count(b"X-Spam-Score: ") == 1 for raw in mail)
    spam = sum("verdict=spam" in line for line in judged)
    assert 0 < spam < len(mail)
    assert sum(b"X-Spam-Status: Yes, score=" in raw for raw in mail) == spam
    assert all(
        "from=<a@x.example> to=<anna@example.net>,<ben@example.net>" in line for line in judged
    )
    if "rspamd://" in judged[0]:  # by the other way no more is told
        assert all(
            "client=127.0.0.1 helo=there.example" in line and "queue=" in line for line in judged
        )
        assert sum("action=reject" in line for line in judged) > 0


def test_mail_goes_on_while_we_are_not_there(tmp_path: Path) -> None:
    with asking(f"127.0.0.1 {free_port()} variant=rspamd") as server:
        send(server, HAM[0])
        (raw,) = server.delivered("anna", 1)
        assert b"X-Spam-Status: Yes" not in raw
