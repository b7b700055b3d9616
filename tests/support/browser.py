"""A real Chromium for tests of the pages, with a profile of its own and no other network."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from axe_core_python.selenium import Axe
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.e2e.ports import free_port
from tests.support.waiting import eventually

Found = TypeVar("Found")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium or no chromedriver: see .ci/packages"
)

DESK, PHONE = (1200, 900), (360, 740)
"""Sizes of a page, in pixels of CSS."""

_ARGUMENTS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--lang=en-GB",
    "--force-color-profile=srgb",
)
_NO_SCRIPTS = {"profile.managed_default_content_settings.javascript": 2}


@contextmanager
def chromium(
    size: tuple[int, int] = DESK, *, dark: bool = False, scripts: bool = True
) -> Iterator[Chrome]:
    """A browser with one page of that size; dark: its reader likes that better; scripts: whether
    pages may run any.
    """
    with tempfile.TemporaryDirectory(
        prefix="spamguard-chromium-", ignore_cleanup_errors=True
    ) as profile:
        options = ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for argument in (
            *_ARGUMENTS,
            f"--user-data-dir={profile}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ):
            options.add_argument(argument)
        if not scripts:
            options.add_experimental_option("prefs", _NO_SCRIPTS)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options, ChromeService(DRIVER or "", port=free_port()))
        try:
            shape(driver, size, dark=dark)
            yield driver
        finally:
            driver.quit()


def shape(driver: Chrome, size: tuple[int, int], *, dark: bool = False) -> None:
    """Another size and other likings of the reader."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < DESK[0]}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def log_in(driver: Chrome, link: str) -> None:
    """By a one-time link, as people do."""
    driver.get(link)
    press(driver, "Log in")
    eventually(lambda: "/login" not in driver.current_url, "logged in")


def barriers(driver: Chrome, *, colours_only: bool = False) -> list[str]:
    """Serious and critical violations of accessibility in the shown page, as axe finds them."""
    options: dict[str, object] = {"resultTypes": ["violations"]}  # of all else it tells an example
    if colours_only:
        options["runOnly"] = ["color-contrast", "link-in-text-block"]
    found = Axe().run(driver, options=options)["violations"]
    return [
        f"{driver.current_url}: {one['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def too_wide(driver: Chrome) -> int:
    """By how many pixels the page can be scrolled sideways."""
    return int(
        driver.execute_script(
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        )
    )


def text(driver: Chrome, selector: str = "main") -> str:
    """The text of the first such element, as a reader sees it."""
    return steadily(lambda: driver.find_element("css selector", selector).text)


def shows(driver: Chrome, words: str, selector: str = "main") -> None:
    """Wait until a reader sees these words in one such element."""
    eventually(
        lambda: any(words in text for text in texts(driver, selector)),
        f"{words!r} in {selector} of {driver.current_url}",
    )


def texts(driver: Chrome, selector: str) -> list[str]:
    """The text of each such element, as a reader sees it."""
    return steadily(
        lambda: [element.text for element in driver.find_elements("css selector", selector)]
    )


def press(driver: Chrome, words: str, within: str = "main") -> None:
    """Click the first button or link whose text begins so, after an optional symbol; waits until
    there is one.
    """

    def pressed() -> bool:
        for element in driver.find_elements(
            "css selector", f"{within} button, {within} a, {within} summary"
        ):
            if element.text.lstrip("✓✕?– \n").startswith(words):
                element.click()
                return True
        return False

    eventually(
        lambda: steadily(pressed),
        f"something to press that says {words!r} in {within} of {driver.current_url}",
    )


def steadily(look: Callable[[], Found]) -> Found:
    """Look at a page, again where it was replaced meanwhile."""
    for _ in range(50):
        try:
            return look()
        except WebDriverException as failed:
            if not _replaced(failed):
                raise
        time.sleep(0.02)
    return look()


def _replaced(failed: WebDriverException) -> bool:
    """Whether the page, or an element in it, was replaced during a command. A new page is empty at
    first. The driver reports the replacement only if it happened before the command; in between it
    passes on an error of the browser (code -32000: no such node, or no such context, in the present
    document).
    """
    moved = isinstance(
        failed,
        StaleElementReferenceException | ElementClickInterceptedException | NoSuchElementException,
    )
    return moved or "unhandled inspector error" in str(failed.msg)


def complaints(driver: Chrome) -> list[str]:
    """The messages of the browser since the last call: errors of scripts, violations of policy."""
    return [
        str(entry["message"])
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]
