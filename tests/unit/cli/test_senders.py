"""`learn --sender` and `forget --sender`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.cli.test_status_daemon import saying

SENDER = "news@example.org"
DOMAIN = "example.org"
COUNTS = {"pid": 1, "authserv_ids": ["mx.example.org"], "personal": True}


@pytest.mark.parametrize("name", [SENDER, DOMAIN])
def test_undo_takes_a_word_back_and_lessons_are_as_before(
    run: Run, taught: Path, name: str
) -> None:
    before = run(taught, "status", "--json").json["classes"]
    with saying(taught, COUNTS):
        said = run(taught, "learn", "--as", "spam", "--sender", name, "--user", "anna").out
    assert ("everybody there" in said) == (name == DOMAIN)
    assert run(taught, "status", "--json").json["classes"] == before
    assert run(taught, "undo", "--user", "anna").status == 0
    assert "nothing was said" in run(taught, "forget", "--sender", name, "--user", "anna").out


def test_words_about_an_address_and_its_domain_are_two(run: Run, taught: Path) -> None:
    with saying(taught, COUNTS):
        assert "is wanted" in run(taught, "learn", "--as", "ham", "--sender", DOMAIN).out
    assert "nothing was said" in run(taught, "forget", "--sender", SENDER).out
    assert "forgot" in run(taught, "forget", "--sender", DOMAIN).out


@pytest.mark.parametrize(
    ("settings", "user", "missing"),
    [
        ({}, ["--user", "anna"], ["authserv_ids: [", "personal: true"]),
        ({}, [], ["authserv_ids: ["]),
        ({"personal": True}, ["--user", "anna"], ["authserv_ids: ["]),
        ({"authserv_ids": ["mx.example.org"]}, ["--user", "anna"], ["personal: true"]),
        ({"authserv_ids": ["mx.example.org"]}, [], []),
        (None, [], ["running daemon"]),
    ],
)
def test_a_word_counts_or_is_refused(
    run: Run, taught: Path, settings: dict[str, object] | None, user: list[str], missing: list[str]
) -> None:
    usual = {"pid": 1, "authserv_ids": [], "personal": False}
    answer = {"pid": 1} if settings is None else usual | settings
    with saying(taught, answer):
        done = run(taught, "learn", "--as", "ham", "--sender", SENDER, *user)
    assert done.failed(*missing) if missing else done.status == 0
    said = run(taught, "forget", "--sender", SENDER, *user).out
    assert ("nothing was said" in said) == bool(missing)


@pytest.mark.parametrize(
    "words", [("--sender", SENDER), ("--as", "newsletter", "--sender", SENDER)]
)
def test_a_word_that_makes_no_sense_is_refused(
    run: Run, taught: Path, words: tuple[str, ...]
) -> None:
    assert run(taught, "learn", *words).failed("--as ham")


@pytest.mark.parametrize(
    "words",
    [
        ("--sender", "no address"),
        ("--sender", "mail.example.org"),
        ("--sender", SENDER, "--new"),
        ("--sender", SENDER, "x"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    run: Run, taught: Path, words: tuple[str, ...], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(taught, "learn", "--as", "ham", *words)
    assert exit_.value.code == 2
    assert b"--sender" in capsysbinary.readouterr().err
