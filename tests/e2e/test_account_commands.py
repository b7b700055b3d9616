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

from spamguard.config.accounts import Account, AccountTls, OAuth
from spamguard.doctor.accounts import check_account
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import COMMAND, ENVIRONMENT
from tests.e2e.dovecot import Dovecot
from tests.e2e.moving import all_seen
from tests.e2e.ports import free_port
from tests.e2e.test_readme import block
from tests.support.waiting import COMMAND_SECONDS, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("dovecot") is None, reason="needs dovecot-imapd"),
]
HERE: Any = {"server": "127.0.0.1", "tls": AccountTls.NONE, "password_command": "echo geheim"}
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


def account(tmp_path: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, "account", *words, "--config", str(tmp_path / "spamguard.yaml")]
    line += ["--state", str(tmp_path / "state")]
    settings: Any = {"input": given, "env": ENVIRONMENT, "capture_output": True, "text": True}
    return subprocess.run(line, check=False, timeout=COMMAND_SECONDS, **settings)


def add(server: Dovecot, tmp_path: Path, *words: str, given: str = "geheim\n") -> Any:
    here = ("--server", "127.0.0.1", "--port", str(server.imap_port), "--tls", "none")
    return account(
        tmp_path, "add", "anna@example.org", "--login", "anna", *here, *words, given=given
    )


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "spamguard.yaml"
    return yaml.safe_load(file.read_text()).get("accounts", []) if file.exists() else []


def test_an_account_is_tried_written_checked_and_taken_out(server: Dovecot, tmp_path: Path) -> None:
    def modseqs() -> list[bytes]:
        with imap(server) as client:
            client.select("INBOX", readonly=True)
            return client.uid("FETCH", "1:*", "(MODSEQ FLAGS)")[1]

    before = modseqs()
    done = add(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ok      account anna@example.org: logged in to 127.0.0.1:" in done.stdout
    assert "Archive: ham, 1 in it; INBOX: ham, 2 in it; Junk: spam, 0 in it" in done.stdout
    assert "Lists/x: neutral; Sent: ignored" in done.stdout
    assert "look: nothing is written; mail can be moved there" in done.stdout
    assert f"spamguard run --config {tmp_path}/spamguard.yaml" in done.stdout
    secret = tmp_path / "state" / "secrets" / "anna@example.org"
    (entry,) = entries(tmp_path)
    assert (entry["name"], entry["user"]) == ("anna@example.org", "anna")
    assert (entry["mode"], entry["password_file"]) == ("look", str(secret))
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("geheim\n", 0o600)
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    assert "geheim" not in done.stdout + (tmp_path / "spamguard.yaml").read_text()

    checked = json.loads(account(tmp_path, "check", "--json").stdout)
    assert checked["ok"]
    assert [step["outcome"] for step in checked["steps"]] == ["ok", "ok", "ok"]
    assert before == modseqs()
    (row,) = map(json.loads, account(tmp_path, "list", "--json").stdout.splitlines())
    assert (row["name"], row["mode"]) == ("anna@example.org", "look")
    assert "remove` it first" in add(server, tmp_path).stderr

    assert account(tmp_path, "remove", "anna@example.org").returncode == 0
    assert entries(tmp_path) == []
    assert not secret.exists()
    assert account(tmp_path, "check").returncode == 2


def test_other_lines_of_the_configuration_stay(server: Dovecot, tmp_path: Path) -> None:
    text = "# ours\nweb: 127.0.0.1:10088  # the page\naccounts: []\nworkers: 1  # few\n"
    file = tmp_path / "spamguard.yaml"
    file.write_text(text)
    assert add(server, tmp_path, "--password-command", "echo geheim", given="").returncode == 0
    lines = file.read_text().splitlines()
    assert [line for line in text.splitlines() if line in lines] == [
        "# ours",
        "web: 127.0.0.1:10088  # the page",
        "workers: 1  # few",
    ]
    assert entries(tmp_path)[0]["password_command"] == "echo geheim"
    assert list((tmp_path / "state" / "secrets").iterdir()) == []


def test_from_nothing_to_the_first_verdict_as_the_page_says(
    server: Dovecot, tmp_path: Path
) -> None:
    """What the page shows is typed, for this server; then mail comes, and is moved."""
    install, added, taught, run = block("tested: accounts").splitlines()
    assert install.startswith("pip install")
    web = free_port()
    here = f"--login carla --server 127.0.0.1 --port {server.imap_port} --tls none"
    with imap(server, "carla") as client:
        client.append("INBOX", "", "", MESSAGE)
    shell = [
        "bash",
        "-euc",
        f'spamguard() {{ {shlex.join(COMMAND)} "$@"; }}; {added} {here}; {taught}',
    ]
    environment = ENVIRONMENT | {"SPAMGUARD_STATE": str(tmp_path / "state")}
    subprocess.run(
        shell, cwd=tmp_path, env=environment, input=b"geheim\n", timeout=COMMAND_SECONDS, check=True
    )
    file = tmp_path / "spamguard.yaml"
    file.write_text(file.read_text().replace("10088", str(web)))
    words = [*shlex.split(run)[1:-1], str(file)]
    with daemon.running(tmp_path / "state", *words[1:], port=web) as running:
        running.lines("seen for the first time; from now on moving its mail teaches")

        def says() -> object:
            told = json.loads(daemon.command(tmp_path / "state", "status", "--json"))["accounts"]
            return told and (told["anna@example.org"]["judged"], told["anna@example.org"]["moved"])

        with imap(server, "carla") as client:
            client.append("INBOX", "", "", MESSAGE.replace(b"hello", b"new"))
            (line,) = running.lines("verdict=unsure")
            eventually(lambda: says() == (1, 0))
            all_seen(tmp_path / "state" / "accounts", Path("anna@example.org"), 1)
            client.select("INBOX")
            client.uid("MOVE", "2", "Junk")
        running.lines("lesson user=anna@example.org from='INBOX' to='Junk' class=spam")
        history = json.loads(
            daemon.command(tmp_path / "state", "history", "--json").splitlines()[0]
        )
        assert f"id={history['id']}" in line
        assert (history["subject"], history["label"]) == ("new", "unsure")
        status = daemon.command(tmp_path / "state", "status")
        assert "accounts   anna@example.org: look, connected since " in status
        assert "1 judged (0 spam), 0 moved" in account(tmp_path, "list").stdout
        checked = account(tmp_path, "check").stdout
        assert "move would have put: of the last 1 judged messages, 0 into Junk" in checked
        doctor = daemon.ask(tmp_path / "state", "doctor", "--config", str(file)).stdout
        assert "ok      account anna@example.org: logged in to 127.0.0.1:" in doctor
        assert "FAILED" not in doctor
        link = daemon.command(tmp_path / "state", "login-link", "--operator").partition("link=")[2]
        with httpx.Client(follow_redirects=True) as olga:
            olga.post(f"http://127.0.0.1:{web}/login", data={"link": link.strip()})
            page = olga.get(f"http://127.0.0.1:{web}/").text
        assert "<title>Today" in page
        assert "account anna@example.org:" not in page  # nothing is wrong with it
    assert "anna@example.org: look, no daemon runs" not in status
    assert "look, no daemon runs" in account(tmp_path, "list").stdout


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [("wrong\n", 1, "refuses the login"), ("\n", 2, "the password is empty")],
)
def test_nothing_stays_of_what_is_refused(
    server: Dovecot, tmp_path: Path, given: str, status: int, told: str
) -> None:
    done = add(server, tmp_path, given=given)
    assert done.returncode == status
    assert told in done.stdout + done.stderr
    assert entries(tmp_path) == []
    assert list(tmp_path.rglob("anna*")) == []


def test_at_most_three_questions(server: Dovecot, tmp_path: Path) -> None:
    """At a terminal, the password unseen. The port and clear text are no questions."""
    terminal, end = pty.openpty()
    line = [*COMMAND, "account", "add", "--config", "spamguard.yaml", "--state", "state"]
    line += ["--port", str(server.imap_port), "--tls", "none"]
    process = subprocess.Popen(
        line,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
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
    assert [each["name"] for each in entries(tmp_path)] == ["anna@example.org"]


def test_what_was_filed_before_teaches_once(server: Dovecot, tmp_path: Path) -> None:
    """Read mail of INBOX and all of Junk; taken back as one."""
    with imap(server, "dora") as client:
        for number in range(4):
            for label, folder in (("ham", "INBOX"), ("spam", "Junk")):
                raw = daemon.unseen(label, 4)[number]
                client.append(folder, "\\Seen" if number < 3 else "", "", raw)
    assert add(server, tmp_path, "--login", "dora").returncode == 0
    words = ("teach", "anna@example.org")
    said = account(tmp_path, *words, "--dry-run").stdout
    assert said == "anna@example.org: would teach 4 messages as spam, 3 messages as ham\n"
    taught = json.loads(account(tmp_path, *words, "--json").stdout)
    assert taught == {"taught": {"ham": 3, "spam": 4}, "known": 0, "taken_back": 0}
    assert json.loads(account(tmp_path, *words, "--json").stdout)["known"] == 7
    undone = daemon.command(tmp_path / "state", "undo", "--user", "anna@example.org")
    assert "7" in undone
    with imap(server, "dora") as client:
        client.select("INBOX", readonly=True)
        assert client.search(None, "UNSEEN")[1] == [b"4"]


def test_a_folder_for_spam_may_be_named(tmp_path: Path) -> None:
    with dovecot.running(
        lambda _: "namespace inbox {\n mailbox Junk {\n auto = no\n }\n}\n"
    ) as bare:
        with imap(bare) as client:
            client.create("Ungebeten")
        assert "there is none for spam -> make a folder Junk" in add(bare, tmp_path).stdout
        file = tmp_path / "spamguard.yaml"
        file.write_text(f"{file.read_text()}  folders: {{Ungebeten: spam}}\n")
        done = account(tmp_path, "check")
        assert (done.returncode, "Ungebeten: spam, 0 in it" in done.stdout) == (0, True)


def test_another_filter_is_warned_of(server: Dovecot, tmp_path: Path) -> None:
    with imap(server, "bert") as client:
        client.append("INBOX", "NonJunk", "", MESSAGE)
    bert = Account("bert", user="bert", port=server.imap_port, **HERE)
    *_, last = check_account(bert)
    assert (last.outcome, last.name) == ("skipped", "account bert: other filters")
    assert "Thunderbird" in last.detail


# ---- what providers answer to a wrong password

_FAILED = "NO [AUTHENTICATIONFAILED] "
REFUSALS = {
    "gmail": ("NO [ALERT] Application-specific password required (Failure)", "/apppasswords"),
    "icloud": (f"{_FAILED}Authentication Failed", "app-specific passwords only"),
    "fastmail": (f"{_FAILED}Incorrect username, password or access token", "app passwords only"),
    "gmx": ("NO authentication failed", "switch on IMAP at gmx.net"),
    "web.de": ("NO authentication failed", "switch on IMAP at web.de"),
    "yahoo": (f"{_FAILED}LOGIN Invalid credentials", "Yahoo takes app passwords"),
    "other": (f"{_FAILED}Basic authentication is disabled.", "Microsoft has"),
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
        refused = Account("anna", user="anna", port=port, preset=preset, **HERE)
        (step,) = check_account(refused)
    assert step.outcome == "failed"
    assert answer.partition("] ")[2] in step.detail  # the provider's own words
    assert remedy in step.remedy
    assert "geheim" not in str(step)


def test_microsoft_wants_a_token(tmp_path: Path) -> None:
    done = account(tmp_path, "add", "anna@outlook.com")
    assert (done.returncode, "Microsoft has switched passwords off" in done.stderr) == (2, True)
    token = Account("anna", "127.0.0.1", "anna", oauth=OAuth("id", tmp_path / "none"))
    (step,) = check_account(token)
    assert (step.outcome, "no password there" in step.detail) == ("failed", True)
