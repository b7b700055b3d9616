"""The snippets of config/ that run `spamguard filter` for each message: procmail, maildrop, getmail
and fetchmail use them for real.
"""

from __future__ import annotations

import os
import re
import shutil
import smtplib
import subprocess
from pathlib import Path

import pytest

from tests.e2e import daemon, dovecot
from tests.e2e.ports import open_directory
from tests.e2e.test_positions import fields
from tests.support.recipes import command, snippet
from tests.support.waiting import COMMAND_SECONDS

MAIL = {label: daemon.unseen(label, 1)[0].replace(b"\r\n", b"\n") for label in ("spam", "ham")}


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None,
        reason=f"needs {package or program}: apt-get install {package or program}",
    )


@pytest.fixture
def home(state: Path, tmp_path: Path) -> Path:
    """A home directory with the filter in its usual place."""
    place = tmp_path / "home"
    (place / ".local" / "state").mkdir(parents=True)
    state.rename(place / ".local" / "state" / "spamguard")
    return place


def run(line: list[str | Path], home: Path, given: bytes = b"") -> str:
    environment = {**os.environ, "HOME": str(home)} | dict.fromkeys(
        ("XDG_STATE_HOME", "SPAMGUARD_STATE"), ""
    )
    done = subprocess.run(
        line,
        cwd=home,
        env=environment,
        input=given,
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    told = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, told
    return told


def lies(box: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(box.glob("new/*"))]


def is_judged(raw: bytes, sent: bytes, label: str) -> None:
    """The bytes are those that were sent, below a verdict."""
    assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
    assert re.match(
        "spam; id=" if label == "spam" else "(ham|unsure); id=", fields(raw, "X-Spamguard")[0]
    )
    assert raw.partition(b"\n\n")[2].rstrip(b"\n") == sent.partition(b"\n\n")[2].rstrip(b"\n")


@needs("procmail")
@pytest.mark.parametrize("label", ["spam", "ham"])
def test_procmail(label: str, home: Path) -> None:
    (home / "Maildir").mkdir()
    text = snippet("procmail/procmailrc", **{"/opt/spamguard/bin/spamguard": str(command(home))})
    (home / ".procmailrc").write_text(
        f"HOME={home}\n{text}"
    )  # which procmail takes from the list of users otherwise
    run(["procmail", "-m", home / ".procmailrc"], home, MAIL[label])
    box = home / "Maildir" / ".Junk" if label == "spam" else home / "Maildir"
    (raw,) = lies(box)
    is_judged(raw, MAIL[label], label)


@needs("procmail")
def test_procmail_delivers_without_the_filter(home: Path) -> None:
    (home / "Maildir").mkdir()
    (home / ".procmailrc").write_text(
        f"HOME={home}\n"
        + snippet("procmail/procmailrc", **{"/opt/spamguard/bin/spamguard": "/nowhere/spamguard"})
    )
    run(["procmail", "-m", home / ".procmailrc"], home, MAIL["spam"])
    assert lies(home / "Maildir") == [MAIL["spam"]]


def with_maildrop(home: Path) -> None:
    """As the snippet says under "make ready"."""
    text = snippet("maildrop/mailfilter", **{"/opt/spamguard/bin/spamguard": str(command(home))})
    (home / ".mailfilter").write_text(
        f'HOME="{home}"\n{text}'
    )  # which maildrop takes from the list of users otherwise
    (home / ".mailfilter").chmod(0o600)
    (ready,) = [line for line in text.splitlines() if line.startswith("# Make ready: ")]
    run(["sh", "-euc", ready.removeprefix("# Make ready: ")], home)


@needs("maildrop")
@pytest.mark.parametrize("label", ["spam", "ham"])
def test_maildrop(label: str, home: Path) -> None:
    with_maildrop(home)
    run(["maildrop", home / ".mailfilter"], home, MAIL[label])
    (raw,) = lies(home / "Maildir" / ".Junk" if label == "spam" else home / "Maildir")
    is_judged(raw, MAIL[label], label)


def provider(server: dovecot.Dovecot) -> None:
    """Mail that waits at the provider, for anna."""
    with smtplib.LMTP("127.0.0.1", server.lmtp_port) as client:
        for raw in MAIL.values():
            client.sendmail("someone@example.org", "anna@example.net", raw)
    server.delivered("anna", len(MAIL))


needs_dovecot = needs("dovecot", "dovecot-lmtpd dovecot-imapd")


@needs_dovecot
@needs("getmail", "getmail6")
def test_getmail(home: Path) -> None:
    with dovecot.running() as server, open_directory() as place:
        provider(server)
        box = place / "Maildir"
        for name in ("cur", "new", "tmp"):
            (box / name).mkdir(parents=True)
        places = {
            "/opt/spamguard/bin/spamguard": str(command(home)),
            "SimpleIMAPSSLRetriever": "SimpleIMAPRetriever",
            "imap.example.net": "127.0.0.1",
            "993": str(server.imap_port),
            'password_command = ("/usr/bin/pass", "show", "mail")': "password = any",
            "path = ~/Maildir/": f"path = {box}/",
        }
        if os.getuid() == 0:  # which getmail does not like
            subprocess.run(["chown", "-R", "nobody", place], check=True)
            places |= {
                '("filter",)': '("filter",)\nallow_root_commands = true',
                "path = ~/Maildir/": f"path = {box}/\nuser = nobody",
            }
        (home / "getmailrc").write_text(snippet("getmail/getmailrc", **places))
        line: list[str | Path] = ["getmail", "--getmaildir", home, "--rcfile", "getmailrc"]
        run(line, home)
        assert "0 messages" in run(line, home)
        found = {"spam" if fields(raw, "X-Spam-Flag") else "ham": raw for raw in lies(box)}
    assert set(found) == {"spam", "ham"}
    for label, raw in found.items():
        is_judged(raw, MAIL[label], label)


def fetched(home: Path, server: dovecot.Dovecot, **more: str) -> None:
    """The message as fetchmail delivers it with its snippet. more: texts to be replaced."""
    places = {
        "imap.example.net": "127.0.0.1",
        "993": str(server.imap_port),
        "ssl sslcertck": "sslproto ''",
    }
    (home / ".fetchmailrc").write_text(snippet("fetchmail/fetchmailrc", **places, **more))
    (home / ".fetchmailrc").chmod(0o600)
    own = ("--pidfile", home / "fetchmail.pid")  # root's would be another test's as well
    run(["env", f"FETCHMAILHOME={home}", "fetchmail", *own, "--fetchmailrc", ".fetchmailrc"], home)


@needs_dovecot
@needs("fetchmail")
@needs("maildrop")
def test_fetchmail_with_maildrop(home: Path) -> None:
    with_maildrop(home)
    with dovecot.running() as server:
        provider(server)
        fetched(home, server, **{'.mailfilter"': f'{home}/.mailfilter"'})
    for label in ("spam", "ham"):
        (raw,) = lies(home / "Maildir" / ".Junk" if label == "spam" else home / "Maildir")
        is_judged(raw, MAIL[label], label)
