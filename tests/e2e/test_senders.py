"""“Always from this sender”, or its domain, through the real daemon: genuine mail gains, forged
mail does not, and page, API and commands say so and take it back.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.e2e.test_web_api import ApiSite, passed
from tests.support.browser import (
    chromium,
    complaints,
    log_in,
    needs_browser,
    press,
    shows,
    text,
)
from tests.support.waiting import PATIENCE
from tests.unit.engine.test_senders import GENUINE, RECEIVED, by
from tests.unit.servers.milter.mta import Mta

SHOP = "news@shop.example"
DOMAIN = "shop.example"
ANNA = "anna@example.net"
BEHIND = {"position": "after-queue"}
STRIPS = "strips_authentication_results"
SETTINGS = {"personal": True, "authserv_ids": ["mx.example.org"]}


def letters(count: int) -> list[bytes]:
    """The same genuine mail again and again, under other names."""
    raw = daemon.unseen("spam", 1)[0]
    kept = b"\n".join(
        line for line in raw.split(b"\n") if not line.lower().startswith(b"message-id:")
    )
    name = b"Message-ID: <%d@shop.example>\n"
    written = [by(GENUINE, name % number + kept, SHOP) for number in range(count)]
    return [raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for raw in written]


def test_genuine_mail_gains_forged_mail_does_not_and_it_is_taken_back(state: Path) -> None:
    genuine, again, *forged, last = letters(5)
    forged = [RECEIVED + forged[0], forged[1].replace(b"=pass", b"=fail")]
    site = ApiSite(state, listener=BEHIND, **SETTINGS)
    with site.running():
        anna, ben = site.client("--user", "anna"), site.client("--user", "ben")

        def send(raw: bytes, number: int) -> dict[str, object]:
            site.send(raw, ANNA, "ben@example.net")
            (newest, *_) = passed(anna, number)
            detail: dict[str, object] = anna.get(f"/history/{newest['id']}").json()
            return detail

        first = send(genuine, 1)
        assert (first["authenticated"], first["sender_word"]) == (True, "")
        path = f"/history/{first['id']}/sender"
        assert ben.post(path, params={"class": "maybe"}).status_code == 422
        said = anna.post(path, params={"class": "ham"}).json()
        assert (said["label"], said["changed"], said["was"]) == ("ham", True, "")
        assert anna.get(f"/history/{first['id']}").json()["sender_word"] == "ham"
        assert ben.get(f"/history/{first['id']}").json()["sender_word"] == ""

        second = send(again, 2)
        why = anna.get(f"/history/{second['id']}/why").json()["now"]
        assert why["experts"]["sender"]["share"] == -6
        parts = [expert["share"] for expert in why["experts"].values()]
        assert why["prior"] + sum(parts) == pytest.approx(why["sum"])
        assert sum(group["part"] for group in why["groups"]) == pytest.approx(why["sum"])
        before = ben.get(f"/history/{second['id']}/why").json()["now"]
        assert "sender" not in before["experts"]
        assert why["log_odds"] == pytest.approx(before["log_odds"] - 6)
        told = json.loads(site.command("explain", "--json", "--user", "anna", str(second["id"])))
        assert told["experts"]["sender"]["share"] == -6

        say_of_the_domain(anna, path)
        for number, raw in enumerate(forged, 3):
            third = send(raw, number)
            assert third["authenticated"] is False
            refused = anna.post(f"/history/{third['id']}/sender", params={"class": "ham"})
            assert refused.status_code == 422
            assert third["log_odds"] == pytest.approx(first["log_odds"], abs=1.0)
            now = anna.get(f"/history/{third['id']}/why").json()["now"]
            assert "sender" not in now["experts"]

        site.command("undo", "--user", "anna", "--since", "1h")
        for user in ("--user", "anna"), ():  # by command, too
            for name in (SHOP, DOMAIN):
                assert "wanted" in site.command("learn", "--as", "ham", "--sender", name, *user)
                assert "forgot" in site.command("forget", "--sender", name, *user)
        fifth = send(last, 5)
        assert (fifth["authenticated"], fifth["sender_word"]) == (True, "")
        assert "sender" not in anna.get(f"/history/{fifth['id']}/why").json()["now"]["experts"]


def say_of_the_domain(anna: httpx.Client, path: str) -> None:
    """It goes behind what was said of the address."""

    def look() -> tuple[list[str], dict[str, Any]]:
        answer = anna.get(path.replace("/sender", "/why")).json()
        said = [answer["then"][key] for key in ("sender_word", "domain", "domain_word")]
        return said, answer["now"]

    spam = {"class": "spam", "domain": DOMAIN}
    assert anna.post(path, params=spam | {"domain": "evil.example"}).status_code == 422
    assert anna.post(path, params=spam).json()["changed"]
    said, why = look()
    assert (said, why["experts"]["sender"]["share"]) == (["ham", DOMAIN, "spam"], -6)
    assert anna.post(path, params={"class": ""}).json()["was"] == "ham"
    said, why = look()
    assert (said, why["experts"]["sender"]["share"]) == (["", DOMAIN, "spam"], 6)
    assert "everybody at its sender's domain was called unwanted" in why["sentence"]


def test_no_forged_field_is_believed_unless_the_server_strips_it(state: Path) -> None:
    """The message has no Received, as a milter sees it; at doors without and with the option."""
    head = GENUINE.replace(b"{0}", SHOP.encode()).replace(b"{1}", b"shop.example")
    raw = head + b"Subject: news\r\n\r\nhello\r\n"
    doors = [
        {"listen": f"{protocol}://127.0.0.1:{free_port()}", STRIPS: strips}
        for protocol in ("milter", "rspamd")
        for strips in (False, True)
    ]
    site = ApiSite(state, listener=BEHIND, scanners=doors, **SETTINGS)
    ports = [int(str(door["listen"]).rpartition(":")[2]) for door in doors]

    async def ask_as_milter(port: int) -> None:
        server = Mta(*await asyncio.open_connection("127.0.0.1", port))
        await server.agree()
        await server.client()
        await server.message(raw)
        await server.close()

    with site.running():
        olga = site.client("--operator")
        site.send(raw, ANNA)
        passed(olga, 1)
        for number, port in enumerate(ports, 2):
            if number < 4:
                asyncio.run(ask_as_milter(port))
            else:
                httpx.post(f"http://127.0.0.1:{port}/checkv2", content=raw, timeout=PATIENCE)
            passed(olga, number)
        found = [olga.get(f"/history/{row['id']}").json() for row in passed(olga, 5)]
    assert [row["authenticated"] for row in reversed(found)] == [False, False, True, False, True]


@needs_browser
def test_the_button_on_the_page_of_a_message(state: Path) -> None:
    site = ApiSite(state, listener=BEHIND, **SETTINGS)
    with site.running():
        for user, scripts in ("anna", True), ("ben", False):
            try_the_button(site, user, scripts=scripts)


def try_the_button(site: ApiSite, user: str, *, scripts: bool) -> None:
    """With and without scripts."""
    with chromium(scripts=scripts) as driver:
        site.send(letters(1)[0], f"{user}@example.net")
        (first,) = passed(site.client("--user", user), 1)
        log_in(driver, site.command("login-link", "--user", user))
        driver.get(f"http://127.0.0.1:{site.port}/history/{first['id']}")
        shows(driver, "Always from this sender?")
        press(driver, "Ham", "form[action$='/sender']")
        shows(driver, "Mail of this sender is wanted.", "#notice")
        shows(driver, "You said: ham", "form[action$='/sender']")
        assert "its sender was called wanted" in text(driver)
        assert "What was said of its sender" in text(driver)
        press(driver, "Undo", "#notice")
        shows(driver, "Taken back", "#notice")
        press(driver, "Spam", "form[action$='/sender']")
        shows(driver, "its sender was called unwanted")
        press(driver, "Undo", "form[action$='/sender']")
        shows(driver, "Taken back", "#notice")
        assert "its sender was called" not in text(driver)
        shows(driver, f"From everybody at {DOMAIN}?")
        whole = f"form[action$='/sender?domain={DOMAIN}']"
        press(driver, "Ham", whole)
        shows(driver, f"Mail of everybody at {DOMAIN} is wanted.", "#notice")
        shows(driver, "You said: ham", whole)
        assert "everybody at its sender's domain was called wanted" in text(driver)
        press(driver, "Undo", "#notice")
        shows(driver, "Taken back", "#notice")
        press(driver, "Spam", whole)
        shows(driver, "everybody at its sender's domain was called unwanted")
        press(driver, "Undo", whole)
        shows(driver, "Taken back", "#notice")
        assert "domain was called" not in text(driver)
        assert complaints(driver) == []
