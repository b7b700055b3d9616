"""`login-link`: lets a person in to the page, once, by a link. Never makes one that lasts."""

from __future__ import annotations

import argparse
import os
import time

from spamguard.cli import rim, token, usage
from spamguard.daemon import desk
from spamguard.errors import UsageError

ABOUT = """Print a link that lets somebody in to the web page. It works once, within ten minutes; the page is `web` in the configuration.

Whoever opens it first is let in and stays so for 30 days, or until the page was not used for 7. With --revoke all sessions and links
of that user end instead."""
EXAMPLE = """  spamguard login-link --user anna
  spamguard login-link --operator
  spamguard login-link --user anna --revoke"""

OPERATOR = "operator"  # what an operator is called who is no user


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "login-link", run, ABOUT, EXAMPLE)
    token.add_person(parser)
    parser.add_argument("--url", metavar="URL", help="where the page is, as people see it (default: what the running daemon says)")
    parser.add_argument("--revoke", action="store_true", help="end all sessions and links of the user")
    usage.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Make a link, or end what was made by others."""
    who = token.person(options, OPERATOR)
    if options.revoke:
        with token.opened(options) as store:
            number = store.send_away(who.name)
        rim.answer(options, f"{who.name}: ended {rim.counted(number, 'session')}", {"user": who.name, "ended": number})
        return 0
    from spamguard.web.access import link
    from spamguard.web.access.store import LINK_SECONDS, Kind

    if options.url and not options.url.startswith(("https://", "http://")):
        raise UsageError(f"--url {options.url}: write it as people see it, as in https://spam.example.org")
    page, now = options.url or _page(options), int(time.time())
    with token.opened(options) as store:
        text = link.login(page, store.make(Kind.LINK, who, now, expires=now + LINK_SECONDS))
    values = {"link": text, "user": who.name, "operator": who.operator, "expires": token.told(now + LINK_SECONDS)}
    rim.answer(options, text, values)
    return 0


def _page(options: argparse.Namespace) -> str:
    """Where the running daemon serves it. UsageError: none does. OSError: who may not look into the state directory hears of none."""
    state = rim.existing_directory(options)
    os.scandir(state).close()
    told = (desk.ask(state) or {}).get("web")
    if not isinstance(told, dict) or not told.get("page"):
        raise UsageError(f"{state}: no daemon serves a page there: set `web` in the configuration, or say where the page is with --url")
    return str(told["page"])
