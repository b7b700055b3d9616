"""Messages that are named by an id, since they have gone on: how commands are told, and tell, of
them.

`quarantine`: look at the messages that are held back, hand them on after all, throw them away.
Never the last unless told which.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from spamguard.cli import common, history
from spamguard.errors import QuarantineError, UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, printable, rfc3339

if TYPE_CHECKING:
    from spamguard.config.options import Endpoint
    from spamguard.delivery.quarantine import Quarantine, QuarantineEntry
    from spamguard.engine.filter import Filter
    from spamguard.smtp.envelope import Recipient, Reply


QUARANTINE_ABOUT = """Look after the messages that are held back. They stay until they are released or deleted.

Exit status of `release`: 1 when a recipient has still not got a message."""
QUARANTINE_EXAMPLE = """  spamguard quarantine list
  spamguard quarantine show 0iq5r8jo4c1n2f3g
  spamguard quarantine release 0iq5r8jo4c1n2f3g --next-hop smtp://127.0.0.1:10026
  spamguard quarantine delete 0iq5r8jo4c1n2f3g"""

QuarantineAction = Callable[["Quarantine", Sequence["QuarantineEntry"], argparse.Namespace], int]

_MAX_TEXT = 1000  # characters of one that is told
EXIT_REFUSED = 1  # exit status of `release`: at least one recipient has not got the message


def add_quarantine(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(
        commands, "quarantine", run_quarantine, QUARANTINE_ABOUT, QUARANTINE_EXAMPLE
    )
    actions = common.add_actions(parser)
    listing = common.add_action(
        actions, "list", _list_entries, "the newest 1,000, newest first", common.JSON_LINES_HELP
    )
    listing.add_argument(
        "--before", default="", metavar="ID", help="only messages older than this one"
    )
    listing.set_defaults(ids=[])
    _add_ids(
        common.add_action(
            actions,
            "show",
            _show_entries,
            "envelope, header section and file of messages",
            common.JSON_LINES_HELP,
        )
    )
    about = "hand messages on to those who have not got them yet, and learn them as ham"
    releasing = common.add_action(
        actions, "release", _release_entries, about, common.JSON_LINES_HELP
    )
    releasing.add_argument(
        "--next-hop",
        type=_endpoint_argument,
        required=True,
        metavar="ENDPOINT",
        help="smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket, …",
    )
    releasing.add_argument("--no-learn", action="store_true", help="teach nothing")
    _add_ids(releasing)
    _add_ids(common.add_action(actions, "delete", _delete_entries, "throw messages away, for good"))


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="as `list` and X-Spamguard have it")


def _endpoint_argument(text: str) -> Endpoint:
    from spamguard.config.options import parse_endpoint

    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_quarantine(options: argparse.Namespace) -> int:
    """Do what was asked."""
    from spamguard.delivery.quarantine import DIRECTORY, Quarantine

    quarantine = Quarantine(common.existing_state_directory(options) / DIRECTORY)
    entries = [
        quarantine.entry(name) for name in options.ids
    ]  # a slip is told before anything is done
    work: QuarantineAction = options.work
    return work(quarantine, entries, options)


def _list_entries(
    quarantine: Quarantine, _: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    from spamguard.delivery.quarantine import MAX_ENTRIES

    if options.before and not is_id(options.before):
        raise UsageError(f"--before {options.before}: is no id, as `quarantine list` has them")
    found = list(quarantine.entries(MAX_ENTRIES + 1, options.before))
    for entry in found[:MAX_ENTRIES]:
        header = b""
        with suppress(QuarantineError, OSError):  # it was deleted meanwhile
            header = quarantine.header(entry.id)
        values = _entry_values(entry, header)
        common.print_answer(options, _entry_line(entry, values), values)
    if not found:
        common.say("note: nothing is held there")
    if found[MAX_ENTRIES:]:
        common.say(f"note: there are older ones: --before {found[MAX_ENTRIES - 1].id}")
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
    common.print_answer(
        options, f"deleted {common.count_text(len(entries))}", {"deleted": len(entries)}
    )
    return 0


# ---- releasing


def _release_entries(
    quarantine: Quarantine, entries: Sequence[QuarantineEntry], options: argparse.Namespace
) -> int:
    import asyncio

    _refuse_mail_loop(options)
    with ExitStack() as stack:
        teacher = None if options.no_learn else stack.enter_context(common.open_filter(options))
        if teacher is not None:
            teacher.require_receipts()  # while nothing is done yet
        complete = asyncio.run(_release_all(quarantine, entries, teacher, options))
        if teacher is not None:
            common.settle_if_due(teacher)
    return 0 if complete else EXIT_REFUSED


def _refuse_mail_loop(options: argparse.Namespace) -> None:
    """UsageError: the messages would be judged, and held, once more."""
    from spamguard.config.checks import reaches
    from spamguard.config.options import parse_endpoint
    from spamguard.daemon import status

    told = status.ask_daemon(common.state_directory(options)) or {}
    for listener in told.get("listeners", ()):
        if reaches(options.next_hop, parse_endpoint(listener["listen"])):
            where = (
                f"{options.next_hop}: spamguard itself listens there, and would hold them once more"
            )
            raise UsageError(f"{where}: hand them to {listener['next_hop']}")


async def _release_all(
    quarantine: Quarantine,
    entries: Sequence[QuarantineEntry],
    teacher: Filter | None,
    options: argparse.Namespace,
) -> bool:
    """Whether every recipient has got its messages."""
    from spamguard.aio import hostname
    from spamguard.config.options import Hop
    from spamguard.delivery.smtp import create_next_hop

    hop = create_next_hop(Hop(options.next_hop), hostname())
    complete = True
    try:
        for entry in entries:
            replies = await quarantine.release(entry.id, hop)
            now = quarantine.entry(entry.id)
            taught = (
                teacher is not None
                and bool(now.delivered)
                and _learn_ham(quarantine, entry.id, teacher)
            )
            complete &= now.released
            common.print_answer(
                options,
                _release_text(now, replies, taught=taught),
                _release_values(now, replies, taught=taught),
            )
    finally:
        await hop.close()
    return complete


def _learn_ham(quarantine: Quarantine, name: str, teacher: Filter) -> bool:
    """Teach a message as ham; whether that was new."""
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonOutcome, LessonService

    with closing(quarantine.open(name).spool) as spool:
        lesson = ExampleReader(teacher.key).read_example(spool.read())
    outcomes = LessonService(teacher).submit([lesson], "ham", "", "quarantine")
    return outcomes == [LessonOutcome.LEARNT]


def _release_text(
    entry: QuarantineEntry, replies: Sequence[tuple[Recipient, Reply]], *, taught: bool
) -> str:
    lines = [
        printable(f"  <{one.address}>: {reply.code} {_reply_text(reply)}")
        for one, reply in replies
        if not reply.is_positive
    ]
    if not replies:
        what = "had been released before"
    elif entry.released:
        what = f"released to {common.count_text(len(replies), 'recipient')}"
    else:
        what = f"not released to {common.count_text(len(entry.waiting), 'recipient')}"
    return "\n".join((f"{entry.id} {what}" + (", learned as ham" if taught else ""), *lines))


def _release_values(
    entry: QuarantineEntry, replies: Sequence[tuple[Recipient, Reply]], *, taught: bool
) -> dict[str, Any]:
    told = [
        {"address": one.address, "code": reply.code, "reply": _reply_text(reply)}
        for one, reply in replies
    ]
    return {"id": entry.id, "released": entry.released, "recipients": told, "taught": taught}


def _reply_text(reply: Reply) -> str:
    return b" ".join(reply.lines).decode("utf-8", "replace")


# ---- what is shown


def _entry_values(entry: QuarantineEntry, header: bytes) -> dict[str, Any]:
    from spamguard.proxy.delivery_log import decode_author
    from spamguard.proxy.history_schema import readable

    return {
        "id": entry.id,
        "time": rfc3339(entry.when),
        "reason": entry.reason,
        "size": entry.size,
        "client": entry.envelope.client.address,
        "from": entry.envelope.sender.address,
        "author": readable(decode_author(header), _MAX_TEXT),
        "to": [one.address for one in entry.envelope.recipients],
        "waiting": [entry.envelope.recipients[number].address for number in entry.waiting],
        "released": entry.released,
    }


def _entry_line(entry: QuarantineEntry, values: dict[str, Any]) -> str:
    first, *others = values["to"] or [""]
    more = f" and {len(others)} more" if others else ""
    state = (
        "released"
        if entry.released
        else "held"
        if not entry.delivered
        else f"waits for {len(entry.waiting)}"
    )
    whence = history.sender_text(values["author"], values["from"])
    return printable(
        f"{entry.id}  {local_time(entry.when)}  {state:8}  {entry.size:10,}  {entry.reason:8}  {whence} to <{first}>{more}"
    )


def _entry_text(values: dict[str, Any]) -> str:
    facts = [
        f"{name:9} {', '.join(value) if isinstance(value, list) else value}"
        for name, value in values.items()
        if name != "header"
    ]
    return "\n".join(
        (
            *map(printable, facts),
            "",
            *(printable(line.expandtabs()) for line in values["header"].splitlines()),
            "",
        )
    )
