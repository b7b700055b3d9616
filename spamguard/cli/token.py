"""`token`: what programs show to the API so that they are let in. Never shows a token again once it was made."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from spamguard.cli import rim, usage
from spamguard.errors import UsageError
from spamguard.owner import as_owner_of
from spamguard.times import moment, rfc3339

if TYPE_CHECKING:
    from spamguard.web.access.store import Credential, Store
    from spamguard.web.service.values import Person

ABOUT = """Make, list and revoke tokens of programs that ask the HTTP API. (It is `web` in the configuration.)

A token is for a user, who sees and teaches only their own mail, or for an operator, who sees and teaches everything. It is shown once;
kept is a hash of it. Programs send it as `Authorization: Bearer TOKEN`. What is revoked is refused from the next request on.
`list` shows sessions of people too (`login-link`). Exit status of `revoke`: 1 when there is no such token."""
EXAMPLE = """  spamguard token create backup-check --operator --expires 90d
  spamguard token create anna-phone --user anna
  spamguard token list
  spamguard token revoke anna-phone"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_USER = 255
NOT_THERE = 1  # exit status of `revoke`

Work = Callable[["Store", argparse.Namespace], int]


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "token", run, ABOUT, EXAMPLE)
    actions = usage.add_actions(parser)
    creating = usage.add_action(actions, "create", _create, "make a token and show it, this once")
    creating.add_argument("name", metavar="NAME", help="to know it by")
    add_person(creating)
    creating.add_argument("--expires", metavar="TIME", help="when it ends by itself, such as 12h or 90d (default: never)")
    usage.add_action(actions, "list", _list, "tokens and sessions, without what is secret of them")
    usage.add_action(actions, "revoke", _revoke, "refuse a token from now on").add_argument("name", metavar="NAME", help="as `list` has it")


def add_person(parser: argparse.ArgumentParser) -> None:
    """The options --user and --operator; `person` reads them."""
    parser.add_argument("--user", default="", metavar="NAME", help="whose it is, as `watch` names users")
    parser.add_argument("--operator", action="store_true", help="sees and teaches everything, in the name of the site")


def person(options: argparse.Namespace, otherwise: str) -> Person:
    """Who is meant. otherwise: what an operator is called who is no user. UsageError: nobody, or somebody who cannot be."""
    from spamguard.web.service.values import Person

    if options.user == usage.SITE:
        raise UsageError(f"{usage.SITE} is no user: who teaches in its name is an operator: --operator")
    name = options.user or (otherwise if options.operator else "")
    if not name:
        raise UsageError("say whose it is, with --user NAME, or make it an operator's, with --operator")
    if not name.isprintable() or len(name) > _LONGEST_USER:
        raise UsageError(f"{name!r}: no user is called that")
    return Person(name, options.operator)


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Store]:
    """The store of the filter in use, with the rights of its owner. UsageError: there is no such directory."""
    from spamguard.web.access.store import Store

    state = rim.existing_directory(options)
    with as_owner_of(state), closing(Store.open(state)) as store:
        yield store


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    work: Work = options.work
    with opened(options) as store:
        return work(store, options)


def _create(store: Store, options: argparse.Namespace) -> int:
    from spamguard.web.access.store import NEVER, Kind

    if _NAME.fullmatch(options.name) is None:
        raise UsageError(f"{options.name!r}: a token's name has letters, digits, dots, - and _, 64 at most")
    who, now = person(options, options.name), int(time.time())
    expires = NEVER if options.expires is None else now + _seconds(options.expires)
    text = store.make(Kind.TOKEN, who, now, name=options.name, expires=expires)
    rim.say(f"{options.name}: this is shown once; programs send it as Authorization: Bearer …")
    values = {"token": text, "name": options.name, "user": who.name, "operator": who.operator, "expires": told(expires)}
    rim.answer(options, text, values)
    return 0


def _seconds(text: str) -> int:
    from spamguard.config import units

    try:
        return max(1, int(units.seconds(text)))
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None


def _list(store: Store, options: argparse.Namespace) -> int:
    found = [one for one in store.valid(int(time.time())) if one.kind != "link"]
    if found or options.json:
        rim.answer(options, "\n".join(rim.printable(_line(one)) for one in found), [_values(one) for one in found])
    if not found:
        rim.say("note: there are neither tokens nor sessions")
    return 0


def _revoke(store: Store, options: argparse.Namespace) -> int:
    done = store.revoke(options.name)
    rim.answer(options, f"{options.name}: {'revoked' if done else 'there is no such token'}", {"name": options.name, "revoked": done})
    return 0 if done else NOT_THERE


def _values(one: Credential) -> dict[str, Any]:
    return {
        "kind": str(one.kind),
        "name": one.name,
        "user": one.person.name,
        "operator": one.person.operator,
        "created": told(one.created),
        "expires": told(one.expires),
        "seen": told(one.seen),
    }


def _line(one: Credential) -> str:
    who = f"{one.person.name} (operator)" if one.person.operator else one.person.name
    until = moment(one.expires) if one.expires else "revoked"
    return f"{one.kind:7}  {one.name or '-':20}  {who:24}  since {moment(one.created)}, until {until}, used {moment(one.seen)}"


def told(seconds: int) -> str | None:
    """A time for programs; None for never."""
    return rfc3339(seconds) if seconds else None
