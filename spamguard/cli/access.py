"""`token`: what programs show to the API so that they are let in. Never shows a token again once it
was made.

`login-link`: lets a person in to the page, once, by a link. Never makes one that lasts.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from spamguard.cli import common
from spamguard.errors import UsageError
from spamguard.log import local_time, printable, rfc3339
from spamguard.storage import as_directory_owner

if TYPE_CHECKING:
    from spamguard.web.credentials import Credential, CredentialStore
    from spamguard.web.models import Person


TOKEN_ABOUT = """Make, list and revoke tokens of programs that ask the HTTP API. (It is `web` in the configuration.)

A token is for a user, who sees and teaches only their own mail, or for an operator, who sees and teaches everything. It is shown once;
kept is a hash of it. Programs send it as `Authorization: Bearer TOKEN`. What is revoked is refused from the next request on.
`list` shows sessions of people too (`login-link`). Exit status of `revoke`: 1 when there is no such token."""  # noqa: S105  help, no password
TOKEN_EXAMPLE = """  spamguard token create backup-check --operator --expires 90d
  spamguard token create anna-phone --user anna
  spamguard token list
  spamguard token revoke anna-phone"""  # noqa: S105  help, no password

_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_USER = 255
EXIT_NOT_FOUND = 1  # exit status of `revoke`

TokenAction = Callable[["CredentialStore", argparse.Namespace], int]


def add_token(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "token", run_token, TOKEN_ABOUT, TOKEN_EXAMPLE)
    actions = common.add_actions(parser)
    creating = common.add_action(
        actions, "create", _create_token, "make a token and show it, this once"
    )
    creating.add_argument("name", metavar="NAME", help="to know it by")
    add_person(creating)
    creating.add_argument(
        "--expires",
        metavar="TIME",
        help="when it ends by itself, such as 12h or 90d (default: never)",
    )
    common.add_action(
        actions, "list", _list_credentials, "tokens and sessions, without what is secret of them"
    )
    common.add_action(actions, "revoke", _revoke_token, "refuse a token from now on").add_argument(
        "name", metavar="NAME", help="as `list` has it"
    )


def add_person(parser: argparse.ArgumentParser) -> None:
    """The options --user and --operator; `person` reads them."""
    parser.add_argument(
        "--user", default="", metavar="NAME", help="whose it is, as `watch` names users"
    )
    parser.add_argument(
        "--operator",
        action="store_true",
        help="sees and teaches everything, in the name of the site",
    )


def chosen_person(options: argparse.Namespace, otherwise: str) -> Person:
    """Who is meant. otherwise: what an operator is called who is no user. UsageError: nobody, or
    somebody who cannot be.
    """
    from spamguard.web.models import Person

    if options.user == common.SITE:
        raise UsageError(
            f"{common.SITE} is no user: who teaches in its name is an operator: --operator"
        )
    name = options.user or (otherwise if options.operator else "")
    if not name:
        raise UsageError(
            "say whose it is, with --user NAME, or make it an operator's, with --operator"
        )
    if not name.isprintable() or len(name) > _MAX_USER:
        raise UsageError(f"{name!r}: no user is called that")
    return Person(name, options.operator)


@contextmanager
def open_credentials(options: argparse.Namespace) -> Iterator[CredentialStore]:
    """The store of the filter in use, with the rights of its owner. UsageError: there is no such
    directory.
    """
    from spamguard.web.credentials import CredentialStore

    state = common.existing_state_directory(options)
    with as_directory_owner(state), closing(CredentialStore.open(state)) as store:
        yield store


def run_token(options: argparse.Namespace) -> int:
    """Do what was asked."""
    work: TokenAction = options.work
    with open_credentials(options) as store:
        return work(store, options)


def _create_token(store: CredentialStore, options: argparse.Namespace) -> int:
    from spamguard.web.credentials import NEVER, CredentialKind

    if _TOKEN_NAME.fullmatch(options.name) is None:
        raise UsageError(
            f"{options.name!r}: a token's name has letters, digits, dots, - and _, 64 at most"
        )
    who, now = chosen_person(options, options.name), int(time.time())
    expires = NEVER if options.expires is None else now + _expiry_seconds(options.expires)
    text = store.create(CredentialKind.TOKEN, who, now, name=options.name, expires=expires)
    common.say(f"{options.name}: this is shown once; programs send it as Authorization: Bearer …")
    values = {
        "token": text,
        "name": options.name,
        "user": who.name,
        "operator": who.operator,
        "expires": time_text(expires),
    }
    common.print_answer(options, text, values)
    return 0


def _expiry_seconds(text: str) -> int:
    from spamguard.config.values import parse_seconds

    try:
        return max(1, int(parse_seconds(text)))
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None


def _list_credentials(store: CredentialStore, options: argparse.Namespace) -> int:
    found = [one for one in store.list_valid(int(time.time())) if one.kind != "link"]
    if found or options.json:
        common.print_answer(
            options,
            "\n".join(printable(_credential_line(one)) for one in found),
            [_credential_values(one) for one in found],
        )
    if not found:
        common.say("note: there are neither tokens nor sessions")
    return 0


def _revoke_token(store: CredentialStore, options: argparse.Namespace) -> int:
    done = store.revoke(options.name)
    common.print_answer(
        options,
        f"{options.name}: {'revoked' if done else 'there is no such token'}",
        {"name": options.name, "revoked": done},
    )
    return 0 if done else EXIT_NOT_FOUND


def _credential_values(one: Credential) -> dict[str, Any]:
    return {
        "kind": str(one.kind),
        "name": one.name,
        "user": one.person.name,
        "operator": one.person.operator,
        "created": time_text(one.created),
        "expires": time_text(one.expires),
        "seen": time_text(one.last_used),
    }


def _credential_line(one: Credential) -> str:
    who = f"{one.person.name} (operator)" if one.person.operator else one.person.name
    until = local_time(one.expires) if one.expires else "revoked"
    return f"{one.kind:7}  {one.name or '-':20}  {who:24}  since {local_time(one.created)}, until {until}, used {local_time(one.last_used)}"


def time_text(seconds: int) -> str | None:
    """A time for programs; None for never."""
    return rfc3339(seconds) if seconds else None


LOGIN_LINK_ABOUT = """Print a link that lets somebody in to the web page. It works once, within ten minutes; the page is `web` in the configuration.

Whoever opens it first is let in and stays so for 30 days, or until the page was not used for 7. With --revoke all sessions and links
of that user end instead."""
LOGIN_LINK_EXAMPLE = """  spamguard login-link --user anna
  spamguard login-link --operator
  spamguard login-link --user anna --revoke"""

OPERATOR_NAME = "operator"  # what an operator is called who is no user


def add_login_link(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(
        commands, "login-link", run_login_link, LOGIN_LINK_ABOUT, LOGIN_LINK_EXAMPLE
    )
    add_person(parser)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where the page is, as people see it (default: what the running daemon says)",
    )
    parser.add_argument(
        "--revoke", action="store_true", help="end all sessions and links of the user"
    )
    common.add_json(parser)


def run_login_link(options: argparse.Namespace) -> int:
    """Make a link, or end what was made by others."""
    who = chosen_person(options, OPERATOR_NAME)
    if options.revoke:
        with open_credentials(options) as store:
            number = store.end_sessions(who.name)
        common.print_answer(
            options,
            f"{who.name}: ended {common.count_text(number, 'session')}",
            {"user": who.name, "ended": number},
        )
        return 0
    from spamguard.web import auth
    from spamguard.web.credentials import LINK_SECONDS, CredentialKind

    if options.url and not options.url.startswith(("https://", "http://")):
        raise UsageError(
            f"--url {options.url}: write it as people see it, as in https://spam.example.org"
        )
    page, now = options.url or _page_url(options), int(time.time())
    with open_credentials(options) as store:
        text = auth.login_url(
            page, store.create(CredentialKind.LINK, who, now, expires=now + LINK_SECONDS)
        )
    values = {
        "link": text,
        "user": who.name,
        "operator": who.operator,
        "expires": time_text(now + LINK_SECONDS),
    }
    common.print_answer(options, text, values)
    return 0


def _page_url(options: argparse.Namespace) -> str:
    """Where the running daemon serves it. UsageError: none does. OSError: who may not look into the
    state directory hears of none.
    """
    state = common.existing_state_directory(options)
    os.scandir(state).close()
    from spamguard.daemon import status

    told = (status.ask_daemon(state) or {}).get("web")
    if not isinstance(told, dict) or not told.get("page"):
        raise UsageError(
            f"{state}: no daemon serves a page there: set `web` in the configuration, or say where the page is with --url"
        )
    return str(told["page"])
