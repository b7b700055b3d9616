"""What `setup` makes of the answers; tests/e2e/test_setup.py tries it on real servers."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.cli import mail_servers
from spamguard.cli.setup import Answers, check_config, edit_yaml, make_config
from spamguard.config.load import load_settings, parse_yaml
from spamguard.config.options import Position, Settings
from spamguard.errors import ConfigError
from tests.unit.cli.conftest import Run

PRESENT = """\
# ours
state: /var/lib/spamguard
listeners:
  - listen: smtp://127.0.0.1:10025
    position: after-queue
    next_hop: smtp://127.0.0.1:10026
    rules: [{when: spam, from_probability: 0.999, action: quarantine}]

# two kinds of mailboxes
watch:
  - /home/*/Maildir   # of people
  - {maildir: /srv/*, folders: {Lists: ham}}
web: {listen: 127.0.0.1:10099, mail_from: spamguard@example.org, digest: daily}   # the page
"""


def made(file: Path, position: str, mailboxes: str = "/home/*/Maildir") -> Settings:
    """What the configuration says once setup has changed it."""
    old = load_settings(file) if file.exists() else None
    answers = Answers("postfix", position, mailboxes)
    text = make_config(file, old, answers, is_root=True)
    settings = check_config(Namespace(state=None, config=file), file, text)
    file.write_text(text)
    return settings


def test_what_is_not_asked_stays(tmp_path: Path) -> None:
    file = tmp_path / "spamguard.yaml"
    file.write_text(PRESENT)
    before = load_settings(file)
    settings = made(file, "before-queue")
    (listener,) = settings.listeners
    assert listener.position is Position.BEFORE_QUEUE
    assert listener == replace(before.listeners[0], position=Position.BEFORE_QUEUE)
    assert settings.web == before.web
    assert [watch.maildir for watch in settings.watch] == ["/home/*/Maildir", "/srv/*"]
    assert all(comment in file.read_text() for comment in ("# ours", "# two kinds", "# the page"))
    made(file, "before-queue", "/var/vmail/*/*")
    assert [watch.maildir for watch in load_settings(file).watch] == ["/var/vmail/*/*", "/srv/*"]


def test_positions_follow_one_another(tmp_path: Path) -> None:
    file = tmp_path / "spamguard.yaml"
    for position in ("milter", "after-queue", "milter", "before-queue", "after-queue"):
        settings = made(file, position)
        doors = [str(listener.position) for listener in settings.listeners]
        doors += [str(scanner.listen.protocol) for scanner in settings.scanners]
        assert doors == [position]
    text = file.read_text()
    made(file, "after-queue")
    assert file.read_text() == text


def test_what_check_would_refuse_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "spamguard.yaml"
    with pytest.raises(ConfigError, match=r"spamguard\.yaml:\d+:\d+: maildir"):
        made(file, "after-queue", "?")
    file.write_text(PRESENT)
    with pytest.raises(ConfigError, match="mail needs"):
        made(file, "milter")
    assert file.read_text() == PRESENT


@pytest.mark.parametrize("text", [PRESENT, "", "# nothing\n", "a: 1\n\n"])
def test_a_document_has_the_values_that_it_is_given(text: str) -> None:
    old = parse_yaml(text.encode()).value or {}
    assert edit_yaml(text, old) == text
    for change in ({"watch": ["/*"]}, {"state": None}, {"new": {"a": [1, {"b": "10:30"}]}}):
        wanted = {key: value for key, value in (old | change).items() if value is not None}
        assert (parse_yaml(edit_yaml(text, old | change).encode()).value or {}) == wanted


def test_a_position_that_the_server_lacks_is_refused(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "spamguard.yaml"
    words = ("--server", "exim", "--position", "milter", "--config", config)
    assert run(None, "setup", *words).failed("exim", "after-queue")
    assert not config.exists()


def test_snippets_come_from_the_installation_where_there_are_no_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mail_servers, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    name = "postfix/none-such.cf"
    file = tmp_path / "data" / "share" / "spamguard" / "config" / name
    file.parent.mkdir(parents=True)
    file.write_text("# ours\n")
    assert mail_servers.snippet(name) == "# ours\n"
