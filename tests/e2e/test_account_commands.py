"""`spamguard account` with a real Dovecot, and with what providers answer."""

from __future__ import annotations

import imaplib
import json
import os
import pty
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from spamguard.config.accounts import Account, AccountTls, OAuth, providers
from spamguard.doctor.accounts import check_account
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import COMMAND, ENVIRONMENT
from tests.e2e.dovecot import Dovecot
from tests.e2e.ports import free_port
from tests.e2e.test_readme import block
from tests.support.waiting import COMMAND_SECONDS, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("dovecot") is None, reason="needs dovecot-imapd"),
]
MESSAGE = b"From: a@example.org\r\nSubject: hello\r\n\r\nhello\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Dovecot]:
    """With mail of anna's: two messages in INBOX, one in Archive, and mail that was sent."""
    with dovecot.running(password="password=geheim") as running:
        with imap(running) as client:
            for folder in ("Archive", "Sent", "Lists.x"):
                client.create(folder)
            for folder in ("INBOX", "INBOX", "Archive", "Sent"):
                client.append(folder, "", "", MESSAGE)
        yield running


@contextmanager
def imap(server: Dovecot, user: str = "anna") -> Iterator[imaplib.IMAP4]:
    with imaplib.IMAP4("127.0.0.1", server.imap_port) as client:
        client.login(user, "geheim")
        yield client


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def account(place: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, "account", *words, "--config", str(place / "spamguard.yaml")]
    return subprocess.run(
        [*line, "--state", str(place / "state")],
        input=given,
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


def add(server: Dovecot, place: Path, *words: str, given: str = "geheim\n") -> Any:
    here = ("--server", "127.0.0.1", "--port", str(server.imap_port), "--tls", "none")
    return account(place, "add", "anna@example.org", "--login", "anna", *here, *words, given=given)


def entries(place: Path) -> list[dict[str, Any]]:
    file = place / "spamguard.yaml"
    return yaml.safe_load(file.read_text()).get("accounts", []) if file.exists() else []


def test_an_account_is_tried_written_checked_and_taken_out(server: Dovecot, place: Path) -> None:
    def modseqs() -> list[bytes]:
        with imap(server) as client:
            client.select("INBOX", readonly=True)
            return client.uid("FETCH", "1:*", "(MODSEQ FLAGS)")[1]

    before = modseqs()
    done = add(server, place)
    assert done.returncode == 0, done.stderr
    assert "ok      account anna@example.org: logged in to 127.0.0.1:" in done.stdout
    assert "Archive: ham, 1 in it; INBOX: ham, 2 in it; Junk: spam, 0 in it" in done.stdout
    assert "Lists/x: neutral; Sent: ignored" in done.stdout
    assert "look: nothing is written; mail can be moved there" in done.stdout
    assert f"spamguard run --config {place}/spamguard.yaml" in done.stdout
    secret = place / "state" / "secrets" / "anna@example.org"
    assert entries(place) == [
        {
            "name": "anna@example.org",
            "server": "127.0.0.1",
            "user": "anna",
            "port": server.imap_port,
            "tls": "none",
            "mode": "look",
            "password_file": str(secret),
        }
    ]
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("geheim\n", 0o600)
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    assert "geheim" not in done.stdout + (place / "spamguard.yaml").read_text()

    checked = json.loads(account(place, "check", "--json").stdout)
    assert checked["ok"]
    assert [step["outcome"] for step in checked["steps"]] == ["ok", "ok", "ok"]
    assert before == modseqs()
    (row,) = map(json.loads, account(place, "list", "--json").stdout.splitlines())
    assert (row["name"], row["mode"]) == ("anna@example.org", "look")
    assert "remove` it first" in add(server, place).stderr

    assert account(place, "remove", "anna@example.org").returncode == 0
    assert entries(place) == []
    assert not secret.exists()
    assert account(place, "check").returncode == 2


def test_other_lines_of_the_configuration_stay(server: Dovecot, place: Path) -> None:
    text = "# ours\nweb: 127.0.0.1:10088  # the page\naccounts: []\nworkers: 1  # few\n"
    file = place / "spamguard.yaml"
    file.write_text(text)
    assert add(server, place, "--password-command", "echo geheim", given="").returncode == 0
    lines = file.read_text().splitlines()
    assert [line for line in text.splitlines() if line in lines] == [
        "# ours",
        "web: 127.0.0.1:10088  # the page",
        "workers: 1  # few",
    ]
    assert entries(place)[0]["password_command"] == "echo geheim"
    assert list((place / "state" / "secrets").iterdir()) == []


def test_from_nothing_to_the_first_verdict_as_the_page_says(server: Dovecot, place: Path) -> None:
    """What the page shows is typed, for this server; then mail comes, and is moved."""
    install, added, run = block("tested: accounts").splitlines()
    assert install.startswith("pip install")
    web = free_port()
    here = f"--login carla --server 127.0.0.1 --port {server.imap_port} --tls none"
    with imap(server, "carla") as client:
        client.append("INBOX", "", "", MESSAGE)
    shell = ["bash", "-euc", f'spamguard() {{ {shlex.join(COMMAND)} "$@"; }}; {added} {here}']
    environment = ENVIRONMENT | {"SPAMGUARD_STATE": str(place / "state")}
    subprocess.run(
        shell, cwd=place, env=environment, input=b"geheim\n", timeout=COMMAND_SECONDS, check=True
    )
    file = place / "spamguard.yaml"
    file.write_text(file.read_text().replace("10088", str(web)))
    words = [*shlex.split(run)[1:-1], str(file)]
    with daemon.running(place / "state", *words[1:], port=web) as running:
        running.lines("seen for the first time; from now on moving its mail teaches")

        def says() -> object:
            told = json.loads(daemon.command(place / "state", "status", "--json"))["accounts"]
            return told and (told["anna@example.org"]["judged"], told["anna@example.org"]["moved"])

        with imap(server, "carla") as client:
            client.append("INBOX", "", "", MESSAGE.replace(b"hello", b"new"))
            (line,) = running.lines("verdict=unsure")
            eventually(lambda: says() == (1, 0))
            client.select("INBOX")
            client.uid("MOVE", "2", "Junk")
        running.lines("lesson user=anna@example.org from='INBOX' to='Junk' class=spam")
        history = json.loads(daemon.command(place / "state", "history", "--json").splitlines()[0])
        assert f"id={history['id']}" in line
        assert (history["subject"], history["label"]) == ("new", "unsure")
        status = daemon.command(place / "state", "status")
        assert "accounts   anna@example.org: look, connected since " in status
        assert "1 judged (0 spam), 0 moved" in account(place, "list").stdout
        doctor = daemon.ask(place / "state", "doctor", "--config", str(file)).stdout
        assert "ok      account anna@example.org: daemon: look, connected since " in doctor
        assert "FAILED" not in doctor
        link = daemon.command(place / "state", "login-link", "--operator").partition("link=")[2]
        with httpx.Client(follow_redirects=True) as olga:
            olga.post(f"http://127.0.0.1:{web}/login", data={"link": link.strip()})
            page = olga.get(f"http://127.0.0.1:{web}/").text
        assert "Account anna@example.org: well" in page
    assert "anna@example.org: look, no daemon runs" not in status
    assert "look, no daemon runs" in account(place, "list").stdout


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [("wrong\n", 1, "refuses the login"), ("\n", 2, "the password is empty")],
)
def test_nothing_stays_of_what_is_refused(
    server: Dovecot, place: Path, given: str, status: int, told: str
) -> None:
    done = add(server, place, given=given)
    assert done.returncode == status
    assert told in done.stdout + done.stderr
    assert entries(place) == []
    assert list(place.rglob("anna*")) == []


def test_at_most_three_questions(server: Dovecot, place: Path) -> None:
    """At a terminal, the password unseen. The port and clear text are no questions."""
    terminal, end = pty.openpty()
    line = [*COMMAND, "account", "add", "--config", "spamguard.yaml", "--state", "state"]
    line += ["--port", str(server.imap_port), "--tls", "none"]
    process = subprocess.Popen(
        line, cwd=place, env=ENVIRONMENT, stdin=end, stdout=end, stderr=end, start_new_session=True
    )
    os.close(end)
    seen = ""
    for question, answer in (
        ("Mail address: ", "anna@example.org"),
        ("IMAP server [imap.example.org]: ", "127.0.0.1"),
        ("Password of anna@example.org at 127.0.0.1: ", "geheim"),
    ):
        while question not in seen:
            seen += os.read(terminal, 4096).decode()
        os.write(terminal, f"{answer}\n".encode())
    while "wrote " not in seen:
        seen += os.read(terminal, 4096).decode()
    assert process.wait(COMMAND_SECONDS) == 0
    os.close(terminal)
    assert "geheim" not in seen
    assert [each["name"] for each in entries(place)] == ["anna@example.org"]


def test_a_folder_for_spam_may_be_named(place: Path) -> None:
    with dovecot.running(
        lambda _: "namespace inbox {\n mailbox Junk {\n auto = no\n }\n}\n"
    ) as bare:
        with imap(bare) as client:
            client.create("Ungebeten")
        assert "there is none for spam -> make a folder Junk" in add(bare, place).stdout
        file = place / "spamguard.yaml"
        file.write_text(f"{file.read_text()}  folders: {{Ungebeten: spam}}\n")
        done = account(place, "check")
        assert (done.returncode, "Ungebeten: spam, 0 in it" in done.stdout) == (0, True)


def test_another_filter_is_warned_of(server: Dovecot, place: Path) -> None:
    with imap(server, "bert") as client:
        client.append("INBOX", "NonJunk", "", MESSAGE)
    bert = Account(
        "bert",
        "127.0.0.1",
        "bert",
        password_command="echo geheim",
        port=server.imap_port,
        tls=AccountTls.NONE,
    )
    *_, last = check_account(bert)
    assert (last.outcome, last.name) == ("skipped", "account bert: other filters")
    assert "Thunderbird" in last.detail


# ---- what providers answer to a wrong password

REFUSALS = {
    "gmail": (
        "NO [ALERT] Application-specific password required: "
        "https://support.google.com/accounts/answer/185833 (Failure)",
        "https://myaccount.google.com/apppasswords",
    ),
    "icloud": ("NO [AUTHENTICATIONFAILED] Authentication Failed", "app-specific passwords only"),
    "fastmail": (
        "NO [AUTHENTICATIONFAILED] Incorrect username, password or access token",
        "Fastmail takes app passwords only",
    ),
    "gmx": ("NO authentication failed", "switch on IMAP at gmx.net"),
    "web.de": ("NO authentication failed", "switch on IMAP at web.de"),
    "yahoo": ("NO [AUTHENTICATIONFAILED] LOGIN Invalid credentials", "Yahoo takes app passwords"),
    "other": ("NO [AUTHENTICATIONFAILED] Basic authentication is disabled.", "Microsoft has"),
}


@contextmanager
def refusing(answer: str) -> Iterator[int]:
    """A server that says this to a login; its port."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(b"* OK hello\r\n")
            for line in lines:
                tag, verb = line.split()[:2]
                said = answer if verb.upper() in (b"LOGIN", b"AUTHENTICATE") else "OK done"
                if verb.upper() == b"CAPABILITY":
                    connection.sendall(b"* CAPABILITY IMAP4rev1 SASL-IR AUTH=XOAUTH2\r\n")
                connection.sendall(tag + f" {said}\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("preset", list(REFUSALS))
def test_each_refusal_has_its_remedy(preset: str) -> None:
    answer, remedy = REFUSALS[preset]
    with refusing(answer) as port:
        refused = Account(
            "anna",
            "127.0.0.1",
            "anna",
            password_command="echo geheim",
            port=port,
            tls=AccountTls.NONE,
            preset=preset,
        )
        (step,) = check_account(refused)
    assert step.outcome == "failed"
    assert answer.partition("] ")[2] in step.detail  # the provider's own words
    assert remedy in step.remedy
    assert "geheim" not in str(step)


def test_every_provider_that_takes_passwords_has_a_refusal() -> None:
    takes = {name for name, preset in providers().items() if preset.takes_passwords}
    assert takes - {"gmx-com"} == set(REFUSALS)


def test_microsoft_wants_a_token(place: Path) -> None:
    done = account(place, "add", "anna@outlook.com")
    assert (done.returncode, "Microsoft has switched passwords off" in done.stderr) == (2, True)
    token = Account("anna", "127.0.0.1", "anna", oauth=OAuth("id", place / "none"))
    (step,) = check_account(token)
    assert (step.outcome, "no password there" in step.detail) == ("failed", True)
