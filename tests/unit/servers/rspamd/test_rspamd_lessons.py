"""Lessons by rspamd's protocol: who may teach, and how slowly a password can be guessed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spamguard.servers import scanner
from spamguard.users import QueuedLesson
from tests.support.scanners import Served
from tests.unit.servers.rspamd.talking import MAIL, Answer, parse, request, run, said


def test_learning(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    password = {"Password": "secret"}

    async def talk(served: Served) -> list[Answer]:
        said = [
            ("/learnspam", {}),
            ("/learnspam", password),
            ("/learnspam", password),
            ("/learnham", password | {"User": "anna"}),
        ]
        answers = [parse(await served.say(request(path, fields=fields))) for path, fields in said]
        assert served.lessons() == [
            QueuedLesson("spam", "", "rspamd", MAIL),
            QueuedLesson("ham", "anna", "rspamd", MAIL),
        ]
        return answers

    answers = run(tmp_path, talk, password_file=tmp_path / "password")
    assert [answer.status for answer in answers] == [403, 200, 208, 200]
    assert [answer.json.get("success") for answer in answers] == [None, True, True, True]
    assert said(tmp_path, request("/learnspam", b""), teachers=("127.0.0.1",)).status == 400


@pytest.mark.usefixtures("hasty")
def test_a_password_may_be_as_long_as_its_file_may_have_it(tmp_path: Path) -> None:
    """What its file holds beyond the length that clients' words are cut at kept everybody out."""
    password = "long" * 200
    (tmp_path / "password").write_text(f"{password}\n")
    assert (
        said(
            tmp_path,
            request("/learnspam", fields={"Password": password}),
            password_file=tmp_path / "password",
        ).status
        == 200
    )
    assert (
        said(
            tmp_path,
            request("/learnspam", fields={"Password": password[:500]}),
            password_file=tmp_path / "password",
        ).status
        == 403
    )


@pytest.mark.slow
def test_passwords_are_not_guessed_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "_WRONG_PASSWORD_SECONDS", 0.5)
    (tmp_path / "password").write_text("secret\n")

    async def talk(served: Served) -> None:
        async def guess(password: str, path: str) -> int:
            return parse(await served.say(request(path, fields={"Password": password}))).status

        guesses = [
            asyncio.create_task(guess("wrong", path)) for path in ("/learnspam", "/learnham") * 2
        ]
        await asyncio.sleep(0.05)
        begun = asyncio.get_running_loop().time()
        assert await guess("secret", "/learnspam") == 200
        assert not all(guess.done() for guess in guesses)  # who knows it does not wait for those
        await asyncio.gather(*guesses)
        assert asyncio.get_running_loop().time() - begun > 1.5  # one after the other

    run(tmp_path, talk, password_file=tmp_path / "password")
