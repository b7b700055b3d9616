"""Every page in a real Chromium, over a service of fixed values: its look and texts, also with the
worst that senders can write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys

from spamguard.web.auth import CredentialKind, Person
from spamguard.web.history import Search
from spamguard.web.models import Hour, JudgementPage, LessonReceipt, Model, ReleaseResult, Today
from tests.support.browser import (
    DESK,
    PHONE,
    barriers,
    chromium,
    complaints,
    log_in,
    needs_browser,
    press,
    shape,
    shows,
    text,
    texts,
    too_wide,
)
from tests.support.waiting import eventually
from tests.unit.web.fixed import NAME, NOW, OPERATOR, OTHER, Fixed, judgement
from tests.unit.web.served import Served, served
from tests.unit.web.test_hostile_pages import WORDS, Hostile
from tests.unit.web.test_views import MAIL, PAGES

pytestmark = needs_browser


NARROWEST = (320, 740)
"""On which nothing is to be scrolled sideways (WCAG 2.2, 1.4.10): that is 1280 pixels at 400 %."""


class Empty(Fixed):
    """Nothing was taught, and nothing has passed today."""

    async def today(self, person: Person, hours: int = 24) -> Today:
        return Today([Hour(NOW - 3600 * n, {}, 0) for n in reversed(range(hours))], 0, 0, ())

    async def model(self, person: Person) -> Model:
        return Model({}, "", 0, ())


class Long(Fixed):
    async def classes(self) -> Mapping[str, bool]:
        return {"ham": False, "spam": True, "family-and-friends-of-the-house": False}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


def enter(driver: Chrome, server: Served, person: Person = OPERATOR) -> None:
    driver.delete_all_cookies()
    shape(driver, DESK)
    log_in(driver, f"{server.url}/login?link={server.secret(CredentialKind.LINK, person)}")
    complaints(driver)


def walk(driver: Chrome, server: Served, mail: Path) -> Iterator[str]:
    """Every page, one after the other, with those that forms lead to."""
    others = ["/history?q=subject:nothing+since:2026-01-01", "/nowhere"]
    for path in [*PAGES, *others]:
        driver.get(server.url + path)
        driver.execute_script(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        yield path
    driver.get(f"{server.url}/teach")
    driver.find_element("id", "file").send_keys(str(mail))
    driver.find_element("css selector", "input[name=class][value=spam]").click()
    press(driver, "Teach")
    shows(driver, "Learnt as spam.", "#notice")
    yield "taught"


@pytest.mark.parametrize(
    ("service", "likings"),
    [
        pytest.param(Fixed(), (False, True), id="usual"),
        pytest.param(Empty(), (True,), id="empty", marks=pytest.mark.nightly),
        pytest.param(Long(), (), id="long"),
        pytest.param(Hostile(), (False,), id="hostile"),
    ],
)
def test_pages_are_accessible_and_not_too_wide(
    tmp_path: Path, browser: Chrome, service: Fixed, likings: tuple[bool, ...]
) -> None:
    """Checked by axe in light and in dark, at 320 pixels, and against the content policy."""
    mail = tmp_path / "a.eml"
    mail.write_bytes(MAIL)
    with served(tmp_path, service=service) as server:
        enter(browser, server)
        found, wide = [], {}
        for path in walk(browser, server, mail):
            for dark in likings:
                shape(browser, DESK, dark=dark)
                found += barriers(browser, colours_only=dark and False in likings)
            shape(browser, NARROWEST)
            if too_wide(browser):
                wide[path] = too_wide(browser)
            shape(browser, DESK)
        assert found == []
        assert wide == {}
        assert [line for line in complaints(browser) if "404" not in line] == []


def test_the_worst_is_shown_and_does_nothing(tmp_path: Path, browser: Chrome) -> None:
    mail = tmp_path / "a.eml"
    mail.write_bytes(MAIL)
    with served(tmp_path, service=Hostile()) as server:
        enter(browser, server, Person("olga", operator=True))
        browser.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument",
            {"source": "window.alerts = 0; window.alert = () => { alerts++ }"},
        )
        for path in walk(browser, server, mail):
            assert browser.execute_script(
                "return [alerts, document.scripts.length, document.querySelectorAll('img, "
                "iframe, [style]').length]"
            ) == [0, 1, 0], path
        browser.get(f"{server.url}/history")
        subject = browser.find_element("css selector", ".mail .subject bdi").text
        assert subject.startswith('<script>alert(1)</script> "><img src=x onerror=alert(1)>')
        assert "⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+2069⟩⟨U+200F⟩" in subject
        assert "⟨U+0000⟩⟨U+001B⟩[31m⟨U+007F⟩" in subject
        assert browser.title == "History · spamguard"
        browser.find_element(
            "css selector", ".mail button"
        ).click()  # and what the script puts into the page
        shows(browser, "Learnt as <script>alert(1)</script>", "#notice")
        assert browser.execute_script("return alerts") == 0
        assert [line for line in complaints(browser) if "404" not in line] == []
    assert "\u202e" in WORDS


def test_letters_with_a_hundred_marks_cover_nothing(tmp_path: Path, browser: Chrome) -> None:
    """All text of senders is in an element that clips it, and that holds little else."""
    mail = tmp_path / "a.eml"
    mail.write_bytes(MAIL)
    with served(tmp_path, service=Hostile()) as server:
        enter(browser, server, Person("olga", operator=True))
        for path in walk(browser, server, mail):
            open_to_all = browser.execute_script(
                """const cuts = (style) =>
                    style.display !== "inline" && style.overflowY !== "visible";
                return [...document.querySelectorAll("bdi")].filter((one) => {
                    let at = one;
                    while (!at.matches("main, table, body") && !cuts(getComputedStyle(at)))
                        at = at.parentElement;
                    return at.matches("main, table, body");
                }).map((one) => one.parentElement.outerHTML.slice(0, 100))"""
            )
            assert open_to_all == [], path


@pytest.mark.parametrize("size", [DESK, PHONE, NARROWEST])
def test_no_name_hides_the_address(tmp_path: Path, browser: Chrome, size: tuple[int, int]) -> None:
    """However long a name is, and whatever it looks like, the whole address of the author is
    readable, and so is that of the envelope.
    """
    host = f"{'long-' * 9}host.evil.example"
    named = [("paypal@paypal.com " * 9)[:48], "W" * 48, "שלום " * 9, "<paypal@paypal.com>"]
    rows = [
        judgement(f"06gvk961gretkb{number:02}", author=f"{name} <x@{host}>")
        for number, name in enumerate(named)
    ]
    cut = (
        "return [...document.querySelectorAll('.address')].filter((one) => one.scrollWidth > "
        "one.clientWidth + 1"
    )
    with served(
        tmp_path,
        service=Fixed([replace(row, sender=f"{'bounce-' * 6}4711@mailer.example") for row in rows]),
    ) as server:
        enter(browser, server)
        shape(browser, size)
        browser.get(f"{server.url}/history")
        assert texts(browser, ".people:not(.envelope) .address") == [f"<x@{host}>"] * len(rows)
        assert all(
            text.endswith("4711@mailer.example") for text in texts(browser, ".envelope .address")
        )
        assert (
            browser.execute_script(f"{cut} || one.scrollHeight > one.clientHeight + 1).length") == 0
        )
        assert not too_wide(browser)


@pytest.mark.parametrize("width", [1280, 360])
def test_letters_may_be_twice_as_large(tmp_path: Path, browser: Chrome, width: int) -> None:
    """WCAG 2.2, 1.4.4, also in a browser that only has larger letters: nothing is cut off but
    addresses, and nothing needs scrolling sideways.
    """
    with served(
        tmp_path,
        service=Fixed([judgement(taught="ham", action="quarantine", held=True), judgement(OTHER)]),
    ) as server:
        enter(browser, server)
        for path in [
            "/history?q=subject:Solar",
            f"/history/{NAME}",
            "/quarantine",
            f"/quarantine/{NAME}",
        ]:
            browser.get(server.url + path)
            shape(browser, (width, 740))
            browser.execute_script("document.documentElement.style.fontSize = '200%'")
            assert too_wide(browser) == 0, path
            cut, narrow = browser.execute_script(
                """const all = (what) => [...document.querySelectorAll(what)];
                return [
                    all("main .chip").filter((one) => one.scrollWidth > one.clientWidth)
                        .map((one) => one.innerText),
                    all(".mail .what, .mail .when").map((one) => one.clientWidth / 32)
                        .filter((rem) => rem < 4.5)];"""
            )
            assert (cut, narrow) == ([], []), path
        shape(browser, DESK)


def test_by_keyboard_alone(tmp_path: Path, browser: Chrome) -> None:
    """The first stop skips the navigation; the next are the help, the fields and the first button,
    which teaches by Space; the message follows it.
    """
    service = Fixed([judgement(OTHER, label="ham"), judgement(NAME)])
    with served(tmp_path, service=service) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")

        def press_keys(*keys: str) -> str:
            ActionChains(browser).send_keys(*keys).perform()
            return str(
                browser.execute_script(
                    "const at = document.activeElement; return at.id || at.innerText || at.tagName"
                )
            )

        assert press_keys(Keys.TAB) == "Skip to the content"
        assert press_keys(Keys.ENTER) == "main"
        stops = [press_keys(Keys.TAB) for _ in range(10)]
        assert stops[7:9] == ["Search", "Solar panels"]
        assert "Spam" in stops[9]
        outline = browser.execute_script(
            "return getComputedStyle(document.activeElement).outlineStyle"
        )
        assert outline == "solid"
        press_keys(Keys.SPACE)
        shows(browser, "Learnt as spam.", "#notice")
        assert service.calls == [("learn_passed", "", OTHER, "spam")]
        assert browser.switch_to.active_element.text == "Solar panels"


@pytest.mark.parametrize("path", ["/queue", "/history", "/quarantine"])
def test_enter_opens_why_and_never_teaches_or_releases(
    tmp_path: Path, browser: Chrome, path: str
) -> None:
    service = Fixed([judgement(label="unsure")])
    with served(tmp_path, service=service) as server:
        enter(browser, server)

        def press_enter(selector: str, number: int = 0) -> None:
            browser.get(server.url + path)
            for box in browser.find_elements("css selector", ".mail [type=checkbox]"):
                box.click()
            script = "document.querySelectorAll(arguments[0])[arguments[1]].focus()"
            browser.execute_script(script, selector, number)
            ActionChains(browser).send_keys(Keys.ENTER).perform()

        for selector in (".mail a.subject", ".mail [type=checkbox]", ".mail button"):
            browser.get(server.url + path)
            for number in range(len(browser.find_elements("css selector", selector))):
                press_enter(selector, number)
                shows(browser, "All features", "h2")
        for number in range(len(browser.find_elements("css selector", ".several button"))):
            press_enter(".several button", number)
        browser.get(server.url + path)
        assert service.calls == []


def test_times_are_the_readers_own(tmp_path: Path, browser: Chrome) -> None:
    with served(tmp_path, service=Fixed([judgement()])) as server:
        enter(browser, server)
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Pacific/Auckland"})
        browser.get(f"{server.url}/history/{NAME}")
        time = browser.find_element("css selector", ".facts time")
        assert (time.get_attribute("datetime"), time.get_attribute("title")) == (
            "2026-09-21T14:13:20Z",
            "2026-09-21 14:13:20 UTC",
        )
        assert "22" in time.text  # the 21st in UTC
        assert "2:13:20" in time.text  # on the page of one message to the second, as the log has it
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_a_message_can_be_dropped(tmp_path: Path, browser: Chrome) -> None:
    mail = tmp_path / "dropped.eml"
    mail.write_bytes(b"Subject: dropped\n\nx")
    with served(tmp_path) as server:
        enter(browser, server)
        browser.get(f"{server.url}/teach")
        place = browser.find_element("id", "file").rect
        carried = {"items": [], "files": [str(mail)], "dragOperationsMask": 1}
        over = {"x": place["x"] + place["width"] - 5, "y": place["y"] + 5, "data": carried}
        for step in ("dragEnter", "dragOver", "drop"):
            browser.execute_cdp_cmd("Input.dispatchDragEvent", {"type": step, **over})
        browser.find_element("css selector", "input[value=ham]").click()
        press(browser, "Teach")
        shows(browser, "Learnt as ham.", "#notice")
        assert [call[2] for call in server.service.calls] == [b"Subject: dropped\n\nx"]


def test_a_lesson_without_an_answer_shows_an_error_on_the_page(
    tmp_path: Path, browser: Chrome
) -> None:
    """As during a restart of the daemon."""
    with served(tmp_path, service=Fixed([judgement()])) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/history"]})
        for _ in range(2):
            press(browser, "Ham")
            shows(
                browser,
                "No answer. The filter may be restarting: try again in a moment.",
                ".mail form",
            )
        assert len(browser.find_elements("css selector", "[role=alert]")) == 1
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        press(browser, "Ham")
        shows(browser, "Learnt as ham.", "#notice")
        complaints(browser)


def test_a_double_click_is_one_click(tmp_path: Path, browser: Chrome) -> None:
    """A second request would find nothing left to do, and the page would show that."""

    class Slow(Fixed):
        async def release(self, person: Person, name: str) -> ReleaseResult:
            done = await super().release(person, name)
            await asyncio.sleep(1)
            return done

    service = Slow()
    with served(tmp_path, service=service) as server:
        enter(browser, server)
        browser.get(f"{server.url}/quarantine/{NAME}")
        button = browser.find_element("css selector", ".buttons button")
        ActionChains(browser).click(button).pause(0.2).click().perform()
        shows(browser, "Released: 1 message", "#notice")
        assert [call[0] for call in service.calls] == ["release"]


def test_new_mail_does_not_move_the_buttons(tmp_path: Path, browser: Chrome) -> None:
    service = Fixed([judgement(subject="first")])
    with served(tmp_path, service=service) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")
        ActionChains(browser).move_to_element(
            browser.find_element("css selector", ".mail button")
        ).perform()
        service.judgements.insert(0, judgement("06gvk975a57i83vv", subject="second"))
        shows(browser, "1 new: move the pointer off the list to see it", "#fresh")
        assert texts(browser, ".mail .subject") == ["first"]
        # no look but the one that is due; it shows as soon as the pointer is away all the same
        browser.execute_script(
            "const plain = setTimeout; window.setTimeout = (work, wait) => wait ? "
            "document.title = 'due' : plain(work)"
        )
        eventually(lambda: browser.title == "due", "the last look is over")
        ActionChains(browser).move_to_element(browser.find_element("css selector", "h1")).perform()
        shows(browser, "second", ".mail")
        assert texts(browser, ".mail .subject") == ["second", "first"]
        assert text(browser, "#fresh") == ""


def test_a_list_that_takes_long_to_find_is_looked_for_less_often(
    tmp_path: Path, browser: Chrome
) -> None:
    class Slow(Fixed):
        async def history(self, person: Person, search: Search) -> JudgementPage:
            await asyncio.sleep(0.3)
            return await super().history(person, search)

    with served(tmp_path, service=Slow()) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history?q=subject:rare")
        browser.execute_script("window.setTimeout = (work, wait) => { document.title = wait }")
        eventually(
            lambda: (
                browser.title.partition(".")[0].isdecimal() and float(browser.title) >= 20 * 300
            ),
            "the next look is far away",
        )


def test_a_list_that_waited_for_the_network_is_looked_for_within_a_minute(
    tmp_path: Path, browser: Chrome
) -> None:
    """Or for a laptop that slept: it would stand still for days."""
    with served(tmp_path, service=Fixed()) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")
        hours = "let now = 0; performance.now = () => now += 8 * 3600 * 1000; "
        browser.execute_script(
            hours + "window.setTimeout = (work, wait) => { document.title = wait }"
        )
        eventually(lambda: browser.title == "60000", "the next look is a minute away")


def test_a_click_brings_other_changes_too(tmp_path: Path, browser: Chrome) -> None:
    """New mail, and other rows that the lesson changes, such as those of the same message to
    others.
    """

    class Busy(Fixed):
        async def learn_passed(self, person: Person, name: str, label: str) -> LessonReceipt:
            self.judgements = [
                judgement("06gvk975a57i83vv", subject="second"),
                *(replace(row, own=label) for row in self.judgements),
            ]
            return await super().learn_passed(person, name, label)

    with served(
        tmp_path,
        service=Busy([judgement(OTHER, subject="first"), judgement(NAME, subject="the same")]),
    ) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")
        browser.find_element("css selector", f"#m-{OTHER} button").click()
        shows(browser, "You said", f"#m-{OTHER}")
        ActionChains(browser).move_to_element(browser.find_element("css selector", "h1")).perform()
        shows(browser, "second", ".mail")
        shows(browser, "You said", f"#m-{NAME}")


def test_a_click_after_the_session_has_ended_tells_so(tmp_path: Path, browser: Chrome) -> None:
    service = Fixed([judgement()])
    with served(tmp_path, service=service) as server:
        enter(browser, server)
        browser.get(f"{server.url}/history")
        browser.delete_all_cookies()
        press(browser, "Ham")
        shows(browser, "You are not logged in")
        assert service.calls == []
        complaints(browser)
