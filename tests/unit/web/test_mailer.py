"""Login links by mail: who gets one, what it looks like, and that nobody learns who is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest

from spamguard.config.options import HostPort, Web
from spamguard.web import mail
from spamguard.web.auth import CredentialKind, CredentialStore
from spamguard.web.mail import LINKS_OF_CLIENT, LINKS_OF_USER, Mailer
from tests.support.hops import FakeHop, Script
from tests.support.waiting import eventually, until
from tests.unit.filters import opened, teach
from tests.unit.web.fixed import Fixed
from tests.unit.web.office import MAIL, asked, serving, settings
from tests.unit.web.served import ANNA, Served, served

FROM = "spamguard@example.org"
WEB = Web(HostPort("127.0.0.1", 8080), mail_from=FROM)
NOBODY = ("", "")


# ---- who is a user


@pytest.mark.parametrize(
    ("address", "user", "mailbox"),
    [
        ("anna@example.org", "anna@example.org", "anna@example.org"),  # has got mail
        ("Ben+news@Example.ORG", "ben@example.org", "ben@example.org"),
        ("carl@example.org", *NOBODY),  # has got none
        ("anna@example.net", *NOBODY),  # has got mail, but may be anybody's correspondent
        ("dora@elsewhere.example", "dora@elsewhere.example", "dora@elsewhere.example"),
        ("fritz@evil.example", "fritz", "fritz@example.org"),  # not to the address that was asked
        ("sales@example.org", "fritz", "fritz@example.org"),
        ("info@example.org", *NOBODY),
        ("x@alias.example", "greta", "greta@example.org"),
        ("odd@example.org", *NOBODY),  # whose own address belongs to somebody else
        ("hans", *NOBODY),  # whose name cannot be written in an address
        ("anna@example.org\r\nBcc: b@evil.example", *NOBODY),
        ("<anna@example.org>", *NOBODY),
        ("@example.org", *NOBODY),
        ("", *NOBODY),
        ("a" * 9000 + "@example.org", *NOBODY),
    ],
)
def test_who_gets_a_link(state: Path, address: str, user: str, mailbox: str) -> None:
    with opened(state) as spam_filter:
        teach(spam_filter, MAIL[:1], "dora@elsewhere.example")
        teach(spam_filter, MAIL[:1], "fritz")
    aliases = (
        ("sales@example.org", "fritz"),
        ("info@example.org", ""),
        ("*@alias.example", "greta"),
        ("odd@example.org", "ida"),
        ("ida@example.org", "fritz"),
        ("hans", "hans two> SIZE=1"),
    )
    found = asked(
        settings(state, aliases=aliases), lambda service: service.find_user(address, FROM)
    )
    assert found == (user, mailbox)


# ---- the message


def parsed(raw: bytes) -> EmailMessage:
    return cast("EmailMessage", message_from_bytes(raw, policy=policy.default))


# ---- sending


def test_links_for_users_alone_and_few_of_them(state: Path) -> None:
    addresses = ["carl@example.org", *["ben@example.org"] * 5, "anna@example.org"]
    hop = sent(state, addresses, 1 + LINKS_OF_USER)
    assert [command for command in hop.commands if command.startswith("RCPT")] == [
        *["RCPT TO:<ben@example.org>"] * LINKS_OF_USER,
        "RCPT TO:<anna@example.org>",
    ]
    assert {message.sender for message in hop.messages} == {""}
    text = parsed(hop.messages[-1].data).get_content()
    secret = text.partition("/login?link=")[2].split()[0]
    store = CredentialStore.open(state)
    link = store.find(CredentialKind.LINK, secret, int(time.time()))
    store.close()
    assert link is not None
    assert (link.kind, link.person.name, link.person.operator) == (
        CredentialKind.LINK,
        "anna@example.org",
        False,
    )


@pytest.mark.parametrize(
    "script",
    [
        {"RCPT": [b"550 5.1.1 no such user\r\n", b"250 ok\r\n"]},
        {"DOT": [b"451 4.3.0 later\r\n", b"250 ok\r\n"]},
        {"MAIL": [b"421 4.3.2 going down\r\n", b"250 ok\r\n"]},
    ],
)
def test_a_refused_message_is_logged_and_the_next_one_goes(
    state: Path, caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    caplog.set_level(logging.INFO, "spamguard.web")
    sent(state, ["anna@example.org", "ben@example.org"], 2, script, caplog)
    lines = [record for record in caplog.records if record.getMessage().startswith("mail to=")]
    assert [record.levelno for record in lines] == [logging.ERROR, logging.INFO]
    assert "anna@example.org" in lines[0].getMessage()
    assert "link=" not in caplog.text


def sent(
    state: Path,
    addresses: Sequence[str],
    messages: int,
    script: Script | None = None,
    caplog: pytest.LogCaptureFixture | None = None,
) -> FakeHop:
    """The hop after it was handed so many messages, or so many lines of the log tell of them."""
    hop = FakeHop(script or {})

    def done() -> bool:
        if caplog is None:
            return len(hop.messages) >= messages
        return caplog.text.count("mail to=") >= messages

    async def run() -> None:
        async with hop.running():
            configuration = settings(state, hops=(str(hop.endpoint),))
            async with serving(configuration) as service:
                sender = Mailer(configuration, WEB, service)
                for address in addresses:
                    sender.request_link(address)
                running = asyncio.create_task(sender.run())
                await until(done, f"{messages} messages handed on")
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    asyncio.run(run())
    return hop


def test_requests_that_nobody_can_work_off_are_dropped(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        configuration = settings(state)
        async with serving(configuration) as service:
            sender = Mailer(configuration, WEB, service)
            for _ in range(100):
                sender.request_link("anna@example.org")

    asyncio.run(run())
    assert "too many requests for login links" in caplog.text


# ---- the form


class Listed:
    """Notes who asks, in the place of a mailer."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.check_client = Mailer(
            settings(Path("/")), WEB, cast("mail.Service", None)
        ).check_client

    def request_link(self, address: str) -> None:
        self.addresses.append(address)


def ask(server: Served, address: str, **fields: str) -> tuple[int, str, str]:
    client = server.client(**{"Sec-Fetch-Site": "same-origin", **fields})
    answer = client.post("/login/mail", data={"address": address})
    fields = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status_code, answer.text, str(fields)


def test_the_answer_is_the_same_for_all(tmp_path: Path) -> None:
    listed = Listed()
    with served(tmp_path, WEB, mailer=listed) as server:
        form = 'action="/login/mail"'
        assert form in server.client().get("/login").text
        assert form in server.client().get("/").text  # the page that says who is not logged in
        addresses = ["anna@example.org", "nobody@example.org", "", "ü"]
        answers = {ask(server, address) for address in addresses}
        assert [status for status, _, _ in answers] == [303]
        handed_on = sorted(addresses)  # each after its answer, in any order
        eventually(lambda: sorted(listed.addresses) == handed_on, "all four handed on")
        assert "a link is on its way" in server.client().get("/login?asked").text


def test_one_client_may_not_ask_without_end(tmp_path: Path) -> None:
    listed = Listed()
    with served(tmp_path, WEB, mailer=listed) as server:
        found = [ask(server, f"a{number}@example.org")[0] for number in range(LINKS_OF_CLIENT + 2)]
    assert found == [303] * LINKS_OF_CLIENT + [429, 429]
    eventually(lambda: len(listed.addresses) == LINKS_OF_CLIENT, "handed on after the answer")


def test_without_a_sender_there_is_no_form(tmp_path: Path) -> None:
    with served(tmp_path, replace(WEB, mail_from=""), Fixed()) as server:
        assert "/login/mail" not in server.client().get("/login").text
        assert "/login/mail" not in server.client().get("/").text
        assert ask(server, "anna@example.org")[0] == 404
        assert "log" in server.browser(ANNA).get("/").text
