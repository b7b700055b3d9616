"""`teach-folders`: teach what people filed before anybody watched. Only reads mailboxes; run again, it teaches only what is new."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from spamguard.batches import batches
from spamguard.cli import rim, usage
from spamguard.errors import UsageError
from spamguard.sources import Message

if TYPE_CHECKING:
    from spamguard.bulk import Ready
    from spamguard.engine import Filter
    from spamguard.folders.contract import Mailbox, Mailboxes
    from spamguard.folders.first import Filed
    from spamguard.folders.rules import RoleOf
    from spamguard.folders.scan import Message as Read
    from spamguard.folders.scan import Scanner
    from spamguard.settings import Watch

ABOUT = """Teach what people filed already. Each message in Junk is taught as spam, each in an archive or read in INBOX as ham,
in the name of its owner; trash, sent mail, drafts and folders of no known name teach nothing, nor does what spamguard itself filed.
Try it with --dry-run first.

It can be interrupted and run again: what was taught is not taught twice, and what was taken back (undo, forget) is not taught again
just because it still lies there: `spamguard learn` does that. What its owner taught before an upgrade that reads mail otherwise is
read anew, as what it was taught as. The daemon does not do this by itself: what lies in a mailbox when it first looks teaches nothing,
only what is moved from then on."""
EXAMPLE = """  spamguard teach-folders --dry-run '/home/*/Maildir'
  spamguard teach-folders ~/Maildir
  spamguard teach-folders --config /etc/spamguard/spamguard.yaml"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "teach-folders", run, ABOUT, EXAMPLE)
    parser.add_argument("--dry-run", action="store_true", help="only say what each folder would teach")
    parser.add_argument("--config", type=usage.file, metavar="FILE", help="take state directory, mailboxes and roles of folders from it")
    usage.add_json(parser)
    about = "a Maildir, or a pattern of several, such as '/home/*/Maildir'"
    parser.add_argument("maildirs", nargs="*", type=usage.directory, metavar="MAILDIR", help=about)


def run(options: argparse.Namespace) -> int:
    """Teach; say what each mailbox taught."""
    from spamguard.folders import doveconf
    from spamguard.folders.reach import mailboxes_of
    from spamguard.folders.rules import role_of

    watches, opener = _watches(options)
    special = doveconf.read().special
    roles = [role_of(watch, special) for watch in watches]
    with closing(mailboxes_of(watches, opener, notify=False)) as mailboxes:
        users = list(mailboxes.users())
        for missing in _without_mailboxes(mailboxes, users, watches, each=bool(options.maildirs)):
            raise UsageError(f"{missing.maildir}: no Maildir there: check the path and its permissions")
        told = _told(options, mailboxes, users, roles)
    rim.answer(options, "\n".join(map(_would_teach if options.dry_run else _taught, told)), told)
    return 0


def _without_mailboxes(mailboxes: Mailboxes, users: Sequence[Mailbox], watches: Sequence[Watch], *, each: bool) -> Iterator[Watch]:
    """Those where there is no Maildir. each: of them, not only of all, there has to be one."""
    from spamguard.folders.reach import is_maildir

    found = {one.watch for one in users if is_maildir(mailboxes, one, closed=False)}
    if each or not found:
        yield from (watch for number, watch in enumerate(watches) if number not in found)


def _watches(options: argparse.Namespace) -> tuple[list[Watch], Path | None]:
    """Where mailboxes are, and the socket of who opens them for us; root does so itself. The filter is that of the configuration."""
    from spamguard.settings import Watch

    if bool(options.maildirs) == bool(options.config):
        raise UsageError("say either which MAILDIR to teach from, or --config FILE")
    if options.maildirs:
        return [Watch(str(one.absolute())) for one in options.maildirs], None
    settings = rim.configured(options)
    if not settings.watch:
        raise UsageError(f"{options.config}: watches no mailboxes: name some under `watch`")
    return list(settings.watch), settings.watch_socket if os.geteuid() else None


def _told(options: argparse.Namespace, mailboxes: Mailboxes, users: Iterable[Mailbox], roles: list[RoleOf]) -> list[dict[str, Any]]:
    """Of each mailbox what it has taught, or would teach, for which no filter is made."""
    from spamguard.folders.first import filed
    from spamguard.folders.once import Once
    from spamguard.folders.reading import SETTLED_SECONDS
    from spamguard.folders.scan import Scanner

    told = []
    with _filter(options) as spam_filter:
        time.sleep(SETTLED_SECONDS)  # what came a moment ago may still be being written: it would be passed over without a word
        scanner = Scanner(mailboxes, token_bytes(32) if spam_filter is None else spam_filter.key, Once())
        for mailbox in users:
            found = filed(mailboxes, mailbox, roles[mailbox.watch])
            if options.dry_run or spam_filter is None:
                taught = _shown(spam_filter, scanner, mailbox, found)
            else:
                taught = _teach_from(spam_filter, scanner, mailbox, found)
            told.append({"user": mailbox.user, "maildir": rim.printable(mailbox.path), **taught})
        if spam_filter is not None and not options.dry_run:
            rim.settle_if_due(spam_filter)
    return told


def _filter(options: argparse.Namespace) -> AbstractContextManager[Filter | None]:
    if not options.dry_run:
        return rim.open_filter(options)
    return rim.open_existing(options, load=False) if rim.has_filter(options) else nullcontext()


def _shown(spam_filter: Filter | None, scanner: Scanner, mailbox: Mailbox, found: list[Filed]) -> dict[str, Any]:
    """How many messages each folder would teach, how many are known as that, to be read anew after an upgrade, or had been taken back."""
    from spamguard.folders.names import display
    from spamguard.records import EXTRACTOR

    new: Counter[tuple[str, str]] = Counter()
    seen: set[bytes] = set()
    known = renewed = taken_back = 0
    unwanted = frozenset(("spam",)) if spam_filter is None else spam_filter.unwanted
    for one, message in _lessons(scanner, mailbox, found, unwanted):
        vote = spam_filter.ledger.vote(message.digest, mailbox.user) if spam_filter is not None else None
        if message.digest in seen:
            known += 1
        elif vote is not None and vote.label is None:
            taken_back += 1
        elif vote is not None and vote.extractor < EXTRACTOR:
            renewed += 1
        elif vote is not None and vote.label == one.label:
            known += 1
        else:
            new[one.label, display(one.place.directory)] += 1
        seen.add(message.digest)
    folders = {folder: {"class": label, "messages": count} for (label, folder), count in sorted(new.items())}
    return {"folders": folders, "known": known, "renewed": renewed, "taken_back": taken_back}


def _would_teach(told: dict[str, Any]) -> str:
    parts = [f"{one['messages']:,} in {name} as {one['class']}" for name, one in told["folders"].items()]
    return _line(told, "would teach", parts)


def _taught(told: dict[str, Any]) -> str:
    return _line(told, "taught", [f"{rim.counted(count)} as {label}" for label, count in told["taught"].items() if count])


def _line(told: dict[str, Any], verb: str, parts: Sequence[str]) -> str:
    others = {
        "already known": told["known"],
        "to be read anew, as what they were taught as": told.get("renewed"),
        "taken back before, and left so": told["taken_back"],
    }
    beside = ", ".join(f"{number:,} {why}" for why, number in others.items() if number)
    return rim.printable(f"{told['user']}: {verb} {', '.join(parts) or 'nothing'}" + (f" ({beside})" if beside else ""))


def _teach_from(spam_filter: Filter, scanner: Scanner, mailbox: Mailbox, found: list[Filed]) -> dict[str, Any]:
    """How many messages of each class were taught, how many were known as that, and how many had been taken back."""
    from spamguard import bulk
    from spamguard.renewal import renew

    for label in sorted({one.label for one in found}):
        spam_filter.make_known(label)
    taught: Counter[str] = Counter()
    known = taken_back = 0
    for batch in batches(bulk.ready(spam_filter.key, _messages(spam_filter, scanner, mailbox, found))):
        anew = renew(spam_filter, [one.teaching for one in batch], mailbox.user)  # what somebody has said weighs more than where it lies
        taught.update(str(one.own) for one in spam_filter.ledger.users.standing(anew, mailbox.user).values())
        done = {*anew, *(back := _taken_back(spam_filter, mailbox.user, batch))}
        taken_back += len(back)
        for label, some in bulk.by_class(batch).items():
            lessons = [one for one in some if one.digest not in done]
            changed = spam_filter.learn_ready(lessons, label, user=mailbox.user, origin="folders, before they were watched")
            taught[label] += sum(changed)
            known += len(changed) - sum(changed)
    return {"taught": dict(sorted(taught.items())), "known": known, "taken_back": taken_back}


def _taken_back(spam_filter: Filter, user: str, batch: list[Ready]) -> set[bytes]:
    """Messages about which nothing is in force that this user has said, though something was."""
    votes = (spam_filter.ledger.vote(one.teaching.digest, user) for one in batch)
    return {vote.digest for vote in votes if vote is not None and vote.label is None}


def _messages(spam_filter: Filter, scanner: Scanner, mailbox: Mailbox, found: list[Filed]) -> Iterator[Message]:
    lessons = _lessons(scanner, mailbox, found, spam_filter.unwanted)
    return (Message(one.file.name, message.raw, one.label) for one, message in lessons)


def _lessons(scanner: Scanner, mailbox: Mailbox, found: list[Filed], unwanted: frozenset[str]) -> Iterator[tuple[Filed, Read]]:
    from spamguard.folders.first import first_lessons

    for one, message in rim.with_progress(first_lessons(scanner, found, unwanted), len(found), title=mailbox.user):
        if message is not None:
            yield one, message
