"""Lessons by rspamd's protocol: who may teach, and how slowly a password can be guessed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spamguard.servers import scanner
from tests.support.scanners import Served
from tests.unit.servers.rspamd.talking import parse, request, run


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
