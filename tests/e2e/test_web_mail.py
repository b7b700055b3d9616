"""Mail to users from the real daemon, through a scripted next hop: login links and digests."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from email import message_from_bytes, policy
from pathlib import Path

import httpx
import pytest
from selenium.webdriver import Chrome

from spamguard.web.digest import DIGEST_FILE
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


def test_a_digest_goes_out_once(tmp_path: Path, hop: Hop) -> None:
    """The daemon was down at the hour: it sends when it starts, and not again when it restarts."""
    state = daemon.taught(tmp_path / "state")
    web = {"mail_from": FROM, "digest": "daily"}
    site = Site(state, web=web, hop=f"smtp://127.0.0.1:{hop.port}")
    with site.running() as running:
        running.lines("page and API on")
        eventually(lambda: last_digests(state), "the clock has started")
        site.send(
            daemon.unseen("spam", 6)[-1], to=["anna@example.net", "x@other.example"], held=True
        )
        running.lines("verdict=")
        assert ours(hop) == []
    set_digests(state, time.time() - 2 * 86_400)
    for _ in range(2):
        with site.running() as running:
            eventually(lambda: ours(hop), "the digest is sent")
            eventually(lambda: last_digests(state) > time.time() - 86_400, "all are dealt with")
            links = re.findall(r"http://\S+/quarantine/[0-9a-v]{16}", ours(hop)[0])
            assert [httpx.get(link).status_code for link in links] == [401]
    (text,) = ours(hop)
    assert "1 held, 0 unsure" in text
    assert hop.lines(b"RCPT")[-1].startswith(b"RCPT TO:<anna@example.net>")
    message = message_from_bytes(hop.messages[-1], policy=policy.default)
    assert message["Subject"] == "1 message held or unsure"
    assert message["Auto-Submitted"] == "auto-generated"


def last_digests(state: Path) -> float:
    if not (state / DIGEST_FILE).exists():
        return 0.0
    with closing(sqlite3.connect(state / DIGEST_FILE)) as db:
        rows = db.execute("SELECT hour FROM digests WHERE user = ''").fetchall()
        return float(rows[0][0]) if rows else 0.0


def set_digests(state: Path, hour: float) -> None:
    with closing(sqlite3.connect(state / DIGEST_FILE)) as db, db:
        db.execute("UPDATE digests SET hour = ?", (hour,))
