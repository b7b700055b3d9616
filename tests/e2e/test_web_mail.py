"""Mail to users from the real daemon, through a scripted next hop: login links and digests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.e2e import daemon
from tests.e2e.moving import sibling
from tests.e2e.peers import Hop
from tests.e2e.web_site import Site
from tests.support.browser import (
    DESK,
    PHONE,
    barriers,
    chromium,
    complaints,
    needs_browser,
    press,
    shape,
    shows,
    too_wide,
)
from tests.support.waiting import eventually

FROM = "spamguard@example.net"


@pytest.fixture
def hop() -> Iterator[Hop]:
    with Hop().serving() as serving:
        yield serving


@pytest.fixture
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


def ours(hop: Hop) -> list[str]:
    """The texts of our own mail."""
    messages = [message_from_bytes(raw, policy=policy.default) for raw in hop.messages]
    return [message.get_content() for message in messages if message["Auto-Submitted"] is not None]


@needs_browser
def test_a_link_by_mail_lets_a_user_in(tmp_path: Path, hop: Hop, browser: Chrome) -> None:
    state = daemon.taught(tmp_path / "state")
    site = Site(state, web={"mail_from": FROM}, hop=f"smtp://127.0.0.1:{hop.port}")
    with site.running() as running:
        site.send(sibling(1))
        running.lines("verdict=")
        browser.get(f"{site.url}/history")
        for size in (PHONE, DESK):
            shape(browser, size)
            assert too_wide(browser) == 0
        assert barriers(browser) == []
        for address in ("nobody@example.net", "anna@example.net"):
            browser.get(f"{site.url}/login")
            browser.find_element("id", "address").send_keys(address)
            press(browser, "Mail me a link")
            shows(browser, "Look into your mail")
        eventually(lambda: ours(hop), "the link is sent")
        (text,) = ours(hop)
        (link,) = re.findall(r"http://127\.0\.0\.1:\S+", text)
        for _ in range(2):  # as a scanner of mail follows it
            browser.get(link)
            shows(browser, "This link works once.")
        press(browser, "Log in")
        shows(browser, "anna@example.net", ".who")
        eventually(lambda: browser.find_elements("css selector", ".mail li"), "the mail is shown")
        press(browser, "Log out", "header")
        eventually(lambda: browser.current_url.endswith("/login"), "the answer has come")
        browser.get(link)
        press(browser, "Log in")
        shows(browser, "was used before")
        complaints(browser)
    assert hop.lines(b"MAIL")[-1].startswith(b"MAIL FROM:<>")
    assert hop.lines(b"RCPT")[-1].startswith(b"RCPT TO:<anna@example.net>")
    assert "link=" not in running.log()
