"""What the README shows is what happens: its tour, typed as it stands, on the mail its first command makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from corpora.synthetic import write
from spamguard.folders.reconcile import as_markdown

ROOT = Path(__file__).parents[2]


def block(mark: str) -> str:
    """The fenced block behind a mark of the README."""
    found = re.search(rf"<!-- {mark} -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert found is not None, f"README.md has no block marked {mark!r}"
    return found.group(1)


def run(script: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a block with its directories moved below `place`, and this interpreter's `spamguard`."""
    moved = script.replace("/tmp/spamguard-", f"{place}/").replace('PATH="$PWD/.venv/bin:$PATH"', "")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", moved], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_tour(tmp_path: Path) -> None:
    write(tmp_path / "mail", 400, 1)
    done = run(block("tour"), tmp_path)
    assert done.returncode == 0, done.stderr
    taught, *_, forgotten = done.stdout.splitlines()
    assert taught == "taught 251 messages as ham, 149 messages as spam"
    assert forgotten == "forgot 1 message"
    assert re.search(r"^ham +0\.0\d+ +.*/00400$", done.stdout, re.M)
    assert "X-Spamguard: ham" in done.stdout


def test_the_first_command_measures_a_filter(tmp_path: Path) -> None:
    """Without its first half, which makes the environment that this test runs in."""
    command = block("first command").rpartition("pip install -q . && ")[2].replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1-ROCA" in done.stdout


def test_the_proxy(tmp_path: Path) -> None:
    write(tmp_path / "mail", 400, 1)
    assert run(block("tour"), tmp_path).returncode == 0
    done = run("trap 'kill $(jobs -p) 2>&- || true' EXIT\n" + block("proxy"), tmp_path)  # or what it starts would outlive a failure
    assert done.returncode == 0, done.stderr
    assert re.search(r"Maildir/.*:X-Spamguard: (spam|ham|unsure); id=", done.stdout)
    assert "by expert: log-odds" in done.stdout


def test_what_teaches_is_the_table_of_the_code() -> None:
    assert as_markdown().strip() in (ROOT / "README.md").read_text("utf-8").partition("<!-- what teaches -->")[2]


def test_ci_finds_the_test_command() -> None:
    assert block("test command").strip().endswith("pytest")
