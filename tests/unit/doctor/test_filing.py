"""Whether Dovecot files tagged spam, by its own `doveconf` with the snippets that we ship."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.config.options import Hop, Listener, Position, Settings, Watch, parse_endpoint

SNIPPETS = Path(__file__).parents[3] / "config" / "dovecot"
DOOR = parse_endpoint("smtp://127.0.0.1:10025")

pytestmark = pytest.mark.skipif(shutil.which("doveconf") is None, reason="Dovecot is not installed")


def settings(
    hop: str = "lmtp:/run/dovecot/lmtp", *, we_file: bool | None = None, watched: bool = True
) -> Settings:
    listener = Listener(DOOR, Position.STANDALONE, Hop(parse_endpoint(hop)))
    return Settings(
        Path("/"),
        (listener,),
        watch=(Watch("/home/*/Maildir", we_file=we_file),) if watched else (),
    )


@pytest.fixture
def told(tmp_path):
    """Outcome and detail of the step with a configuration of Dovecot; [] if there is no step."""

    def look(text: str, found: Settings) -> list[tuple[str, str]]:
        file = tmp_path / "dovecot.conf"
        file.write_text(text)
        return [(str(step.outcome), step.detail) for step in doctor.check_filing(found, str(file))]

    return look


def test_the_snippet_files(told, tmp_path):
    text = (SNIPPETS / "lmtp.conf").read_text()
    script = tmp_path / "spamguard" / "file-by-header.sieve"
    text = text.replace("/etc/dovecot/spamguard", str(script.parent))
    ((outcome, words),) = told(text, settings(we_file=True))
    assert (outcome, "asks for X-Spam-Flag" in words) == ("failed", True)  # the script is not there
    script.parent.mkdir()
    shutil.copy(SNIPPETS / script.name, script)
    assert told(text, settings(we_file=True)) == [("ok", f"{script} files what is tagged as spam")]
    text = text.replace(str(script), str(script.parent))  # a directory of scripts is as good
    assert told(text, settings()) == [("ok", f"{script.parent} files what is tagged as spam")]
    os.mkfifo(script.parent / "odd.sieve")  # nobody writes into it
    script.write_text('require ["fileinto"];\nfileinto "Archive";\n')
    ((outcome, words),) = told(text, settings())
    assert (outcome, "asks for X-Spam-Flag" in words) == ("skipped", True)


def test_without_sieve_filing_fails_or_is_skipped(told):
    ((outcome, words),) = told("protocols = imap lmtp\n", settings())
    assert (outcome, "no Sieve where it delivers" in words) == ("skipped", True)
    ((outcome, words),) = told("protocols = imap lmtp\n", settings(we_file=True))
    assert (outcome, "no Sieve where it delivers" in words) == ("failed", True)


def test_where_nothing_is_to_be_filed_by_dovecot(told, tmp_path):
    assert told("protocols = imap\n", settings("maildir:/home/x/Maildir")) == []
    assert told("protocols = imap\n", settings(watched=False)) == []
    assert list(doctor.check_filing(settings(), str(tmp_path / "none"))) == []
