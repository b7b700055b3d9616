"""`spamguard completion` in real shells, and the man page made from the same parser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from spamguard.cli import main


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None,
        reason=f"needs {program}: apt-get install {package or program}",
    )


# ---- completion, in the shells


def script(capsys: pytest.CaptureFixture[str], place: Path, shell: str) -> Path:
    assert main(["completion", shell]) == 0
    file = place / "_spamguard"
    file.write_text(capsys.readouterr().out)
    return file


COMPLETIONS = [
    ("spamguard teach-p", {"teach-pipe"}),
    ("spamguard undo --dry", {"--dry-run"}),
    ("spamguard quarantine rel", {"release"}),
    ("spamguard completion f", {"fish"}),
    ("spamguard check confi", {"configuration.yaml"}),
]


@needs("fish")
@pytest.mark.parametrize(("line", "expected"), COMPLETIONS)
def test_fish(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: set[str]
) -> None:
    (tmp_path / "configuration.yaml").touch()
    file = script(capsys, tmp_path, "fish")
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {file}; complete -C '{line}'"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {row.partition("\t")[0] for row in done.stdout.splitlines()} == expected
    assert done.stderr == ""
