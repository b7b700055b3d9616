"""rspamd's own client, Debian's rspamc, with our daemon in the place of rspamd."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spamguard.proxy.history import History
from tests.e2e import daemon
from tests.e2e.scanning import HAM, IN_FORCE_SECONDS, SPAM, ScannerSite, site
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually

pytestmark = pytest.mark.skipif(
    shutil.which("rspamc") is None,
    reason="needs rspamc: apt-get install --no-install-recommends rspamd",
)

STRICT = """
    rules:
      - {when: spam, from_probability: 0.95, action: reject}
      - {when: spam, from_probability: 0.01, action: defer}
      - {when: unsure, from_probability: 0.01, action: defer}
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScannerSite]:
    root = tmp_path_factory.mktemp("rspamc")
    with site(root, "rspamd", f"    password_file: {root}/password\n", personal=True) as running:
        yield running


def rspamc(where: ScannerSite, *arguments: str, raw: bytes = b"") -> str:
    """Its output. AssertionError: it failed."""
    command = ["rspamc", "-h", f"127.0.0.1:{where.port}", *arguments]
    done = subprocess.run(
        command, input=raw, capture_output=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.decode()


def verdict_of(where: ScannerSite, *arguments: str, raw: bytes) -> Any:
    """The answer of `symbols` as JSON."""
    return json.loads(rspamc(where, "--compact", "--json", *arguments, "symbols", raw=raw))


@pytest.mark.parametrize("packed", [(), ("-z",)])
def test_verdicts(here: ScannerSite, packed: tuple[str, ...]) -> None:
    for raw, spam in ((SPAM[0], True), (HAM[0], False)):
        text = rspamc(here, *packed, "symbols", raw=raw)
        assert (
            f"Action: {'add header' if spam else 'no action'}\nSpam: {str(spam).lower()}\nScore: "
            in text
        )
        assert ("Symbol: SPAMGUARD_SPAM (" in text) is spam
        verdict = verdict_of(here, *packed, raw=raw)
        assert (verdict["score"] >= verdict["required_score"]) is spam
        assert verdict["milter"]["add_headers"]["X-Spam-Status"].startswith(
            "Yes, " if spam else "No, "
        )
    mail = rspamc(here, "--mime", raw=SPAM[0])
    assert "X-Spam: yes" in mail


def test_verdicts_are_in_the_history(here: ScannerSite) -> None:
    arguments = (
        "-i",
        "192.0.2.9",
        "-F",
        "a@x.example",
        "-r",
        "b@y.example",
        "-r",
        "c@y.example",
        "--helo",
        "h.example",
    )
    verdict = verdict_of(here, *arguments, raw=SPAM[1])
    name = verdict["symbols"]["SPAMGUARD_SPAM"]["options"][0]

    def row() -> Any:
        with History.open(here.running.state / "history.sqlite", 1 << 30, 30) as history:
            return history.find(name)

    eventually(row, "it is in the history")
    kept = row()
    assert (kept.client, kept.sender, kept.recipients) == (
        "192.0.2.9",
        "a@x.example",
        ("b@y.example", "c@y.example"),
    )
    explained = subprocess.run(
        [*daemon.COMMAND, "--state", str(here.running.state), "explain", name],
        capture_output=True,
        env=daemon.ENVIRONMENT,
        check=True,
    )
    assert b"spam" in explained.stdout


def test_learning(here: ScannerSite) -> None:
    raw = SPAM[2]
    assert verdict_of(here, "-d", "anna", raw=raw)["action"] == "add header"
    teaching = ("-P", here.password, "-u", "anna", "learn_ham")
    assert "success = true" in rspamc(here, *teaching, raw=raw)
    since = time.monotonic()
    assert "success = true" in rspamc(here, *teaching, raw=raw)  # 208: a repeat is no failure
    eventually(
        lambda: verdict_of(here, "-d", "anna", raw=raw)["action"] == "no action",
        "what anna says is in force for her",
    )
    assert time.monotonic() - since < IN_FORCE_SECONDS
    assert "success = true" in rspamc(here, "-P", here.password, "learn_spam", raw=SPAM[3])
    here.running.lines('lesson user="" by=rspamd class=spam')


def test_learning_takes_a_password(here: ScannerSite) -> None:
    for arguments in ((), ("-P", "wrong")):
        command = ["rspamc", "-h", f"127.0.0.1:{here.port}", *arguments, "learn_spam"]
        done = subprocess.run(
            command, input=HAM[1], capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
        assert b"success" not in done.stdout
        assert b"may not teach" in done.stdout + done.stderr
        assert done.returncode == 1


@pytest.mark.parametrize("command", ["stat", "uptime", "counters", "fuzzy_add"])
def test_commands_that_do_not_exist_get_an_error(here: ScannerSite, command: str) -> None:
    line = ["rspamc", "-h", f"127.0.0.1:{here.port}", "-f", "1", command]
    done = subprocess.run(
        line, input=HAM[1], capture_output=True, timeout=COMMAND_SECONDS, check=False
    )
    assert (done.returncode, b"no such thing here" in done.stdout + done.stderr) == (1, True)


def test_a_program_without_rspamc(here: ScannerSite) -> None:
    """As a script with curl does it: over one connection, with keep-alive."""
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=PATIENCE)
    try:
        for _ in range(3):
            connection.request("POST", "/checkv2", SPAM[0], {"Queue-Id": "Q1"})
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["action"]) == (200, "add header")
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b"pong\r\n"
    finally:
        connection.close()


def test_refusing_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with site(tmp_path, "rspamd", STRICT) as strict:
        assert "Action: reject" in rspamc(strict, "symbols", raw=SPAM[0])
