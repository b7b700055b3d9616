"""What the command line says becomes settings, alone or over those of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config.load import load_settings, settings_from_command_line
from spamguard.config.options import (
    Endpoint,
    Hop,
    HostPort,
    Listener,
    OnError,
    Position,
    Protocol,
    Settings,
    Watch,
    Web,
    parse_endpoint,
)
from spamguard.errors import ConfigError
from tests.unit.config.files import STATE, listener


def test_without_any_configuration(tmp_path):
    settings = settings_from_command_line(None, usual_state=tmp_path)
    maildir = Endpoint(Protocol.MAILDIR, path=tmp_path / "Maildir")
    listener = Listener(parse_endpoint("smtp://127.0.0.1:10025"), Position.STANDALONE, Hop(maildir))
    assert settings == Settings(
        tmp_path,
        (listener,),
        watch=(Watch(f"{tmp_path}/Maildir"),),
        web=Web(HostPort("127.0.0.1", 10088)),
    )


def test_a_maildir_of_ours_that_gets_no_mail_is_not_watched(tmp_path: Path) -> None:
    assert (
        settings_from_command_line(
            None, usual_state=tmp_path, next_hop="smtp://127.0.0.1:10026"
        ).watch
        == ()
    )


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


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(listener("    on_error: defer\n"))
    usual = settings_from_command_line(file, usual_state=Path("/usual"))
    assert usual == load_settings(file)
    settings = settings_from_command_line(
        file,
        usual_state=Path("/usual"),
        state=Path("relative"),
        listen="smtp://127.0.0.1:9",
        next_hop="lmtp:/x",
    )
    (one,) = settings.listeners
    assert (settings.state, str(one.listen), str(one.next_hop.to)) == (
        Path.cwd() / "relative",
        "smtp://127.0.0.1:9",
        "lmtp:/x",
    )
    assert one.policy.on_error is OnError.DEFER
    file.write_text(listener().replace(STATE, ""))
    assert settings_from_command_line(file, usual_state=Path("/usual")).state == Path("/usual")


@pytest.mark.parametrize(
    ("listen", "next_hop", "told"),
    [
        ("smtp://x", None, "--listen: expected smtp://HOST:PORT"),
        (None, "x", "--next-hop: expected smtp://HOST:PORT"),
        (
            "smtp://0.0.0.0:25",
            None,
            "--listen: smtp://0.0.0.0:25 can be reached from other machines: list",
        ),
        (None, "smtp://127.0.0.1:10025", "--next-hop: mail would come back"),
    ],
)
@pytest.mark.parametrize("with_file", [True, False])
def test_mistakes_of_the_command_line(tmp_path, with_file, listen, next_hop, told):
    file = tmp_path / "some.yaml"
    file.write_text(listener())
    with pytest.raises(ConfigError) as caught:
        settings_from_command_line(
            file if with_file else None, usual_state=tmp_path, listen=listen, next_hop=next_hop
        )
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(told)


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


def test_the_command_line_gives_scanners_no_listener(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("state: /x\nscanners:\n  - listen: spamd://127.0.0.1:783\n")
    with pytest.raises(ConfigError, match="has 0 listeners: the option is for one"):
        settings_from_command_line(file, usual_state=tmp_path, listen="smtp://127.0.0.1:9")
