"""`quarantine`: list, show, release and delete the messages that are held back.

`release` hands messages on to the recipients who have not got them yet, and teaches them as ham.

Must never delete a message that is not named, and never release to a spamguard that would hold the
message again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common, history
from spamguard.errors import QuarantineError, UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, printable, rfc3339

if TYPE_CHECKING:
    from spamguard.config.options import Endpoint
    from spamguard.delivery.quarantine import Quarantine, QuarantineEntry
    from spamguard.engine.filter import Filter
    from spamguard.smtp.envelope import Recipient, Reply

QUARANTINE_ABOUT = """\
Look after the messages that are held back. They stay until they are released or deleted.

Exit status of `release`: 1 when a recipient has still not got a message."""
QUARANTINE_EXAMPLE = """  spamguard quarantine list
  spamguard quarantine show 0iq5r8jo4c1n2f3g
  spamguard quarantine release 0iq5r8jo4c1n2f3g --next-hop smtp://127.0.0.1:10026
  spamguard quarantine delete 0iq5r8jo4c1n2f3g"""

QuarantineAction = Callable[["Quarantine", Sequence["QuarantineEntry"], argparse.Namespace], int]
Replies = Sequence[tuple["Recipient", "Reply"]]

EXIT_REFUSED = 1  # of `release`: at least one recipient has not got the message
_MAX_AUTHOR = 1000  # characters


def add_quarantine(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "quarantine", run_quarantine, QUARANTINE_ABOUT, QUARANTINE_EXAMPLE
    )
    actions, lines = arguments.add_actions(parser), arguments.JSON_LINES_HELP
    about = "the newest 1,000, newest first"
    listing = arguments.add_action(actions, "list", _list_entries, about, lines)
    about = "only messages older than this one"
    listing.add_argument("--before", default="", metavar="ID", help=about)
    listing.set_defaults(ids=[])
    about = "envelope, header section and file of messages"
    _add_ids(arguments.add_action(actions, "show", _show_entries, about, lines))
    about = "hand messages on to those who have not got them yet, and learn them as ham"
    releasing = arguments.add_action(actions, "release", _release_entries, about, lines)
    releasing.add_argument(
        "--next-hop",
        type=_parse_endpoint,
        required=True,
        metavar="ENDPOINT",
        help="smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket, …",
    )
    releasing.add_argument("--no-learn", action="store_true", help="teach nothing")
    _add_ids(releasing)
    about = "throw messages away, for good"
    _add_ids(arguments.add_action(actions, "delete", _delete_entries, about))


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="as `list` and X-Spamguard have it")


def _parse_endpoint(text: str) -> Endpoint:
    from spamguard.config.options import parse_endpoint

    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_quarantine(options: argparse.Namespace) -> int:
    """Look up the messages, then perform the action on them."""
    from spamguard.delivery.quarantine import DIRECTORY, Quarantine

    quarantine = Quarantine(common.existing_state_directory(options) / DIRECTORY)
    entries = [quarantine.entry(message_id) for message_id in options.ids]
    work: QuarantineAction = options.work
    return work(quarantine, entries, options)


def _list_entries(
    quarantine: Quarantine, _: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    from spamguard.delivery.quarantine import MAX_ENTRIES

    if options.before and not is_id(options.before):
        raise UsageError(f"--before {options.before}: is no id, as `quarantine list` has them")
    entries = list(quarantine.entries(MAX_ENTRIES + 1, options.before))
    for entry in entries[:MAX_ENTRIES]:
        header = b""
        with suppress(QuarantineError, OSError):  # it was deleted meanwhile
            header = quarantine.header(entry.id)
        values = _entry_values(entry, header)
        common.print_answer(options, _entry_line(entry, values), values)
    if not entries:
        common.say("note: nothing is held there")
    if entries[MAX_ENTRIES:]:
        common.say(f"note: there are older ones: --before {entries[MAX_ENTRIES - 1].id}")
    return 0


def _show_entries(
    quarantine: Quarantine, entries: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    for entry in entries:
        header = quarantine.header(entry.id)
        values = _entry_values(entry, header) | {
            "file": str(quarantine.file(entry.id)),
            "header": header.decode("utf-8", "replace"),
        }
        common.print_answer(options, _entry_text(values | {"time": local_time(entry.when)}), values)
    return 0


def _delete_entries(
    quarantine: Quarantine, entries: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    for entry in entries:
        quarantine.delete(entry.id)
    text = f"deleted {common.count_text(len(entries))}"
    common.print_answer(options, text, {"deleted": len(entries)})
    return 0


def _entry_values(entry: QuarantineEntry, header: bytes) -> dict[str, Any]:
    from spamguard.proxy.delivery_log import decode_author
    from spamguard.proxy.history_schema import readable

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


def _entry_line(entry: QuarantineEntry, values: dict[str, Any]) -> str:
    state = "held"
    if entry.released:
        state = "released"
    elif entry.delivered:
        state = f"waits for {len(entry.waiting)}"
    first, *others = values["to"] or [""]
    more = f" and {len(others)} more" if others else ""
    sender = history.sender_text(values["author"], values["from"])
    return printable(
        f"{entry.id}  {local_time(entry.when)}  {state:8}  {entry.size:10,}  {entry.reason:8}  "
        f"{sender} to <{first}>{more}"
    )


def _entry_text(values: dict[str, Any]) -> str:
    fields = (
        f"{name:9} {', '.join(value) if isinstance(value, list) else value}"
        for name, value in values.items()
        if name != "header"
    )
    header = (line.expandtabs() for line in values["header"].splitlines())
    return "\n".join((*map(printable, fields), "", *map(printable, header), ""))


# ---- release


def _release_entries(
    quarantine: Quarantine, entries: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    import asyncio

    _refuse_mail_loop(options)
    with ExitStack() as stack:
        teacher = None if options.no_learn else stack.enter_context(common.open_filter(options))
        if teacher is not None:
            teacher.require_receipts()  # before anything is released
        complete = asyncio.run(_release_all(quarantine, entries, teacher, options))
        if teacher is not None:
            common.settle_if_due(teacher)
    return 0 if complete else EXIT_REFUSED


def _refuse_mail_loop(options: argparse.Namespace) -> None:
    """UsageError if the daemon itself listens there: it would hold the messages once more."""
    from spamguard.config.checks import reaches
    from spamguard.config.options import parse_endpoint
    from spamguard.daemon import status

    daemon = status.ask_daemon(common.state_directory(options)) or {}
    for listener in daemon.get("listeners", ()):
        if reaches(options.next_hop, parse_endpoint(listener["listen"])):
            raise UsageError(
                f"{options.next_hop}: spamguard itself listens there, and would hold them once "
                f"more: hand them to {listener['next_hop']}"
            )


async def _release_all(
    quarantine: Quarantine,
    entries: Sequence[QuarantineEntry],
    teacher: Filter | None,
    options: argparse.Namespace,
) -> bool:
    """Release and teach the messages; return whether every recipient has got them."""
    from spamguard.config.options import Hop
    from spamguard.delivery.smtp import create_next_hop
    from spamguard.log import hostname

    next_hop = create_next_hop(Hop(options.next_hop), hostname())
    complete = True
    try:
        for entry in entries:
            replies = await quarantine.release(entry.id, next_hop)
            after = quarantine.entry(entry.id)
            taught = (
                teacher is not None
                and bool(after.delivered)
                and _learn_ham(quarantine, entry.id, teacher)
            )
            complete &= after.released
            common.print_answer(
                options,
                _release_text(after, replies, taught=taught),
                _release_values(after, replies, taught=taught),
            )
    finally:
        await next_hop.close()
    return complete


def _learn_ham(quarantine: Quarantine, message_id: str, teacher: Filter) -> bool:
    """Teach a message as ham; return whether that was new."""
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonOutcome, LessonService

    with closing(quarantine.open(message_id).spool) as spool:
        example = ExampleReader(teacher.key).read_example(spool.read())
    outcomes = LessonService(teacher).submit([example], "ham", "", "quarantine")
    return outcomes == [LessonOutcome.LEARNT]


def _release_text(entry: QuarantineEntry, replies: Replies, *, taught: bool) -> str:
    if not replies:
        outcome = "had been released before"
    elif entry.released:
        outcome = f"released to {common.count_text(len(replies), 'recipient')}"
    else:
        outcome = f"not released to {common.count_text(len(entry.waiting), 'recipient')}"
    refusals = (
        printable(f"  <{recipient.address}>: {reply.code} {_reply_text(reply)}")
        for recipient, reply in replies
        if not reply.is_positive
    )
    return "\n".join((f"{entry.id} {outcome}{', learned as ham' if taught else ''}", *refusals))


def _release_values(entry: QuarantineEntry, replies: Replies, *, taught: bool) -> dict[str, Any]:
    recipients = [
        {"address": recipient.address, "code": reply.code, "reply": _reply_text(reply)}
        for recipient, reply in replies
    ]
    return {"id": entry.id, "released": entry.released, "recipients": recipients, "taught": taught}


def _reply_text(reply: Reply) -> str:
    return b" ".join(reply.lines).decode("utf-8", "replace")
