"""What the command line says becomes settings, alone or over those of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config.load import settings_from_command_line
from spamguard.config.options import (
    Watch,
)
from spamguard.errors import ConfigError
from tests.unit.config.files import STATE, listener


def test_the_command_line_without_a_file(tmp_path):
    settings = settings_from_command_line(
        None,
        usual_state=Path("/nowhere"),
        state=tmp_path,
        listen="lmtp://127.0.0.1:24",
        next_hop="smtp://192.0.2.1:25",
        watch=["/home/*/Maildir", "/mail"],
    )
    assert settings.watch == (Watch("/home/*/Maildir"), Watch("/mail"))
    assert settings.state == tmp_path
    assert [str(listener.listen) for listener in settings.listeners] == ["lmtp://127.0.0.1:24"]
    assert str(settings.listeners[0].next_hop.to) == "smtp://192.0.2.1:25"


@pytest.mark.parametrize("text", ["", "- 5", "listeners: 5", STATE + "listeners: [5]"])
def test_the_command_line_does_not_mend_a_bad_file(tmp_path, text):
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        settings_from_command_line(file, usual_state=tmp_path, listen="smtp://127.0.0.1:9")


def test_the_command_line_is_for_one_listener(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(
        listener("  - {listen: 'smtp://127.0.0.1:2', position: standalone, next_hop: 'lmtp:/x'}\n")
    )
    with pytest.raises(ConfigError, match="has 2 listeners: the option is for one"):
        settings_from_command_line(file, usual_state=tmp_path, listen="smtp://127.0.0.1:9")
