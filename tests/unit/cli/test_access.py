"""`token` and `login-link`: who is let in, for how long, and who is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spamguard.cli import admin
from spamguard.web.auth import CREDENTIALS_FILE, CredentialKind, CredentialStore, Person
from tests.unit.cli.test_status_daemon import HEALTHY, saying


def holder(state: Path, kind: CredentialKind, text: str, later: int = 0) -> Person | None:
    store = CredentialStore.open(state)
    try:
        credential = store.find(kind, text, int(time.time()) + later)
        return credential.person if credential else None
    finally:
        store.close()


def test_a_token_is_made_shown_once_and_revoked(run, state):
    made = run(state, "token", "create", "phone", "--user", "anna")
    assert (made.status, holder(state, CredentialKind.TOKEN, made.out.strip())) == (
        0,
        Person("anna"),
    )
    assert "shown once" in made.err
    listed = run(state, "token", "list")
    assert "phone" in listed.out
    assert made.out.strip().partition(".")[2] not in listed.out
    assert made.out.strip() not in (state / CREDENTIALS_FILE).read_bytes().decode("latin-1")
    assert run(state, "token", "revoke", "phone").status == 0
    assert holder(state, CredentialKind.TOKEN, made.out.strip()) is None
    assert run(state, "token", "revoke", "phone").status == admin.EXIT_NOT_FOUND
    assert run(state, "token", "list").out == ""


def test_an_operators_token(run, state):
    made = run(state, "token", "create", "monitor", "--operator", "--expires", "90d").out.strip()
    assert holder(state, CredentialKind.TOKEN, made) == Person("monitor", operator=True)
    assert holder(state, CredentialKind.TOKEN, made, 90 * 86_400 - 60)
    assert holder(state, CredentialKind.TOKEN, made, 90 * 86_400 + 60) is None
    assert "monitor (operator)" in run(state, "token", "list").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "x"], ["--user", "--operator"]),
        (["create", "a b", "--operator"], ["letters"]),
    ],
)
def test_impossible_arguments_are_refused(run, state, arguments, words):
    assert run(state, "token", *arguments).failed(*words)


def test_an_end_that_is_no_duration_is_wrong_usage(run, state, capsysbinary):
    with pytest.raises(SystemExit, match="2"):
        run(state, "token", "create", "x", "--operator", "--expires", "soon")
    assert b"--expires: expected a duration" in capsysbinary.readouterr().err


def test_a_token_name_is_unique(run, state):
    run(state, "token", "create", "x", "--operator")
    assert run(state, "token", "create", "x", "--user", "anna").failed("already")


def test_a_link_for_the_page_that_the_daemon_serves(run, state):
    with saying(
        state,
        HEALTHY | {"web": {"listen": "http://127.0.0.1:8080", "page": "https://spam.example.org"}},
    ):
        made = run(state, "login-link", "--user", "anna")
    page, _, link = made.out.strip().partition("/login?link=")
    assert page == "https://spam.example.org"
    assert holder(state, CredentialKind.LINK, link) == Person("anna")
    assert holder(
        state, CredentialKind.LINK, link, 540
    )  # ten minutes, less what a busy machine takes to get here
    assert holder(state, CredentialKind.LINK, link, 601) is None


def test_a_link_needs_a_url_if_no_daemon_serves_a_page(run, state):
    assert run(state, "login-link", "--user", "anna").failed("no daemon serves a page", "--url")
    with saying(state, HEALTHY):
        assert run(state, "login-link", "--user", "anna").failed("no daemon serves a page")
    assert not (state / CREDENTIALS_FILE).exists()
    link = run(state, "login-link", "--operator", "--url", "http://[::1]:8080/").out.strip()
    assert link.startswith("http://[::1]:8080/login?link=")
    assert holder(state, CredentialKind.LINK, link.partition("=")[2]) == Person(
        "operator", operator=True
    )


def test_revoking_ends_sessions_and_links(run, state):
    made = (
        run(state, "login-link", "--user", "anna", "--url", "http://localhost:8080")
        .out.strip()
        .partition("=")[2]
    )
    assert run(state, "login-link", "--user", "anna", "--revoke").out == "anna: ended 1 session\n"
    assert holder(state, CredentialKind.LINK, made) is None
