"""`spamguard completion` in real shells, and the man page made from the same parser."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spamguard.cli import main
from spamguard.cli.arguments import COMMANDS

PATIENCE = 60


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None,
        reason=f"needs {program}: apt-get install {package or program}",
    )


@needs("man", "man-db")
def test_the_man_page_has_every_command_with_its_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From the function that config/debian/build names; man finds no fault."""
    file = tmp_path / "page"
    names = ("--module", "spamguard.cli.completion", "--function", "build_listed_parser")
    program = Path(sys.executable).with_name("argparse-manpage")
    line = [program, *names, "--prog", "spamguard", "--output", file]
    subprocess.run(line, check=True, timeout=PATIENCE)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "200"}
    line = ["man", "--warnings", "-l", file]
    shown = subprocess.run(line, env=environment, capture_output=True, check=True, timeout=PATIENCE)
    assert shown.stderr == b""
    text = shown.stdout.decode()
    for name in COMMANDS:
        _, _, part = text.partition(f"\nCOMMAND 'spamguard {name}'\n")
        part = part.partition("\nCOMMAND ")[0]
        with pytest.raises(SystemExit):
            main([name, "--help"])
        options = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M)
        assert len(options) >= 2
        assert [option for option in options if option not in part] == []


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


@needs("bash")
@pytest.mark.parametrize(("line", "expected"), COMPLETIONS)
def test_bash(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: set[str]
) -> None:
    (tmp_path / "configuration.yaml").touch()
    file = script(capsys, tmp_path, "bash")
    words = line.split()
    commands = f"""
        . {file}
        compopt() {{ :; }}  # which bash allows while somebody types only
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1} COMP_LINE='{line}' COMP_POINT={len(line)}
        _shtab_spamguard spamguard {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", commands], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (set(done.stdout.split()), done.stderr) == (expected, "")


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


@needs("zsh")
@pytest.mark.parametrize(("line", "expected"), COMPLETIONS)
def test_zsh(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: set[str]
) -> None:
    """In a terminal, where it completes what is typed."""
    (tmp_path / "configuration.yaml").touch()
    script(capsys, tmp_path, "zsh")
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(other_end)
    try:
        begin = (
            f"PS1=; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; echo re''ady"
        )
        os.write(terminal, f"{begin}\n".encode())
        _read_until(terminal, "ready")
        os.write(terminal, f"{line}\t".encode())
        (word,) = expected
        _read_until(terminal, re.escape(line.rpartition(" ")[0]) + r".*" + re.escape(word))
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _read_until(terminal: int, pattern: str) -> None:
    seen, until = "", time.monotonic() + PATIENCE
    os.set_blocking(terminal, False)
    while not re.search(pattern, seen, re.DOTALL):
        assert time.monotonic() < until, seen
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.05)
