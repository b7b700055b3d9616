"""`spamguard help` and `spamguard completion`: pages that hold every command and every option, man
pages in which man and mandoc find no fault, and completion in real shells.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from spamguard.cli import help as help_command
from spamguard.cli import main
from spamguard.cli.arguments import COMMANDS, build_parser
from spamguard.config import schema
from spamguard.web import documentation

PATIENCE = 60


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["help", *words]) == 0
    return capsys.readouterr().out


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None,
        reason=f"needs {program}: apt-get install {package or program}",
    )


def test_without_a_topic_it_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert page(capsys) == page(capsys, "spamguard") == build_parser().format_help()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert page(capsys, name).startswith(capsys.readouterr().out[:40])


@pytest.mark.parametrize("topic", documentation.PAGES)
def test_a_topic_is_a_page_of_the_documentation(
    capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    file = Path(__file__).parents[3] / documentation.PAGES[topic]
    assert page(capsys, topic) == file.read_text("utf-8")


def test_pages_come_from_the_installation_where_there_are_no_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(documentation, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    assert main(["help", "service"]) == 2
    assert "README.md is not installed" in capsys.readouterr().err
    file = tmp_path / "data" / "share" / "spamguard" / "systemd" / "README.md"
    file.parent.mkdir(parents=True)
    file.write_text("# As a service\n")
    assert page(capsys, "service") == "# As a service\n"


@pytest.mark.parametrize("words", [["nonsense"], ["--man", "learn"]])
def test_there_is_no_such_page(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["help", *words])
    assert stop.value.code == 2
    assert "spamguard.yaml" in capsys.readouterr().err


def test_every_option_of_the_configuration_stands_in_its_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = " ".join(page(capsys, "spamguard.yaml").split())
    for part in schema.all_parts():
        for key, field in part.model_fields.items():
            assert f" {key} {field.description}" in words
    assert "listeners: limits" in words
    assert "before-queue, after-queue, standalone. Required." in words


def test_every_command_and_its_options_stand_in_the_man_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = page(capsys, "--man").replace("\\-", "-")
    for name, parser in help_command.subparsers(build_parser()).items():
        assert f"\n.SS {name}\n" in source
        for action in parser._actions:
            assert action.help == "==SUPPRESS==" or all(
                option in source for option in action.option_strings
            )


def test_the_same_day_makes_the_same_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert page(capsys, "--man").startswith(".TH SPAMGUARD 1 1970-01-01 ")


def test_text_that_looks_like_roff_is_only_text() -> None:
    blocks = (
        help_command.Block("text", ".so /etc/passwd"),
        help_command.Block("verbatim", "'a \\n\n\n.b"),
    )
    source = help_command.to_roff(help_command.Manual("x", 1, "y", blocks))
    assert [line[:2] for line in source.splitlines()[3:]].count(".s") == 0
    assert "\\&.so /etc/passwd" in source
    assert "\\&'a \\en\n.PP\n\\&.b" in source


@needs("mandoc")
@needs("man", "man-db")
@pytest.mark.parametrize("words", [["--man"], ["--man", "spamguard.yaml"]])
def test_man_and_mandoc_find_no_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "page"
    file.write_text(page(capsys, *words), "utf-8")
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    for line in (["man", "--warnings", "-l", file], ["mandoc", "-T", "lint", file]):
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.stderr == ""
        assert line[0] == "man" or done.stdout == ""
        assert done.returncode == 0


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
