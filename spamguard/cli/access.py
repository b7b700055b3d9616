"""`token` and `login-link`: let programs in to the API, and people in to the web page.

Both write to the credential store in the state directory, with the rights of its owner. Must never
show a token again after it was made, and never make a link that works twice.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.log import local_time, printable, rfc3339
from spamguard.storage import as_directory_owner

if TYPE_CHECKING:
    from spamguard.web.credentials import Credential, CredentialStore
    from spamguard.web.models import Person

_MAX_USER = 255  # characters


def _add_person(parser: argparse.ArgumentParser) -> None:
    """Add the options --user and --operator, which `_chosen_person` reads."""
    about = "whose it is, as `watch` names users"
    parser.add_argument("--user", default="", metavar="NAME", help=about)
    about = "sees and teaches everything, in the name of the site"
    parser.add_argument("--operator", action="store_true", help=about)


def _chosen_person(options: argparse.Namespace, operator_name: str) -> Person:
    """The person that the options name; UsageError if they name none, or nobody possible.

    operator_name: the name of an operator who is no user.
    """
    from spamguard.web.models import Person

    if options.user == arguments.SITE:
        raise UsageError(
            f"{arguments.SITE} is no user: who teaches in its name is an operator: --operator"
        )
    name = options.user or (operator_name if options.operator else "")
    if not name:
        raise UsageError(
            "say whose it is, with --user NAME, or make it an operator's, with --operator"
        )
    if not name.isprintable() or len(name) > _MAX_USER:
        raise UsageError(f"{name!r}: no user is called that")
    return Person(name, options.operator)


@contextmanager
def _open_credentials(options: argparse.Namespace) -> Iterator[CredentialStore]:
    """Open the store as its owner; UsageError if there is no state directory."""
    from spamguard.web.credentials import CredentialStore

    state = common.existing_state_directory(options)
    with as_directory_owner(state), closing(CredentialStore.open(state)) as store:
        yield store


def _time_value(seconds: int) -> str | None:
    """A time for JSON; None for never."""
    return rfc3339(seconds) if seconds else None


# ---- token

TOKEN_ABOUT = """\
Make, list and revoke tokens of programs that ask the HTTP API. (It is `web` in the configuration.)

A token is for a user, who sees and teaches only their own mail, or for an operator, who sees and
teaches everything. It is shown once; only a hash of it is kept. Programs send it as `Authorization:
Bearer TOKEN`. A revoked token is refused from the next request on. `list` shows sessions of people
too (`login-link`). Exit status of `revoke`: 1 when there is no such token."""  # noqa: S105  no secret, a help text
TOKEN_EXAMPLE = """  spamguard token create backup-check --operator --expires 90d
  spamguard token create anna-phone --user anna
  spamguard token list
  spamguard token revoke anna-phone"""  # noqa: S105  likewise

EXIT_NOT_FOUND = 1  # of `revoke`
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

TokenAction = Callable[["CredentialStore", argparse.Namespace], int]


def add_token(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "token", run_token, TOKEN_ABOUT, TOKEN_EXAMPLE)
    actions = arguments.add_actions(parser)
    about = "make a token and show it, this once"
    creating = arguments.add_action(actions, "create", _create_token, about)
    creating.add_argument("name", metavar="NAME", help="a name to know it by")
    _add_person(creating)
    about = "when it ends by itself, such as 12h or 90d (default: never)"
    creating.add_argument("--expires", metavar="TIME", help=about)
    about = "tokens and sessions, without their secrets"
    arguments.add_action(actions, "list", _list_credentials, about)
    about = "refuse a token from now on"
    revoking = arguments.add_action(actions, "revoke", _revoke_token, about)
    revoking.add_argument("name", metavar="NAME", help="as `list` has it")


def run_token(options: argparse.Namespace) -> int:
    """Perform the action on the store."""
    work: TokenAction = options.work
    with _open_credentials(options) as store:
        return work(store, options)


def _create_token(store: CredentialStore, options: argparse.Namespace) -> int:
    from spamguard.config.values import parse_seconds
    from spamguard.web.credentials import NEVER, CredentialKind

    if _TOKEN_NAME.fullmatch(options.name) is None:
        raise UsageError(
            f"{options.name!r}: a token's name has letters, digits, dots, - and _, 64 at most"
        )
    person, now, expires = _chosen_person(options, options.name), int(time.time()), NEVER
    if options.expires is not None:
        try:
            expires = now + max(1, int(parse_seconds(options.expires)))
        except ValueError as error:
            raise UsageError(f"--expires: {error}") from None
    token = store.create(CredentialKind.TOKEN, person, now, name=options.name, expires=expires)
    common.say(f"{options.name}: this is shown once; programs send it as Authorization: Bearer …")
    values = {
        "token": token,
        "name": options.name,
        "user": person.name,
        "operator": person.operator,
        "expires": _time_value(expires),
    }
    common.print_answer(options, token, values)
    return 0


def _list_credentials(store: CredentialStore, options: argparse.Namespace) -> int:
    credentials = [each for each in store.list_valid(int(time.time())) if each.kind != "link"]
    if credentials or options.json:
        lines = (printable(_credential_line(each)) for each in credentials)
        values = [_credential_values(each) for each in credentials]
        common.print_answer(options, "\n".join(lines), values)
    if not credentials:
        common.say("note: there are neither tokens nor sessions")
    return 0


def _credential_values(credential: Credential) -> dict[str, Any]:
    return {
        "kind": str(credential.kind),
        "name": credential.name,
        "user": credential.person.name,
        "operator": credential.person.operator,
        "created": _time_value(credential.created),
        "expires": _time_value(credential.expires),
        "seen": _time_value(credential.last_used),
    }


def _credential_line(credential: Credential) -> str:
    user = credential.person.name + (" (operator)" if credential.person.operator else "")
    until = local_time(credential.expires) if credential.expires else "revoked"
    return (
        f"{credential.kind:7}  {credential.name or '-':20}  {user:24}  "
        f"since {local_time(credential.created)}, until {until}, "
        f"used {local_time(credential.last_used)}"
    )


def _revoke_token(store: CredentialStore, options: argparse.Namespace) -> int:
    revoked = store.revoke(options.name)
    text = f"{options.name}: {'revoked' if revoked else 'there is no such token'}"
    common.print_answer(options, text, {"name": options.name, "revoked": revoked})
    return 0 if revoked else EXIT_NOT_FOUND


# ---- login-link

LOGIN_LINK_ABOUT = """\
Print a link that lets somebody in to the web page. It works once, within ten minutes; the page is
`web` in the configuration.

The first to open it is let in and stays so for 30 days, or until the page was not used for 7. With
--revoke all sessions and links of that user end instead."""
LOGIN_LINK_EXAMPLE = """  spamguard login-link --user anna
  spamguard login-link --operator
  spamguard login-link --user anna --revoke"""

OPERATOR_NAME = "operator"  # of an operator who is no user


def add_login_link(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "login-link", run_login_link, LOGIN_LINK_ABOUT, LOGIN_LINK_EXAMPLE
    )
    _add_person(parser)
    about = "where the page is, as people see it (default: what the running daemon says)"
    parser.add_argument("--url", metavar="URL", help=about)
    about = "end all sessions and links of the user"
    parser.add_argument("--revoke", action="store_true", help=about)
    arguments.add_json(parser)


def run_login_link(options: argparse.Namespace) -> int:
    """Make a link; or end the sessions and links of the user."""
    from spamguard.web import auth
    from spamguard.web.credentials import LINK_SECONDS, CredentialKind

    person = _chosen_person(options, OPERATOR_NAME)
    if options.revoke:
        with _open_credentials(options) as store:
            ended = store.end_sessions(person.name)
        text = f"{person.name}: ended {common.count_text(ended, 'session')}"
        common.print_answer(options, text, {"user": person.name, "ended": ended})
        return 0
    if options.url and not options.url.startswith(("https://", "http://")):
        raise UsageError(
            f"--url {options.url}: write it as people see it, as in https://spam.example.org"
        )
    page, now = options.url or _page_url(options), int(time.time())
    expires = now + LINK_SECONDS
    with _open_credentials(options) as store:
        secret = store.create(CredentialKind.LINK, person, now, expires=expires)
    link = auth.login_url(page, secret)
    values = {
        "link": link,
        "user": person.name,
        "operator": person.operator,
        "expires": _time_value(expires),
    }
    common.print_answer(options, link, values)
    return 0


def _page_url(options: argparse.Namespace) -> str:
    """The URL at which the running daemon serves the page; UsageError if none does."""
    from spamguard.daemon import status

    state = common.existing_state_directory(options)
    # OSError for users who may not list the directory: they could not reach the daemon's socket.
    os.scandir(state).close()
    web = (status.ask_daemon(state) or {}).get("web")
    if not isinstance(web, dict) or not web.get("page"):
        raise UsageError(
            f"{state}: no daemon serves a page there: set `web` in the configuration, "
            "or say where the page is with --url"
        )
    return str(web["page"])
