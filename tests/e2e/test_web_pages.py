"""The page of the real daemon in a real Chromium: mail comes in, users see it, ask why, and correct
it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from selenium.webdriver import ActionChains, Chrome

from tests.e2e import daemon
from tests.e2e.moving import MOVED, sibling
from tests.e2e.web_site import Site
from tests.support.browser import (
    chromium,
    complaints,
    log_in,
    needs_browser,
    press,
    shows,
    steadily,
    text,
)
from tests.support.waiting import eventually

pytestmark = needs_browser
SPAM_FLAG = b"X-Spam-Flag: YES"
_NUMBERS = count()


@pytest.fixture(scope="module", params=[True, False], ids=["scripts", "no scripts"])
def started(request: pytest.FixtureRequest) -> Iterator[Chrome]:
    """One that runs scripts, and one that does not: everything works in both."""
    with chromium(scripts=request.param) as driver:
        yield driver


@pytest.fixture
def browser(started: Chrome) -> Chrome:
    """A browser without cookies. Cookies belong to a host, whatever its port."""
    started.get("about:blank")
    started.execute_cdp_cmd("Network.clearBrowserCookies", {})
    complaints(started)
    return started


@pytest.fixture
def site(state: Path) -> Iterator[Site]:
    """A site for tests that see all mail, or change something for good."""
    site = Site(state)
    with site.running():
        yield site


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for tests that look at the mail of users of their own, and take back their lessons."""
    site = Site(daemon.taught(tmp_path_factory.mktemp("shared") / "state"))
    with site.running():
        yield site


@pytest.fixture
def who() -> str:
    """A user who has no mail yet."""
    return f"anna{next(_NUMBERS)}"


def address(who: str) -> str:
    return f"{who}@example.net"


def subject(number: int) -> str:
    """Of a sibling."""
    return next(
        line for line in sibling(number).decode().splitlines() if line.startswith("Subject: ")
    ).removeprefix("Subject: ")


def seen(driver: Chrome, words: str) -> None:
    """Wait until the history shows these words: the mouse out of its way, as new mail waits while
    it is over the list; without scripts one loads the page again.
    """
    steadily(
        lambda: (
            ActionChains(driver)
            .move_to_element(driver.find_element("css selector", "header .mark"))
            .perform()
        )
    )

    def is_there() -> bool:
        if words in text(driver):
            return True
        if not driver.find_elements("css selector", "html.js"):
            driver.refresh()
        return False

    eventually(is_there, f"{words!r} in the history")


def row(driver: Chrome, words: str) -> str:
    """Selector of the row with these words."""

    def found() -> str:
        return next(
            str(element.get_attribute("id"))
            for element in driver.find_elements("css selector", ".mail li")
            if words in element.text
        )

    return f"#{steadily(found)}"


def test_mail_shows_up_and_one_click_teaches(site: Site, browser: Chrome) -> None:
    log_in(browser, site.link("--operator"))
    browser.get(f"{site.url}/history")
    shows(browser, "No mail has passed yet")
    site.send(*map(sibling, MOVED))
    for number in MOVED:  # all of them before the first click, which the next one could move
        seen(browser, subject(number))
    for number in MOVED:
        assert SPAM_FLAG not in site.delivered(subject(number).encode())
        here = row(browser, subject(number))
        press(browser, "Spam", here)
        shows(browser, "Learnt as spam.", "#notice")
        shows(browser, "Message digest", "#notice")
        shows(browser, "You said: spam", here)
    site.send(sibling(2))
    assert SPAM_FLAG in site.delivered(subject(2).encode())
    seen(browser, subject(2))
    assert "✕spam" in text(browser, row(browser, subject(2))).split()
    for number in MOVED:
        here = row(browser, subject(number))
        press(browser, "Undo", here)
        shows(browser, "Taken back: you had said spam.", "#notice")
        eventually(lambda here=here: "You said" not in text(browser, here), "undone")
    site.send(sibling(3))
    assert SPAM_FLAG not in site.delivered(subject(3).encode())
    assert complaints(browser) == []


def search(browser: Chrome, words: str) -> None:
    """By the one search box of a page."""
    field = browser.find_element("name", "q")
    field.clear()
    field.send_keys(words)
    press(browser, "Search")
    eventually(lambda: f"q={quote_plus(words)}" in browser.current_url, "searched")


EVIL = (
    b'Message-ID: <evil@evil.example>\r\nFrom: "<img src=x onerror=alert(1)>" '
    b"<evil@evil.example>\r\nTo: anna@example.net\r\n"
    b"Subject: =?utf-8?B?"
    + b64encode("<script>alert(1)</script>\u202egnp.exe\x1b[31m&lt;".encode())
    + b"?=\r\n\r\n"
    b'<script>alert(2)</script> "><svg/onload=alert(3)> \xe2\x80\xaeevil {{7*7}} '
    b"javascript:alert(4)\r\n"
)


def test_hostile_mail_is_shown_harmlessly(shared: Site, who: str, browser: Chrome) -> None:
    shared.send(EVIL, sender='"<script>alert(5)</script>"@evil.example', to=[address(who)])
    log_in(browser, shared.link("--user", who))
    browser.get(f"{shared.url}/history")
    seen(browser, "<script>alert(1)</script>")
    shown = text(browser, ".mail .subject")
    assert shown.startswith("<script>alert(1)</script>")
    assert shown.endswith("[31m&lt;")
    assert "\u202e" not in browser.page_source
    assert "\x1b" not in browser.page_source
    browser.find_element("css selector", ".mail .subject").click()
    shows(browser, "All features")
    assert text(browser, "h1").startswith("<script>alert(1)</script>")
    press(browser, "Spam", ".say-it")
    shows(browser, "Learnt as spam.", "#notice")
    press(browser, "Undo", "#notice")
    shows(browser, "Taken back: you had said spam.", "#notice")
    assert len(browser.find_elements("css selector", "script")) == 1
    assert complaints(browser) == []  # neither an alert nor a violation of the policy
