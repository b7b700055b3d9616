"""The JSON Schema for editors takes what `check` takes, and refuses slips of the finger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from spamguard.cli import main
from spamguard.config.load import parse_yaml
from spamguard.config.schema import schema_for_editors, to_plain
from spamguard.errors import ConfigError
from tests.unit.config.files import SHIPPED, listener
from tests.unit.config.test_mistakes import MISTAKES

SCHEMA = schema_for_editors()
VALIDATOR = Draft202012Validator(SCHEMA)
# What a pattern cannot say: that a port is none, that a network has host bits, a class that nobody
# can have, words of our own
BEYOND = (
    "5:5: expected a port",
    "an address within",
    "found '/home/../x'",
    "at most 80 bytes",
    "whole days",
    "192.0.2.1/24",
    "'0s'",
    "is no",
    "above 0",
    "state",
    "0.1:0'",
    "expected at least one",
    "expected the key 'listeners'",
    "anna b",
    "expected no ",
    "mx1.example",
)


def parsed(text: str | bytes) -> Any:
    tree = parse_yaml(text if isinstance(text, bytes) else text.encode())
    return None if tree.broken or tree.problems else tree.value


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", sorted(SHIPPED.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_it_takes_the_files_that_we_ship(file: Path) -> None:
    VALIDATOR.validate(parsed(file.read_bytes()))


RICH = listener(
    "    limits: {message_size: 1.5 GB}\n    spam_threshold: 0.99\n"
    "    tls: null\n"
    "    rules: [{when: newsletter, action: redirect, to: a@example.org}]\n"
    "    teach: {addresses: {s@example.org: spam}, senders: ['*@example.org'], user: local-part}\n"
    "watch: [/home/*/Maildir, {maildir: /x, folders: {'Lists/*': ham, Bin: trash}, we_file: "
    "null}]\n"
    "teach: {spool: /x}\naliases: {'*@example.org': anna b, info: ''}\n"
    "metrics: '[::1]:9110'\n"
    "web: {listen: '127.0.0.1:8080', hosts: [Spam.example.org, '::1']}\n",
    listen="lmtp://[::1]:24",
    hop="{to: lmtp:/run/x, tls: off}",
)


def test_it_takes_units_and_short_forms(load: Any) -> None:
    VALIDATOR.validate(parsed(RICH))
    VALIDATOR.validate(
        json.loads(json.dumps(to_plain(load(RICH))))
    )  # what `check` prints is a file again


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("listen:", "lisen:"),
        ("when:", "wen:"),
        ("folders:", "folder:"),
        ("newsletter", "News letter"),
        ("1.5 GB", "1.5 XB"),
        ("standalone", "stand-alone"),
        ("tls: off", "tls: on"),
        ("spool: /x", "spool: x"),
        ("spam_threshold: 0.99", "spam_threshold: 1 in 1000"),
        ("Spam.example.org", "spam.example.org:80"),
        ("hosts:", "host:"),
    ],
)
def test_it_refuses_slips(right: str, wrong: str, load: Any) -> None:
    text = RICH.replace(right, wrong)
    assert text != RICH
    assert not VALIDATOR.is_valid(parsed(text))
    with pytest.raises(ConfigError):
        load(text)


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items())
def test_it_finds_the_mistakes_that_a_schema_can_find(text: str | bytes, expected: str) -> None:
    value = parsed(text)
    if value is not None and not any(word in expected.splitlines()[0] for word in BEYOND):
        assert not VALIDATOR.is_valid(value)


def options(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    parts = {"": schema, **schema["$defs"]}
    return {
        f"{part}.{name}": option
        for part, described in parts.items()
        for name, option in described["properties"].items()
    }


def test_every_option_is_described() -> None:
    described = options(SCHEMA)
    assert len(described) > 70
    assert [name for name, option in described.items() if not option.get("description")] == []


def test_its_defaults_are_those_in_the_shipped_file() -> None:
    shown = parsed(SHIPPED.read_bytes())
    (one,) = shown["listeners"]
    parts = {"": shown, "Listener": one, "Hop": one["next_hop"], "DoorLimits": one["limits"]}
    told = {
        name: option["default"] for name, option in options(SCHEMA).items() if "default" in option
    }
    checked = {
        f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()
    }
    both = told.keys() & checked.keys()
    assert len(both) > 20
    assert {name: told[name] for name in both} == {name: checked[name] for name in both}


def test_lists_and_parts_that_may_be_left_out_have_defaults_too() -> None:
    described = options(SCHEMA)
    assert [
        described[name]["default"]
        for name in (".web", ".watch", "Listener.teach", "Listener.rules")
    ] == [None, [], None, []]
    assert "default" not in described[".listeners"]
    assert SCHEMA["$defs"]["Watch"]["properties"]["we_file"]["anyOf"][0] == {"type": "boolean"}


def test_check_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
