"""What a file says becomes settings, and settings can be written as a file again."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config import schema
from spamguard.config.load import load_settings
from spamguard.config.options import (
    Endpoint,
    Protocol,
    Scanner,
    SharedSettings,
)
from spamguard.config.schema import dump_settings, to_plain
from spamguard.config.shared import DatabaseTls
from spamguard.errors import ConfigError
from tests.unit.config.files import SHIPPED, listener


@pytest.mark.parametrize("text", ["127.0.0.1:9110", "[::1]:9110", "0.0.0.0:1"])
def test_where_monitors_may_ask(load, text):
    settings = load(listener(f"metrics: '{text}'\n"))
    assert str(settings.metrics) == text
    assert to_plain(settings)["metrics"] == text
    exposed = [warning for warning in schema.find_warnings(settings) if "metrics" in warning]
    assert len(exposed) == text.startswith("0.")


def test_a_node_of_several_machines(load, tmp_path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o640)
    text = (
        "shared: {database: 'host=db1,db2 dbname=spamguard user=spamguard_node', "
        f"password_file: {password}, tls: {{ca: {password}}}, url: 'https://mx1.example:8443/', "
        "name: mx1}"
    )
    settings = load(listener(text))
    assert settings.shared == SharedSettings(
        "host=db1,db2 dbname=spamguard user=spamguard_node",
        password,
        DatabaseTls(ca=password),
        "https://mx1.example:8443",
        "mx1",
    )
    assert load(dump_settings(settings)) == settings


# ---- scanners


def test_scanners_need_no_listener(load):
    settings = load("state: /x\nscanners:\n  - listen: milter:/run/spamguard/milter.sock\n")
    assert (
        settings.doors
        == settings.scanners
        == (Scanner(Endpoint(Protocol.MILTER, path=Path("/run/spamguard/milter.sock"))),)
    )
    assert not settings.accepts_lessons
    assert load(dump_settings(settings)) == settings


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("secret\n", 0o640, ""),
        ("secret", 0o644, "chmod 0640"),
        ("\n", 0o600, "a password in its first line"),
    ],
)
def test_a_password_is_read_from_a_private_file(load, tmp_path, text, mode, told):
    file = tmp_path / "password"
    file.write_text(text)
    file.chmod(mode)
    scanner = (
        f"state: /x\nscanners:\n  - listen: rspamd://127.0.0.1:11333\n    password_file: {file}\n"
    )
    if told:
        with pytest.raises(ConfigError, match=told):
            load(scanner)
    else:
        assert load(scanner).accepts_lessons


# ---- warnings

_SPAM, _SURE_SPAM = (
    "when: spam, action: tag",
    "when: spam, from_probability: 0.99, action: quarantine",
)
_OWN_CLASS = (
    "is a class of its own, of good mail unless it was made with `learn --unwanted`: did you mean"
)
_TAUGHT = "{addresses: {a@b.example: junk, c@b.example: ham}, senders: ['*@b.example']}"
WARNINGS = {
    # A class that a file names is made, and is good mail: spam moved to its folder was learnt so.
    f"    teach: {_TAUGHT}\nwatch: [{{maildir: /x, folders: {{Old: trahs, "
    "Bin: trash, Work: work, News: newsletter}}]\n": [
        f"smtp://127.0.0.1:10025: teach: a@b.example: junk {_OWN_CLASS} spam?",
        f"/x: folders: Old: trahs {_OWN_CLASS} trash?",
    ],
    # The first rule that fits is done: nothing was ever quarantined.
    f"    rules: [{{{_SPAM}}}, {{when: unsure, action: tag}}, {{{_SURE_SPAM}}}]\n": [
        "smtp://127.0.0.1:10025: rule 3 for spam never fits, as rule 1 does before it: put the one "
        "with the higher from_probability first"
    ],
    f"    rules: [{{{_SURE_SPAM}}}, {{{_SPAM}}}]\n": [],
}


@pytest.mark.parametrize(("text", "warnings"), WARNINGS.items())
def test_what_is_hardly_meant_is_warned_of(load, text, warnings):
    assert schema.find_warnings(load(listener(text))) == warnings


def test_nothing_is_warned_of_in_the_shipped_file():
    assert schema.find_warnings(load_settings(SHIPPED)) == []
