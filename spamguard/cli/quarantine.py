"""`quarantine`: look at the messages that are held back, hand them on after all, throw them away. Never the last unless told which."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from spamguard.cli import remembered, rim, usage
from spamguard.daemon import desk
from spamguard.errors import QuarantineError, UsageError
from spamguard.hostname import hostname
from spamguard.ids import is_id
from spamguard.times import moment, rfc3339

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.quarantine import Entry, Quarantine
    from spamguard.settings import Endpoint
    from spamguard.wire.values import Recipient, Reply

ABOUT = """Look after the messages that are held back. They stay until they are released or deleted.

Exit status of `release`: 1 when a recipient has still not got a message."""
EXAMPLE = """  spamguard quarantine list
  spamguard quarantine show 0iq5r8jo4c1n2f3g
  spamguard quarantine release 0iq5r8jo4c1n2f3g --next-hop smtp://127.0.0.1:10026
  spamguard quarantine delete 0iq5r8jo4c1n2f3g"""

Work = Callable[["Quarantine", Sequence["Entry"], argparse.Namespace], int]

_TEXT = 1000  # characters of one that is told
REFUSED = 1  # exit status of `release`: at least one recipient has not got the message


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "quarantine", run, ABOUT, EXAMPLE)
    actions = usage.add_actions(parser)
    listing = usage.add_action(actions, "list", _list, "the newest 1,000, newest first", usage.ONE_FOR_EACH)
    listing.add_argument("--before", default="", metavar="ID", help="only messages older than this one")
    listing.set_defaults(ids=[])
    _add_ids(usage.add_action(actions, "show", _show, "envelope, header section and file of messages", usage.ONE_FOR_EACH))
    about = "hand messages on to those who have not got them yet, and learn them as ham"
    releasing = usage.add_action(actions, "release", _release, about, usage.ONE_FOR_EACH)
    releasing.add_argument(
        "--next-hop", type=_endpoint, required=True, metavar="ENDPOINT", help="smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket, …"
    )
    releasing.add_argument("--no-learn", action="store_true", help="teach nothing")
    _add_ids(releasing)
    _add_ids(usage.add_action(actions, "delete", _delete, "throw messages away, for good"))


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="as `list` and X-Spamguard have it")


def _endpoint(text: str) -> Endpoint:
    from spamguard.settings import parse_endpoint

    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    from spamguard.quarantine import DIRECTORY, Quarantine

    quarantine = Quarantine(rim.existing_directory(options) / DIRECTORY)
    entries = [quarantine.entry(name) for name in options.ids]  # a slip is told before anything is done
    work: Work = options.work
    return work(quarantine, entries, options)


def _list(quarantine: Quarantine, _: Sequence[Entry], options: argparse.Namespace) -> int:
    from spamguard.quarantine import MOST

    if options.before and not is_id(options.before):
        raise UsageError(f"--before {options.before}: is no id, as `quarantine list` has them")
    found = list(quarantine.entries(MOST + 1, options.before))
    for entry in found[:MOST]:
        header = b""
        with suppress(QuarantineError, OSError):  # it was deleted meanwhile
            header = quarantine.header(entry.id)
        values = _values(entry, header)
        rim.answer(options, _line(entry, values), values)
    if not found:
        rim.say("note: nothing is held there")
    if found[MOST:]:
        rim.say(f"note: there are older ones: --before {found[MOST - 1].id}")
    return 0


def _show(quarantine: Quarantine, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    for entry in entries:
        header = quarantine.header(entry.id)
        values = _values(entry, header) | {"file": str(quarantine.file(entry.id)), "header": header.decode("utf-8", "replace")}
        rim.answer(options, _text(values | {"time": moment(entry.when)}), values)
    return 0


def _delete(quarantine: Quarantine, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    for entry in entries:
        quarantine.delete(entry.id)
    rim.answer(options, f"deleted {rim.counted(len(entries))}", {"deleted": len(entries)})
    return 0


# ---- releasing


def _release(quarantine: Quarantine, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    import asyncio

    _refuse_to_come_back(options)
    with ExitStack() as stack:
        teacher = None if options.no_learn else stack.enter_context(rim.open_filter(options))
        if teacher is not None:
            teacher.refuse_without_receipts()  # while nothing is done yet
        complete = asyncio.run(_release_all(quarantine, entries, teacher, options))
        if teacher is not None:
            rim.settle_if_due(teacher)
    return 0 if complete else REFUSED


def _refuse_to_come_back(options: argparse.Namespace) -> None:
    """UsageError: the messages would be judged, and held, once more."""
    from spamguard.config.checks import reaches
    from spamguard.settings import parse_endpoint

    told = desk.ask(rim.state_directory(options)) or {}
    for listener in told.get("listeners", ()):
        if reaches(options.next_hop, parse_endpoint(listener["listen"])):
            where = f"{options.next_hop}: spamguard itself listens there, and would hold them once more"
            raise UsageError(f"{where}: hand them to {listener['next_hop']}")


async def _release_all(quarantine: Quarantine, entries: Sequence[Entry], teacher: Filter | None, options: argparse.Namespace) -> bool:
    """Whether every recipient has got its messages."""
    from spamguard.relay.factory import next_hop
    from spamguard.settings import Hop

    hop = next_hop(Hop(options.next_hop), hostname())
    complete = True
    try:
        for entry in entries:
            replies = await quarantine.release(entry.id, hop)
            now = quarantine.entry(entry.id)
            taught = teacher is not None and bool(now.delivered) and _learn(quarantine, entry.id, teacher)
            complete &= now.released
            rim.answer(options, _outcome(now, replies, taught=taught), _released(now, replies, taught=taught))
    finally:
        await hop.close()
    return complete


def _learn(quarantine: Quarantine, name: str, teacher: Filter) -> bool:
    """Teach a message as ham; whether that was new."""
    from spamguard.prepare import Preparer

    with closing(quarantine.open(name).spool) as spool:
        lesson = Preparer(teacher.key).ready(spool.read())
    return teacher.learn_ready([lesson], "ham", origin="quarantine")[0]


def _outcome(entry: Entry, replies: Sequence[tuple[Recipient, Reply]], *, taught: bool) -> str:
    lines = [rim.printable(f"  <{one.address}>: {reply.code} {_told(reply)}") for one, reply in replies if not reply.positive]
    if not replies:
        what = "had been released before"
    elif entry.released:
        what = f"released to {rim.counted(len(replies), 'recipient')}"
    else:
        what = f"not released to {rim.counted(len(entry.waiting), 'recipient')}"
    return "\n".join((f"{entry.id} {what}" + (", learned as ham" if taught else ""), *lines))


def _released(entry: Entry, replies: Sequence[tuple[Recipient, Reply]], *, taught: bool) -> dict[str, Any]:
    told = [{"address": one.address, "code": reply.code, "reply": _told(reply)} for one, reply in replies]
    return {"id": entry.id, "released": entry.released, "recipients": told, "taught": taught}


def _told(reply: Reply) -> str:
    return b" ".join(reply.lines).decode("utf-8", "replace")


# ---- what is shown


def _values(entry: Entry, header: bytes) -> dict[str, Any]:
    from spamguard.history.row import readable
    from spamguard.proxy.journal import author_of

    return {
        "id": entry.id,
        "time": rfc3339(entry.when),
        "reason": entry.reason,
        "size": entry.size,
        "client": entry.envelope.client.address,
        "from": entry.envelope.sender.address,
        "author": readable(author_of(header), _TEXT),
        "to": [one.address for one in entry.envelope.recipients],
        "waiting": [entry.envelope.recipients[number].address for number in entry.waiting],
        "released": entry.released,
    }


def _line(entry: Entry, values: dict[str, Any]) -> str:
    first, *others = values["to"] or [""]
    more = f" and {len(others)} more" if others else ""
    state = "released" if entry.released else "held" if not entry.delivered else f"waits for {len(entry.waiting)}"
    whence = remembered.whence(values["author"], values["from"])
    return rim.printable(f"{entry.id}  {moment(entry.when)}  {state:8}  {entry.size:10,}  {entry.reason:8}  {whence} to <{first}>{more}")


def _text(values: dict[str, Any]) -> str:
    facts = [f"{name:9} {', '.join(value) if isinstance(value, list) else value}" for name, value in values.items() if name != "header"]
    return "\n".join((*map(rim.printable, facts), "", *(rim.printable(line.expandtabs()) for line in values["header"].splitlines()), ""))
