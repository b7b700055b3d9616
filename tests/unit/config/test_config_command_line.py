"""What holds without a file, and --state in place of what a file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config.load import load_settings
from spamguard.config.options import Watch
from spamguard.errors import ConfigError
from tests.unit.config.files import STATE, listener


def test_without_a_file_mail_comes_into_a_maildir(tmp_path: Path) -> None:
    for given in ({"state": tmp_path}, {"usual_state": tmp_path}):
        settings = load_settings(None, **given)
        assert settings.state == tmp_path
        assert settings.watch == (Watch(f"{tmp_path}/Maildir"),)
        (only,) = settings.listeners
        assert str(only.listen) == "smtp://127.0.0.1:10025"
        assert str(only.next_hop.to) == f"maildir:{tmp_path}/Maildir"


def test_the_state_directory_of_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(listener())
    usual = tmp_path / "usual"
    assert load_settings(file, usual_state=usual).state == Path("/var/lib/spamguard")
    assert load_settings(file, state=tmp_path, usual_state=usual).state == tmp_path
    file.write_text(listener().removeprefix(STATE))
    assert load_settings(file, usual_state=usual).state == usual


@pytest.mark.parametrize("text", ["", "- 5", "listeners: 5", STATE + "listeners: [5]"])
def test_the_command_line_does_not_mend_a_bad_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_settings(file, state=tmp_path)
