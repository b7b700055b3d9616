"""rspamd's own client, Debian's rspamc, with our daemon in the place of rspamd."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.scanning import HAM, IN_FORCE_SECONDS, SPAM, ScannerSite, site
from tests.support.waiting import COMMAND_SECONDS, eventually

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


def test_learning(here: ScannerSite) -> None:
    raw = SPAM[2]
    assert verdict_of(here, "-d", "anna", raw=raw)["action"] == "add header"
    teaching = ("-P", here.password, "-u", "anna", "learn_ham")
    assert "success = true" in rspamc(here, *teaching, raw=raw)
    since = time.monotonic()
    assert "success = true" in rspamc(here, *teaching, raw=raw)  # a repeat is no failure
    eventually(
        lambda: verdict_of(here, "-d", "anna", raw=raw)["action"] == "no action",
        "what anna says is in force for her",
    )
    assert time.monotonic() - since < IN_FORCE_SECONDS
    assert "success = true" in rspamc(here, "-P", here.password, "learn_spam", raw=SPAM[3])
    here.running.lines('lesson user="" by=rspamd class=spam')
