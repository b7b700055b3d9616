"""Accounts: what may be said of them, and where their passwords and tokens come from."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.accounts import Account, AccountTls, Mode, OAuth, find_preset, providers
from spamguard.config.oauth import device_login
from spamguard.config.schema import dump_settings
from spamguard.errors import SecretError

NEEDED = "{name: anna, server: imap.example.org, user: anna"


def accounts(*entries: str) -> str:
    return "state: /x\naccounts:\n" + "".join(f"  - {entry}\n" for entry in entries)


def account(**values: Any) -> Account:
    return Account("anna", "imap.example.org", "anna@example.org", **values)


def test_accounts_need_no_door(load: Any) -> None:
    text = accounts(
        f"{NEEDED}, password_command: pass show mail, mode: move, folders: {{Old: ignored}}}}",
        "{name: b@example.org, server: 127.0.0.1, user: b, credential: mail, tls: none}",
    )
    first, second = load(text).accounts
    assert (first.mode, first.folders) == (Mode.MOVE, (("Old", "ignored"),))
    assert (first.usual_port, second.usual_port) == (993, 143)
    assert second.tls is AccountTls.NONE
    assert load(dump_settings(load(text))).accounts == (first, second)


@pytest.mark.parametrize(
    ("entry", "mistake"),
    [
        (f"{NEEDED}}}", "3:5: accounts: expected one of password_file, "),
        (
            f"{NEEDED}, password_command: a, credential: b}}",
            "found password_command and credential",
        ),
        (f"{NEEDED}, password_command: a, tls: none}}", "expected tls or starttls"),
        (f"{NEEDED}, password_file: /nowhere}}", "expected a file that can be read"),
        (
            f"{NEEDED}, password_command: a, mode: loook}}",
            "mode: expected one of look, ",
        ),
        (f"{NEEDED}, oauth: {{client_id: a, token_file: /x}}}}", "oauth needs a preset"),
        (f"{NEEDED}, password_command: a, preset: microsoft}}", "Microsoft has switched passwords"),
        (f"{NEEDED}, password_command: a, credential: ../x}}", "credential: expected a name"),
        ("{name: ../x, server: s, user: u, credential: c}", "name: expected a name such as"),
    ],
)
def test_mistakes(mistakes: Any, entry: str, mistake: str) -> None:
    (found,) = mistakes(accounts(entry))
    assert mistake in found


def test_two_accounts_have_two_names(mistakes: Any) -> None:
    entry = f"{NEEDED}, credential: a}}"
    assert mistakes(accounts(entry, entry)) == ["4:6: there are two accounts anna"]


def test_the_provider_is_known_by_domain_or_server() -> None:
    known = {"Anna@GoogleMail.com": "gmail", "a@me.com": "icloud", "a@gmx.de": "gmx"}
    known |= {"a@web.de": "web.de", "a@example.org": "other", "anna": "other"}
    assert {address: find_preset(address) for address in known} == known
    assert find_preset("anna@firm.example", "IMAP.gmail.com") == "gmail"
    assert find_preset("anna@firm.example", "outlook.office365.com") == "microsoft"


def test_passwords_are_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mail"
    file.write_bytes("pässwort \r\nmore\n".encode())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for each in (
        account(password_file=file),
        account(password_command=f"cat '{file}'"),
        account(credential="mail"),
    ):
        assert each.read_secret() == "pässwort "


@pytest.mark.parametrize("command", ["false", "true", "no-such-command", "'", "printf '\\377'"])
def test_a_command_without_a_password_is_an_error(command: str) -> None:
    with pytest.raises(SecretError, match="anna: "):
        account(password_command=command).read_secret()


# ---- tokens


@contextmanager
def provider(
    answers: Sequence[tuple[int, object]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, dict[str, str]]]]:
    """Microsoft on loopback, with these answers in turn; what it was asked."""
    rest = iter(answers)
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.path, dict(urllib.parse.parse_qsl(text))))
            status, answer = next(rest)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    here = providers()["microsoft"]._replace(token_url=f"{url}/token", device_url=f"{url}/device")
    monkeypatch.setitem(providers(), "microsoft", here)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def oauth(tmp_path: Path) -> OAuth:
    (tmp_path / "secret").write_text("geheim\n")
    return OAuth("our-id", tmp_path / "token", tmp_path / "secret")


def test_a_refresh_token_is_traded_and_its_successor_kept(
    oauth: OAuth, monkeypatch: pytest.MonkeyPatch
) -> None:
    oauth.token_file.write_text("old\n")
    answers = [(200, {"access_token": "A", "expires_in": 3599, "refresh_token": "new"})]
    with provider(answers, monkeypatch) as asked:
        assert account(preset="microsoft", oauth=oauth).read_secret() == "A"
    fields = {"grant_type": "refresh_token", "refresh_token": "old", "client_id": "our-id"}
    assert asked == [("/token", fields | {"client_secret": "geheim"})]
    assert oauth.token_file.read_text() == "new\n"
    assert oauth.token_file.stat().st_mode & 0o777 == 0o600


def test_a_refused_token_names_the_remedy(oauth: OAuth, monkeypatch: pytest.MonkeyPatch) -> None:
    oauth.token_file.write_text("old\n")
    text = "AADSTS700082: The refresh token has expired due to inactivity.\r\nTrace ID: 1"
    answers = [(400, {"error": "invalid_grant", "error_description": text}), (200, ["?"])]
    with provider(answers, monkeypatch):
        for said in ("due to inactivity.: make a new one", "no token from there"):
            with pytest.raises(SecretError, match=said):
                account(preset="microsoft", oauth=oauth).read_secret()
    assert oauth.token_file.read_text() == "old\n"


def test_a_code_is_typed_in_elsewhere(oauth: OAuth, monkeypatch: pytest.MonkeyPatch) -> None:
    start = {
        "device_code": "D",
        "user_code": "AB-12",
        "verification_uri": "https://x",
        "interval": 0,
    }
    answers = [
        (200, start),
        (400, {"error": "authorization_pending"}),
        (200, {"access_token": "A", "refresh_token": "R"}),
        (200, start),
        (400, {"error": "authorization_declined"}),
    ]
    told = []
    mailbox = account(preset="microsoft", oauth=oauth)
    with provider(answers, monkeypatch) as asked:
        device_login(mailbox, oauth, lambda *words: told.append(words))
        assert oauth.token_file.read_text() == "R\n"
        with pytest.raises(SecretError, match="authorization_declined"):
            device_login(mailbox, oauth, lambda *words: told.append(words))
    assert told == [("https://x", "AB-12")] * 2
    assert [path for path, _ in asked] == ["/device", "/token", "/token", "/device", "/token"]
    assert "IMAP.AccessAsUser.All" in asked[0][1]["scope"]
    assert asked[1][1]["device_code"] == "D"
