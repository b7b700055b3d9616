"""The queue of unsure mail in a real Chromium: with keys, and without any script."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys

from tests.e2e import daemon
from tests.e2e.moving import sibling
from tests.e2e.test_web_pages import address, search, subject
from tests.e2e.web_site import Site
from tests.support.browser import (
    barriers,
    chromium,
    complaints,
    log_in,
    needs_browser,
    press,
    shows,
    steadily,
    text,
    texts,
)
from tests.support.waiting import eventually

pytestmark = needs_browser
MESSAGES = {"anna": range(1, 6), "ben": range(6, 11)}


def copies(number: int) -> list[bytes]:
    """Three messages with one subject that differ in their last line."""
    lines = [
        b"Subject: alike" if line.startswith(b"Subject:") else line
        for line in sibling(number).splitlines()
    ]
    return [b"\r\n".join([*lines, b"copy %d" % copy, b""]) for copy in range(3)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Five unsure messages for anna and for ben, and three that are alike."""
    site = Site(daemon.taught(tmp_path_factory.mktemp("queue") / "state"))
    with site.running():
        for user, numbers in MESSAGES.items():
            site.send(*map(sibling, numbers), *copies(numbers[0]), to=[address(user)])
        yield site


def opened(site: Site, browser: Chrome, user: str) -> list[str]:
    """The subjects in the queue of this user, once all are there."""
    log_in(browser, site.link("--user", user))

    def are_there() -> bool:
        browser.get(f"{site.url}/queue")
        return len(texts(browser, ".mail li")) == 6 and "3 alike" in text(browser)

    eventually(are_there, "the queue is whole")
    complaints(browser)
    return texts(browser, ".mail .subject")


def keys(browser: Chrome, pressed: str) -> None:
    ActionChains(browser).send_keys(pressed).perform()


def focused(browser: Chrome) -> str:
    """The subject of the row that has the focus."""
    script = "return document.activeElement.closest('li')?.querySelector('.subject').innerText"
    return str(steadily(lambda: browser.execute_script(script)))


def counted(browser: Chrome, page: str) -> int:
    """The number beside the name of a page in the navigation; 0 if there is none."""
    match = re.search(rf"{page}\s+([0-9]+)", text(browser, "#pages"))
    return int(match[1]) if match else 0


def has(browser: Chrome, subjects: list[str]) -> None:
    eventually(
        lambda: [line for line in texts(browser, ".mail .subject") if line] == subjects, "the rows"
    )


def test_keys(site: Site) -> None:
    with chromium() as browser:
        first, second, third, fourth, *rest = opened(site, browser, "anna")
        assert "alike" in (first, second, third, fourth, *rest)
        assert focused(browser) == first
        assert len(list(filter(None, texts(browser, ".mail .clues bdi")))) == 3 * 6
        assert len(list(filter(None, texts(browser, ".mail .line bdi")))) == 6
        assert counted(browser, "Unsure") == 8
        keys(browser, "jjk")
        assert focused(browser) == second
        keys(browser, "s")
        shows(browser, "Learnt as spam", "#notice")
        assert counted(browser, "Unsure") == (5 if second == "alike" else 7)
        has(browser, [first, third, fourth, *rest])
        assert focused(browser) == third
        keys(browser, "u")
        shows(browser, "Taken back: ", "#notice")
        has(browser, [first, second, third, fourth, *rest])
        assert focused(browser) == second
        keys(browser, " jj ")  # second and fourth
        keys(browser, "h")
        shows(browser, "Learnt as ham", "#notice")
        has(browser, [first, third, *rest])
        keys(browser, "u")
        has(browser, [first, second, third, fourth, *rest])
        keys(browser, "kkkkkkk")
        assert focused(browser) == first
        keys(browser, "ssh")  # faster than the filter learns
        has(browser, [fourth, *rest])
        shows(browser, "Learnt as ham", "#notice")
        browser.get(f"{site.url}/history?q=said:any")
        said = [line for line in texts(browser, ".mail .own") if line]
        assert sorted(set(said)) == ["You said: ham", "You said: spam"]
        browser.get(f"{site.url}/queue")
        has(browser, [fourth, *rest])
        press(browser, "Select all")
        assert len(browser.find_elements("css selector", "li input:checked")) == 3
        assert barriers(browser) == []
        keys(browser, "/")
        keys(browser, "shj u")  # words, not keys
        assert browser.find_element("name", "q").get_attribute("value") == "shj u"
        assert len(texts(browser, ".mail li")) == 3
        assert complaints(browser) == []


def test_without_scripts(site: Site) -> None:
    with chromium(scripts=False) as browser:
        subjects = opened(site, browser, "ben")
        search(browser, f'subject:"{subject(8)}"')
        has(browser, [subject(8)])
        press(browser, "Ham", ".mail li")
        shows(browser, "Learnt as ham.", "#notice")
        press(browser, "Undo", "#notice")
        shows(browser, "Taken back: you had said ham.", "#notice")
        press(browser, "Clear")
        has(browser, subjects)
        press(browser, "Select all")
        boxes = browser.find_elements("css selector", ".mail input")
        assert all(box.is_selected() for box in boxes)
        boxes[0].click()
        press(browser, "Spam", ".several")
        shows(browser, "Learnt as spam", "#notice")
        has(browser, subjects[:1])
        assert complaints(browser) == []


def test_keys_in_history_and_quarantine(site: Site) -> None:
    site.send(*daemon.unseen("spam", 6)[-4:-2], held=True, to=[address("clara")])
    with chromium() as browser:
        log_in(browser, site.link("--user", "clara"))

        def listed(path: str) -> int:
            browser.get(f"{site.url}{path}")
            return len(texts(browser, ".mail li"))

        eventually(lambda: listed("/history") == 2, "the history has them")
        keys(browser, "jj")
        second = focused(browser)
        keys(browser, "h")
        shows(browser, "You said: ham", ".mail li:nth-child(2)")
        assert "You said" not in text(browser, ".mail li")
        assert focused(browser) == second
        keys(browser, "u")
        shows(browser, "Ham", ".mail li:nth-child(2)")
        keys(browser, Keys.ENTER)
        shows(browser, "All features", "h2")
        assert text(browser, "h1") == second

        assert listed("/quarantine") == 2
        assert counted(browser, "Quarantine") == 2
        keys(browser, "jr")
        shows(browser, "Released: 1 message, learnt as ham: 1.", "#notice")
        shows(browser, "released", ".mail li")
        assert counted(browser, "Quarantine") == 1
        keys(browser, "jkr")  # it has nothing to release any more
        keys(browser, "j")
        assert focused(browser) == texts(browser, ".mail .subject")[1]
        keys(browser, Keys.ENTER)
        shows(browser, "All features", "h2")
        assert complaints(browser) == []
