"""Made-up mail is repeatable, well-formed, varied, invented, and quick to make."""

from __future__ import annotations

import re
import subprocess
import sys
from email import message_from_bytes, policy
from email.message import EmailMessage
from itertools import islice
from pathlib import Path
from typing import cast

import pytest

from corpora.synthetic import generate, main
from spamguard.sources import read_messages


@pytest.fixture(scope="module")
def mail() -> list[tuple[str, bytes]]:
    return list(generate(2000, 1))


@pytest.fixture(scope="module")
def parsed(mail: list[tuple[str, bytes]]) -> list[EmailMessage]:
    return [
        cast(EmailMessage, message_from_bytes(raw, policy=policy.default)) for _, raw in mail[:600]
    ]


def test_the_same_seed_gives_the_same_mail() -> None:
    assert list(generate(200, 5)) == list(generate(200, 5))
    assert list(generate(200, 5)) == list(islice(generate(300, 5), 200))
    assert list(generate(5, 5)) != list(generate(5, 6))
    assert list(generate(0, 1)) == []


@pytest.mark.slow
def test_a_strict_parser_finds_no_defect(parsed: list[EmailMessage]) -> None:
    for message in parsed:
        for part in message.walk():
            assert not part.defects
            assert all(not value.defects for value in part.values())
        for name in ("From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Received"):
            assert message[name], name


@pytest.mark.slow
def test_every_text_can_be_read_in_its_charset(parsed: list[EmailMessage]) -> None:
    for message in parsed:
        assert "\ufffd" not in str(message["Subject"]) + str(message["From"])
        for part in message.walk():
            if part.get_content_maintype() == "text":
                assert "\ufffd" not in part.get_content()


def test_only_hosts_that_can_never_exist(mail: list[tuple[str, bytes]]) -> None:
    reserved = re.compile(rb"(?:.*\.)?(?:example|invalid|example\.(?:com|net|org))")
    for _, raw in mail:
        for host in re.findall(
            rb"(?:@|https?://|from |by )([a-z0-9.-]+\.[a-z]{3,})(?=[>/; \n)\"])",
            raw.partition(b"\n\n")[0],
        ):
            assert reserved.fullmatch(host), host
        for host in re.findall(rb"https?://([a-z0-9.=-]+)/", raw):
            assert reserved.fullmatch(host.replace(b"=", b"")), host


def test_the_command_writes_a_corpus_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "corpus"
    script = Path(sys.modules["corpora.synthetic"].__file__ or "")
    subprocess.run(
        [sys.executable, str(script), "--messages", "30", "--seed", "4", str(target)],
        check=True,
        cwd=tmp_path,
    )
    assert [(message.label, message.raw) for message in read_messages(target)] == list(
        generate(30, 4)
    )
    assert main(["--messages", "1", str(target)]) == 1
    assert "choose a new directory" in capsys.readouterr().err
    assert len(list(read_messages(target))) == 30
