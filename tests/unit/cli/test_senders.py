"""`learn --sender` and `forget --sender`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

SENDER = "news@example.org"


def test_a_word_is_kept_once_and_taken_back(run: Run, taught: Path) -> None:
    learn = ("learn", "--as", "ham", "--sender", SENDER, "--user", "anna")
    assert run(taught, *learn).out == f"{SENDER}, for anna: its mail is wanted, by 6 nats\n"
    assert run(taught, *learn).out.endswith("by 6 nats (already known)\n")
    stronger = run(taught, *learn, "--strength", "strong", "--json").json
    assert stronger == {"sender": SENDER, "user": "anna", "nats": -12, "changed": True}
    forget = ("forget", "--sender", SENDER, "--user", "anna")
    assert run(taught, *forget).out.endswith("forgot what was said of it\n")
    assert run(taught, *forget).out.endswith("nothing was said of it\n")


def test_undo_takes_a_word_back_and_lessons_are_as_before(run: Run, taught: Path) -> None:
    before = run(taught, "status", "--json").json["classes"]
    run(taught, "learn", "--as", "spam", "--sender", SENDER, "--user", "anna")
    assert run(taught, "status", "--json").json["classes"] == before
    assert run(taught, "undo", "--user", "anna").status == 0
    assert "nothing was said" in run(taught, "forget", "--sender", SENDER, "--user", "anna").out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("learn", "--sender", SENDER), "--as ham"),
        (("learn", "--as", "newsletter", "--sender", SENDER), "--as ham"),
        (("learn", "--as", "ham", "--strength", "weak", "message.eml"), "--sender"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused(
    run: Run, taught: Path, words: tuple[str, ...], complaint: str
) -> None:
    assert run(taught, *words).failed(complaint)


@pytest.mark.parametrize(
    "words",
    [("--sender", "no address"), ("--sender", SENDER, "--force"), ("--sender", SENDER, "x")],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    run: Run, taught: Path, words: tuple[str, ...], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(taught, "learn", "--as", "ham", *words)
    assert exit_.value.code == 2
    assert b"--sender" in capsysbinary.readouterr().err
