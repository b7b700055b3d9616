"""The JSON Schema for editors takes what `check` takes, and refuses slips of the finger."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from spamguard.config.load import parse_yaml
from spamguard.config.schema import schema_for_editors, to_plain
from tests.unit.config.files import listener

SCHEMA = schema_for_editors()
VALIDATOR = Draft202012Validator(SCHEMA)


def parsed(text: str | bytes) -> Any:
    tree = parse_yaml(text if isinstance(text, bytes) else text.encode())
    return None if tree.broken or tree.problems else tree.value


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


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


def test_lists_and_parts_that_may_be_left_out_have_defaults_too() -> None:
    described = options(SCHEMA)
    assert [
        described[name]["default"]
        for name in (".web", ".watch", "Listener.teach", "Listener.rules")
    ] == [None, [], None, []]
    assert "default" not in described[".listeners"]
    assert SCHEMA["$defs"]["Watch"]["properties"]["we_file"]["anyOf"][0] == {"type": "boolean"}
