"""Next hops other than SMTP: a real Dovecot by LMTP, a Maildir, the quarantine; and `explain` and
lessons by id afterwards.
"""

from __future__ import annotations

import json
import re
import shutil
import smtplib
import subprocess
from pathlib import Path

import pytest

from tests.e2e import daemon, dovecot
from tests.e2e.ports import free_port
from tests.e2e.test_positions import fields
from tests.support.waiting import COMMAND_SECONDS

needs_dovecot = pytest.mark.skipif(
    shutil.which("dovecot") is None,
    reason="needs Dovecot: apt-get install dovecot-lmtpd dovecot-imapd",
)


def spamguard(state: Path, *arguments: str) -> str:
    line = [*daemon.COMMAND, "--state", str(state), *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        env=daemon.ENVIRONMENT,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_dovecot
@pytest.mark.parametrize("way", ["socket", "port"])
def test_an_smtp_door_in_front_of_lmtp_takes_one_recipient_at_a_time(way: str, state: Path) -> None:
    with dovecot.running() as server:
        port = free_port()
        hop = (
            f"lmtp:{server.lmtp_socket}"
            if way == "socket"
            else f"lmtp://127.0.0.1:{server.lmtp_port}"
        )
        with daemon.running(
            state, "--listen", f"smtp://127.0.0.1:{port}", "--next-hop", hop, port=port
        ):
            spam = daemon.unseen("spam", 1)[0]
            with smtplib.SMTP("127.0.0.1", port) as client:
                client.ehlo()
                client.mail("a@example.org")
                assert client.rcpt("anna@example.net")[0] == 250
                code, text = client.rcpt("ben@example.net")
                assert (code, text[:5]) == (452, b"4.5.3")
                code, text = client.data(spam)
                assert code == 250
                assert b"Saved" in text
                assert client.sendmail("a@example.org", ["ben@example.net"], spam) == {}
            for user in ("anna", "ben"):
                (raw,) = server.delivered(user)
                assert fields(raw, "X-Spam-Flag") == ["YES"]


@needs_dovecot
def test_an_lmtp_door_answers_for_each_recipient(state: Path) -> None:
    with dovecot.running() as server:
        port = free_port()
        hop = f"lmtp:{server.lmtp_socket}"
        recipients = ["anna@example.net", "not an address", "ben@example.net", "anna@example.net"]
        with (
            daemon.running(
                state, "--listen", f"lmtp://127.0.0.1:{port}", "--next-hop", hop, port=port
            ),
            smtplib.LMTP("127.0.0.1", port) as client,
        ):
            client.ehlo()
            client.mail("a@example.org")
            codes = [client.docmd(f"RCPT TO:<{recipient}>")[0] for recipient in recipients]
            assert codes == [250, 501, 250, 250]
            client.docmd("DATA")
            client.send(b"Subject: to many\r\n\r\nhello\r\n.\r\n")
            replies = [client.getreply() for _ in range(3)]
            assert [code for code, _ in replies] == [250] * 3
            assert [b"anna" in text for _, text in replies] == [True, False, True]
        assert (
            len(server.delivered("anna")) == 1
        )  # Dovecot files a duplicate once, and says yes twice


def test_without_any_configuration_mail_is_filed(state: Path) -> None:
    port = free_port()
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        with smtplib.SMTP("127.0.0.1", port) as client:
            for label in ("spam", "ham"):
                client.sendmail("a@example.org", ["b@example.net"], daemon.unseen(label, 1)[0])
        running.lines("verdict=", 2)
    (ham,) = (state / "Maildir" / "new").iterdir()
    (spam,) = (state / "Maildir" / ".Junk" / "new").iterdir()
    assert ham.read_bytes().startswith(
        b"Return-Path: <a@example.org>\nDelivered-To: b@example.net\n"
    )
    assert fields(spam.read_bytes(), "X-Spam-Flag") == ["YES"]
    assert b"\r" not in spam.read_bytes()


def test_passed_mail_is_explained_taught_and_forgotten_by_its_id(state: Path) -> None:
    port = free_port()
    raw = daemon.unseen("spam", 1)[0]
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.sendmail("a@example.org", ["b@example.net"], raw)
        (line,) = running.lines("verdict=")
        name = line.partition(" id=")[2].split()[0]
        assert "verdict=spam" in line
    answer = json.loads(spamguard(state, "explain", "--json", name))
    assert answer["then"]["label"] == "spam"
    assert len(answer["then"]["words"]) == 100
    (by_message,) = re.findall(r" message=[0-9a-f]{12} ", line)
    assert json.loads(spamguard(state, "explain", "--json", by_message.strip())) == answer
    assert json.loads(spamguard(state, "learn", "--json", "--as", "ham", "--id", name))[
        "taught"
    ] == {"ham": 1}
    # what was taught from the features alone is the message that was sent: the same receipt
    file = state.parent / "message"
    file.write_bytes(raw)
    assert json.loads(spamguard(state, "learn", "--json", "--as", "ham", str(file)))["known"] == {
        "ham": 1
    }
    assert json.loads(spamguard(state, "forget", "--json", "--id", name))["forgotten"] == 1


def test_quarantined_mail_is_held_and_released_once(state: Path, tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        f"listeners:\n  - listen: smtp://127.0.0.1:{port}\n    position: standalone\n"
        f"    next_hop: maildir:{state}/Maildir\n"
        "    rules: [{when: spam, action: quarantine}]\n"
    )
    with (
        daemon.running(state, "--config", str(file), port=port),
        smtplib.SMTP("127.0.0.1", port) as client,
    ):
        assert (
            client.sendmail("a@example.org", ["b@example.net"], daemon.unseen("spam", 1)[0]) == {}
        )
    held = json.loads(spamguard(state, "quarantine", "list", "--json"))
    assert not (state / "Maildir").exists() or not list((state / "Maildir" / "new").iterdir())
    for _ in range(2):
        spamguard(
            state, "quarantine", "release", "--next-hop", f"maildir:{state}/Released", held["id"]
        )
    found = [
        path for part in ("new", ".Junk/new") for path in (state / "Released" / part).glob("*")
    ]
    assert len(found) == 1
