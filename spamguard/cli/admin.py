"""`quarantine`, `token` and `login-link`: look after what is held, and who is let in.

`quarantine` lists, shows, releases and deletes the messages that are held back; `release` hands
them on to the recipients who have not got them yet, and teaches them as ham. `token` lets programs
in to the API, `login-link` people to the web page; both write to the credential store in the state
directory, with the rights of its owner.

Must never delete a message that is not named, never release to a spamguard that would hold the
message again, never show a token again after it was made, and never make a link that works twice.
"""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command, flag, group
from spamguard.config.values import parse_endpoint, parse_seconds, reaches
from spamguard.errors import QuarantineError, UsageError
from spamguard.log import printable
from spamguard.storage import as_directory_owner
from spamguard.times import local_time, rfc3339
from spamguard.users import Origin

if TYPE_CHECKING:
    from spamguard.delivery.quarantine import Quarantine, QuarantineEntry
    from spamguard.engine.filter import Filter
    from spamguard.web.auth import CredentialStore, Person

# ---- quarantine


_MAX_AUTHOR = 1000  # characters
_IDS = argument("ids", "as `list` and X-Spamguard have it", "ID", nargs="+")

group(
    "quarantine",
    """\
Look after the messages that are held back. They stay until they are released or deleted.

Exit status of `release`: 1 when a recipient has still not got a message.""",
    example="""  spamguard quarantine list
  spamguard quarantine show 0iq5r8jo4c1n2f3g
  spamguard quarantine release 0iq5r8jo4c1n2f3g --next-hop smtp://127.0.0.1:10026
  spamguard quarantine delete 0iq5r8jo4c1n2f3g""",
)


def _open_quarantine(options: Namespace) -> Quarantine:
    from spamguard.delivery.quarantine import DIRECTORY, Quarantine

    return Quarantine(common.existing_state_directory(options) / DIRECTORY)


@command("quarantine list", "the newest 1,000, newest first", arguments.JSON_LINES)
def list_entries(options: Namespace) -> int:
    from spamguard.delivery.quarantine import MAX_ENTRIES

    quarantine = _open_quarantine(options)
    entries = list(quarantine.entries(MAX_ENTRIES + 1))
    for entry in entries[:MAX_ENTRIES]:
        header = b""
        with suppress(QuarantineError, OSError):  # it was deleted meanwhile
            header = quarantine.header(entry.id)
        values = _entry_values(entry, header)
        sender = common.sender_text(values["author"], values["from"])
        line = (
            f"{entry.id}  {local_time(entry.when)}  {'released' if entry.released else 'held':8}  "
            f"{entry.size:10,}  {entry.reason:8}  {sender} to {', '.join(values['to'])}"
        )
        common.print_answer(options, printable(line), values)
    if not entries:
        common.say("note: nothing is held there")
    if entries[MAX_ENTRIES:]:
        common.say("note: there are older ones, which the page shows")
    return 0


@command("quarantine show", "envelope, header section and file of messages", _IDS)
def show_entries(options: Namespace) -> int:
    quarantine = _open_quarantine(options)
    for entry in [quarantine.entry(message_id) for message_id in options.ids]:
        header = quarantine.header(entry.id)
        values = _entry_values(entry, header) | {"time": local_time(entry.when)}
        for name, value in (values | {"file": quarantine.file(entry.id)}).items():
            text = ", ".join(value) if isinstance(value, list) else value
            print(printable(f"{name:9} {text}"))
        lines = header.decode("utf-8", "replace").splitlines()
        print("", *(printable(line.expandtabs()) for line in lines), "", sep="\n")
    return 0


def _entry_values(entry: QuarantineEntry, header: bytes) -> dict[str, Any]:
    from spamguard.proxy.history import decode_author, readable

    recipients = [recipient.address for recipient in entry.envelope.recipients]
    return {
        "id": entry.id,
        "time": rfc3339(entry.when),
        "reason": entry.reason,
        "size": entry.size,
        "client": entry.envelope.client.address,
        "from": entry.envelope.sender.address,
        "author": readable(decode_author(header), _MAX_AUTHOR),
        "to": recipients,
        "waiting": [recipients[number] for number in entry.waiting],
        "released": entry.released,
    }


# ---- release


@command(
    "quarantine release",
    "hand messages on to those who have not got them yet, and learn them as ham",
    argument(
        "--next-hop",
        "smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket, …",
        "ENDPOINT",
        type=arguments.parsed_by(parse_endpoint),
        required=True,
    ),
    _IDS,
)
def release_entries(options: Namespace) -> int:
    import asyncio

    from spamguard.daemon import status

    quarantine = _open_quarantine(options)
    # All that are named, before anything is done to one of them.
    entries = [quarantine.entry(message_id) for message_id in options.ids]
    daemon = status.ask_daemon(common.state_directory(options)) or {}
    for listener in daemon.get("listeners", ()):
        if reaches(options.next_hop, parse_endpoint(listener["listen"])):
            raise UsageError(
                f"{options.next_hop}: spamguard itself listens there, and would hold them once "
                f"more: hand them to {listener['next_hop']}"
            )
    with common.open_filter(options) as teacher:
        complete = asyncio.run(_release_all(quarantine, entries, teacher, options))
        teacher.settle_if_due()
    return 0 if complete else 1


async def _release_all(
    quarantine: Quarantine,
    entries: Sequence[QuarantineEntry],
    teacher: Filter,
    options: Namespace,
) -> bool:
    """Release and teach the messages; return whether every recipient has got them."""
    from spamguard.config.options import Hop
    from spamguard.delivery.smtp import create_next_hop
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonOutcome, LessonService
    from spamguard.log import hostname

    next_hop = create_next_hop(Hop(options.next_hop), hostname())
    complete = True
    try:
        for entry in entries:
            replies = await quarantine.release(entry.id, next_hop)
            after = quarantine.entry(entry.id)
            learnt = False
            if after.delivered:
                with closing(quarantine.open(entry.id)) as spool:
                    example = ExampleReader(teacher.key).read_example(spool.read())
                outcomes = LessonService(teacher).submit([example], "ham", "", Origin.RELEASE)
                learnt = outcomes == [LessonOutcome.LEARNT]
            complete &= after.released
            if not replies:
                outcome = "had been released before"
            elif after.released:
                outcome = f"released to {common.count_text(len(replies), 'recipient')}"
            else:
                outcome = f"not released to {common.count_text(len(after.waiting), 'recipient')}"
            print(f"{entry.id} {outcome}{', learned as ham' if learnt else ''}")
            for recipient, reply in replies:
                if not reply.is_positive:
                    text = b" ".join(reply.lines).decode("utf-8", "replace")
                    print(printable(f"  <{recipient.address}>: {reply.code} {text}"))
    finally:
        await next_hop.close()
    return complete


@command("quarantine delete", "throw messages away, for good", _IDS)
def delete_entries(options: Namespace) -> int:
    quarantine = _open_quarantine(options)
    entries = [quarantine.entry(message_id) for message_id in options.ids]
    for entry in entries:
        quarantine.delete(entry.id)
    print(f"deleted {common.count_text(len(entries))}")
    return 0


# ---- who is let in

_PERSON = (
    argument("--user", "whose it is, as `watch` names users", "NAME", default=""),
    flag("--operator", "sees and teaches everything, in the name of the site"),
)


def _chosen_person(options: Namespace, operator_name: str) -> Person:
    """The person that the options name; UsageError if they name none, or nobody possible.

    operator_name: the name of an operator who is no user.
    """
    from spamguard.web.auth import Person

    name = options.user or (operator_name if options.operator else "")
    if not name:
        raise UsageError(
            "say whose it is, with --user NAME, or make it an operator's, with --operator"
        )
    return Person(name, options.operator)


@contextmanager
def _open_credentials(options: Namespace) -> Iterator[CredentialStore]:
    """Open the store as its owner; UsageError if there is no state directory."""
    from spamguard.web.auth import CredentialStore

    state = common.existing_state_directory(options)
    with as_directory_owner(state), closing(CredentialStore.open(state)) as store:
        yield store


# ---- token


EXIT_NOT_FOUND = 1  # of `revoke`
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


group(
    "token",
    """\
Make, list and revoke tokens of programs that ask the HTTP API. (It is `web` in the configuration.)

A token is for a user, who sees and teaches only their own mail, or for an operator, who sees and
teaches everything. It is shown once; only a hash of it is kept. Programs send it as `Authorization:
Bearer TOKEN`. A revoked token is refused from the next request on. `list` shows sessions of people
too (`login-link`). Exit status of `revoke`: 1 when there is no such token.""",
    example="""  spamguard token create backup-check --operator --expires 90d
  spamguard token create anna-phone --user anna
  spamguard token list
  spamguard token revoke anna-phone""",
)


@command(
    "token create",
    "make a token and show it, this once",
    argument("name", "a name to know it by", "NAME"),
    *_PERSON,
    argument(
        "--expires",
        "when it ends by itself, such as 12h or 90d (default: never)",
        "TIME",
        type=arguments.parsed_by(parse_seconds),
    ),
)
def create_token(options: Namespace) -> int:
    from spamguard.web.auth import NEVER, CredentialKind

    if _TOKEN_NAME.fullmatch(options.name) is None:
        raise UsageError(
            f"{options.name!r}: a token's name has letters, digits, dots, - and _, 64 at most"
        )
    person, now = _chosen_person(options, options.name), int(time.time())
    expires = now + max(1, int(options.expires)) if options.expires else NEVER
    with _open_credentials(options) as store:
        token = store.create(CredentialKind.TOKEN, person, now, name=options.name, expires=expires)
    common.say(f"{options.name}: this is shown once; programs send it as Authorization: Bearer …")
    print(token)
    return 0


@command("token list", "tokens and sessions, without their secrets")
def list_credentials(options: Namespace) -> int:
    with _open_credentials(options) as store:
        valid = [each for each in store.list_valid(int(time.time())) if each.kind != "link"]
    for each in valid:
        user = each.person.name + (" (operator)" if each.person.operator else "")
        until = local_time(each.expires) if each.expires else "revoked"
        line = (
            f"{each.kind:7}  {each.name or '-':20}  {user:24}  "
            f"since {local_time(each.created)}, until {until}, used {local_time(each.last_used)}"
        )
        print(printable(line))
    if not valid:
        common.say("note: there are neither tokens nor sessions")
    return 0


@command(
    "token revoke",
    "refuse a token from now on",
    argument("name", "as `list` has it", "NAME"),
)
def revoke_token(options: Namespace) -> int:
    with _open_credentials(options) as store:
        revoked = store.revoke(options.name)
    print(f"{options.name}: {'revoked' if revoked else 'there is no such token'}")
    return 0 if revoked else EXIT_NOT_FOUND


# ---- login-link


OPERATOR_NAME = "operator"  # of an operator who is no user


@command(
    "login-link",
    """\
Print a link that lets somebody in to the web page. It works once, within ten minutes; the page is
`web` in the configuration.

The first to open it is let in and stays so for 30 days, or until the page was not used for 7. With
--revoke all sessions and links of that user end instead.""",
    *_PERSON,
    argument(
        "--url",
        "where the page is, as people see it (default: what the running daemon says)",
        "URL",
    ),
    flag("--revoke", "end all sessions and links of the user"),
    example="""  spamguard login-link --user anna
  spamguard login-link --operator
  spamguard login-link --user anna --revoke""",
)
def run_login_link(options: Namespace) -> int:
    from spamguard.daemon import status
    from spamguard.web.auth import LINK_SECONDS, CredentialKind, login_url

    person = _chosen_person(options, OPERATOR_NAME)
    if options.revoke:
        with _open_credentials(options) as store:
            ended = store.end_sessions(person.name)
        print(f"{person.name}: ended {common.count_text(ended, 'session')}")
        return 0
    now, page = int(time.time()), options.url
    if not page:
        state = common.existing_state_directory(options)
        # OSError for users who may not list it: they could not reach the daemon's socket.
        os.scandir(state).close()
        web = (status.ask_daemon(state) or {}).get("web") or {}
        page = web.get("page")
        if not page:
            raise UsageError(
                f"{state}: no daemon serves a page there: set `web` in the configuration, "
                "or say where the page is with --url"
            )
    with _open_credentials(options) as store:
        link = store.create(CredentialKind.LINK, person, now, expires=now + LINK_SECONDS)
        print(login_url(page, link))
    return 0
