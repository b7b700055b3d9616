"""The daemon behind mail servers other than Postfix: a real Exim and a real OpenSMTPD."""

from __future__ import annotations

import os
import pwd
import re
import smtplib
import subprocess
from pathlib import Path

import pytest

from tests.e2e import daemon, exim, opensmtpd
from tests.e2e.passing import heard
from tests.e2e.peers import Hop
from tests.e2e.ports import free_port
from tests.e2e.test_positions import body, fields
from tests.support.recipes import snippet
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually


def knows(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


@pytest.mark.skipif(
    exim.PROGRAM is None or os.getuid() != 0 or not knows(exim.USER),
    reason="needs root and Exim: run .ci/packages as root",
)
def test_exim(state: Path, tmp_path: Path) -> None:
    port, back = free_port(), free_port()
    file = tmp_path / "spamguard.yaml"
    places = {
        "10025": str(port),
        "10026": str(back),
        "user: spamguard\n": "",
        "/var/lib/spamguard": str(state),
        "/home": str(tmp_path),
    }
    file.write_text(snippet("minimal.yaml", **places))
    with (
        exim.running(port, back) as server,
        daemon.running(state, "--config", str(file), port=port) as running,
    ):
        assert "router = spamguard" in server.command("-bt", "anna@example.net")
        with smtplib.SMTP("127.0.0.1", server.port, timeout=PATIENCE) as client:
            for number, label in enumerate(("spam", "ham"), start=1):
                sent = b"X-Spam-Flag: NO\r\n" + daemon.unseen(label, 1)[0]
                assert (
                    client.sendmail(
                        "someone@example.org", ["anna@example.net", "ben@example.net"], sent
                    )
                    == {}
                )
                for user in ("anna", "ben"):
                    raw = server.delivered(user, number)[-1]
                    assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
                    assert body(raw).rstrip(b"\n") == body(sent).rstrip(b"\n")
            long = (
                b"Subject: long\r\nX-Long: " + b"x" * 3000 + b"\r\n\r\n" + b"y" * 5000 + b"\r\n"
            )  # Exim sends no such lines unless told
            assert client.sendmail("someone@example.org", ["anna@example.net"], long) == {}
            assert body(server.delivered("anna", 3)[-1]).rstrip(b"\n") == b"y" * 5000
        assert len(running.lines("verdict=", 3)) == 3  # not one for each recipient
        handed_on = r' => anna@example.net .*R=spamguard T=spamguard .*C="250 OK id='
        eventually(lambda: re.search(handed_on, server.log()), "Exim tells that we took it")


@pytest.mark.skipif(
    not opensmtpd.runs(),
    reason="needs OpenSMTPD, and root that may mount: run .ci/packages as root",
)
def test_opensmtpd(state: Path, tmp_path: Path) -> None:
    port, taking, back, hop = free_port(), free_port(), free_port(), Hop()
    file = tmp_path / "spamguard.yaml"
    places = {
        "10025": str(port),
        "10026": str(back),
        "user: spamguard\n": "",
        "/var/lib/spamguard": str(state),
        "/home": str(tmp_path),
    }
    file.write_text(snippet("minimal.yaml", **places))
    with (
        hop.serving(),
        opensmtpd.running(taking, port, back, hop.port),
        daemon.running(state, "--config", str(file), port=port),
        smtplib.SMTP("127.0.0.1", taking, timeout=PATIENCE) as client,
    ):
        for number, label in enumerate(("spam", "ham"), start=1):
            sent = b"X-Spam-Flag: NO\r\n" + daemon.unseen(label, 1)[0]
            assert (
                client.sendmail(
                    "someone@example.org", ["anna@example.net", "ben@example.net"], sent
                )
                == {}
            )
            raw = heard(hop, number)[-1]
            assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
            assert body(raw) == body(sent)
        assert (
            sorted(hop.lines(b"RCPT"))
            == [b"RCPT TO:<anna@example.net>"] * 2 + [b"RCPT TO:<ben@example.net>"] * 2
        )


@pytest.mark.skipif(opensmtpd.PROGRAM is None, reason="needs OpenSMTPD: run .ci/packages")
def test_opensmtpd_takes_its_snippet(tmp_path: Path) -> None:
    """In Debian's own configuration, in the place that the snippet names."""
    file = tmp_path / "smtpd.conf"
    usual = (
        'listen on localhost\naction "local_mail" mbox\naction "outbound" relay\n%s\n'
        'match for any action "outbound"\n'
    )

    def told(part: str) -> subprocess.CompletedProcess[str]:
        file.write_text(usual % part)
        return subprocess.run(
            [str(opensmtpd.PROGRAM), "-n", "-f", file],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    found = told(snippet("opensmtpd/smtpd.conf"))
    assert (found.returncode, "configuration OK" in found.stderr) == (0, True), found.stderr
    assert told(snippet("opensmtpd/smtpd.conf", **{"relay host": "relay hots"})).returncode != 0
