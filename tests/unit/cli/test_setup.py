"""What `setup` makes of the answers; tests/e2e/test_setup.py tries it on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.cli.setup import Answers, Edit, make_config, make_plan
from spamguard.config.load import load_settings
from spamguard.config.options import Position
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("position", ["after-queue", "before-queue"])
def test_the_configuration_of_a_proxy_can_be_read(position: str, tmp_path: Path) -> None:
    file = tmp_path / "spamguard.yaml"
    file.write_text(make_config(Answers("postfix", position, "/home/*/Maildir"), is_root=True))
    settings = load_settings(file)
    (listener,) = settings.listeners
    assert listener.position is Position(position)
    assert str(listener.next_hop.to) == "smtp://127.0.0.1:10026"
    assert [watch.maildir for watch in settings.watch] == ["/home/*/Maildir"]
    assert settings.user == "spamguard"


def test_the_configuration_of_a_milter_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "spamguard.yaml"
    file.write_text(make_config(Answers("postfix", "milter", "/srv/it's/*"), is_root=True))
    settings = load_settings(file)
    assert [str(scanner.listen) for scanner in settings.scanners] == ["milter://127.0.0.1:11332"]
    assert [watch.maildir for watch in settings.watch] == ["/srv/it's/*"]


def test_another_server_gets_both_addresses() -> None:
    notes = " ".join(make_plan(Answers("other", "after-queue", "/home/*/Maildir")).notes)
    assert "127.0.0.1:10025" in notes
    assert "127.0.0.1:10026" in notes


def test_an_edit_is_done_once(tmp_path: Path) -> None:
    file = tmp_path / "main.cf"
    edit = Edit(file, "content_filter = spamguard\n", append=True)
    assert not edit.is_done()
    file.write_text("myhostname = mx\n" + edit.text)
    assert edit.is_done()


def test_a_position_that_the_server_lacks_is_refused(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "spamguard.yaml"
    words = ("--server", "exim", "--position", "milter", "--config", config)
    assert run(None, "setup", *words).failed("exim", "after-queue")
    assert not config.exists()
