"""Pictures of every page, in light, in dark and on a phone, over made-up mail that has passed
through the real daemon:

    python -m tests.support.screenshots DIRECTORY

`history-and-why.png` and `on-a-phone.png` there are those of README.md and config/README.md, which
stand in `config/`.

It needs chromium and chromedriver. Some mistakes are corrected while it runs, as users would.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from email import message_from_bytes, policy
from io import BytesIO
from pathlib import Path

from PIL import Image  # matplotlib stands on it
from selenium.webdriver import Chrome

from corpora import synthetic
from tests.e2e import daemon
from tests.e2e.web_site import Site
from tests.support.browser import (
    CHROMIUM,
    DESK,
    DRIVER,
    PHONE,
    chromium,
    log_in,
    press,
    shape,
    shows,
    texts,
)
from tests.support.waiting import eventually

MAIL, HELD = 44, 3
WAYS = {"light": (DESK, False), "dark": (DESK, True), "phone": (PHONE, False)}
_README_WIDTH = 900
_TALLEST = 2400  # pixels of a picture
_TAUGHT, _SEED = 90, 11
_USERS = ("anna", "ben", "clara")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.screenshots", description="Pictures of every page."
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIRECTORY", help="where to; made if it is not there"
    )
    directory: Path = parser.parse_args(arguments).directory
    if not (CHROMIUM and DRIVER):
        print(
            (
                "chromium and chromedriver are needed (Debian: apt-get install chromium "
                "chromium-driver)"
            ),
            file=sys.stderr,
        )
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spamguard-pictures-") as place:
        site = Site(daemon.taught(Path(place) / "state", _TAUGHT, _SEED))
        with site.running(), chromium() as driver:
            pages = _lived_in(site, driver)
            for name, path in pages.items():
                _pictures(driver, site.url + path, directory, name)
            shown = [site.url + pages[name] for name in ("queue", "why")]
            _picture_of_phones(driver, [*shown, f"{site.url}/help"], directory / "on-a-phone.png")
            _picture_of_readme(driver, site, directory / "history-and-why.png")
    print(f"{directory}: {len(list(directory.glob('*.png')))} pictures")
    return 0


def _lived_in(site: Site, driver: Chrome) -> Mapping[str, str]:
    """Mail comes, people speak about it; the pages worth a picture, by name."""
    mail = list(synthetic.generate(_TAUGHT + MAIL + 8 * HELD, _SEED))[_TAUGHT:]
    log_in(driver, site.link("--operator"))
    for number, (_, raw) in enumerate(mail[:MAIL]):
        site.send(_wire(raw), sender=_sender(raw), to=[f"{_USERS[number % 3]}@example.net"])
    site.send(*[_wire(raw) for label, raw in mail[MAIL:] if label == "spam"][:HELD], held=True)
    driver.get(f"{site.url}/history")
    eventually(
        lambda: driver.refresh() or len(texts(driver, ".mail li")) >= MAIL, "all mail has passed"
    )
    for _ in range(6):
        press(driver, "Spam", ".mail li:not(:has(.own)):has(.chip.unsure)")
        shows(driver, "Learnt as", "#notice")
    driver.get(f"{site.url}/history")
    why = str(
        driver.find_element("css selector", ".mail li:has(.chip.unwanted) a.subject").get_attribute(
            "href"
        )
    )
    pages = {name: f"/{name}" for name in ("queue", "history", "teach", "quarantine", "help")}
    pages |= {"today": "/", "login": "/login?link=shown"}
    return pages | {"why": why.removeprefix(site.url), "held": _held(site, driver)}


def _held(site: Site, driver: Chrome) -> str:
    driver.get(f"{site.url}/quarantine")
    return str(
        driver.find_element("css selector", ".mail a.subject").get_attribute("href")
    ).removeprefix(site.url)


def _pictures(driver: Chrome, address: str, directory: Path, name: str) -> None:
    """One for each way of looking at a page, as tall as the page."""
    for way, (size, dark) in WAYS.items():
        shape(driver, size, dark=dark)
        driver.get(address)
        tall = int(driver.execute_script("return document.documentElement.scrollHeight"))
        shape(driver, (size[0], min(tall, _TALLEST)), dark=dark)
        driver.save_screenshot(str(directory / f"{name}-{way}.png"))
    shape(driver, DESK)


def _picture_of_phones(driver: Chrome, addresses: Sequence[str], file: Path) -> None:
    """What a phone shows of these pages at first, one beside the other."""
    width, height = PHONE
    whole = Image.new("RGB", ((width + 20) * len(addresses) - 20, height), "gray")
    shape(driver, PHONE)
    for number, address in enumerate(addresses):
        driver.get(address)
        whole.paste(_seen(driver), ((width + 20) * number, 0))
    shape(driver, DESK)
    whole.quantize(255).save(file, optimize=True)


def _picture_of_readme(driver: Chrome, site: Site, file: Path) -> None:
    """The history of a user, who has corrected a verdict, above the reasons of another verdict."""
    driver.delete_all_cookies()
    log_in(driver, site.link("--user", "clara"))
    driver.get(f"{site.url}/history")
    press(driver, "Spam", ".mail li:has(.chip.unsure):nth-child(-n + 4)")
    shows(driver, "You said: spam", ".mail")
    driver.get(f"{site.url}/history")
    shape(driver, (_README_WIDTH, DESK[1]))
    parts = [_part_of_page(driver, "h1", ".mail li:nth-child(4)")]
    driver.find_element("css selector", ".mail li:has(.chip.unwanted) a.subject").click()
    shows(driver, "All features")
    parts.append(_part_of_page(driver, "h1", ".verdicts"))
    parts.append(_part_of_page(driver, "#why-groups", "table.groups"))
    shape(driver, DESK)
    whole = Image.new("RGB", (_README_WIDTH, sum(part.height for part in parts)))
    for number, part in enumerate(parts):
        whole.paste(part, (0, sum(above.height for above in parts[:number])))
    whole.quantize(255).save(file, optimize=True)


def _part_of_page(driver: Chrome, first: str, last: str) -> Image.Image:
    """The page from the first to the last of these elements."""
    script = """const box = (name) => document.querySelector(name).getBoundingClientRect();
    return [box(arguments[0]).top + scrollY - 6, box(arguments[1]).bottom + scrollY + 12]"""
    top, bottom = map(int, driver.execute_script(script, first, last))
    shape(driver, (_README_WIDTH, bottom))
    return _seen(driver).crop((0, top, _README_WIDTH, bottom))


def _seen(driver: Chrome) -> Image.Image:
    return Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def _wire(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _sender(raw: bytes) -> str:
    found = message_from_bytes(raw, policy=policy.compat32)["From"] or ""
    return found.rpartition("<")[2].rstrip("> ") or "somebody@example.org"


if __name__ == "__main__":
    sys.exit(main())
