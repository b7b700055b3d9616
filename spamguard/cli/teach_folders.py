"""`teach-folders`: teach what people filed before anybody watched. Only reads mailboxes; run again,
it teaches only what is new.
"""

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

from spamguard.cli import common
from spamguard.errors import UsageError
from spamguard.log import printable
from spamguard.sources import SourceMessage
from spamguard.storage import batches

if TYPE_CHECKING:
    from spamguard.config.options import Watch
    from spamguard.engine.filter import Filter
    from spamguard.engine.parallel_extract import LabelledExample
    from spamguard.folders.mailboxes import Mailbox, Mailboxes
    from spamguard.folders.roles import RoleLookup
    from spamguard.folders.scan import FiledMessage, FolderScanner
    from spamguard.folders.scan import StoredMessage as Read


TEACH_FOLDERS_ABOUT = """Teach what people filed already. Each message in Junk is taught as spam, each in an archive or read in INBOX as ham,
in the name of its owner; trash, sent mail, drafts and folders of no known name teach nothing, nor does what spamguard itself filed.
Try it with --dry-run first.

It can be interrupted and run again: what was taught is not taught twice, and what was taken back (undo, forget) is not taught again
just because it still lies there: `spamguard learn` does that. What its owner taught before an upgrade that reads mail otherwise is
read anew, as what it was taught as. The daemon does not do this by itself: what lies in a mailbox when it first looks teaches nothing,
only what is moved from then on."""
TEACH_FOLDERS_EXAMPLE = """  spamguard teach-folders --dry-run '/home/*/Maildir'
  spamguard teach-folders ~/Maildir
  spamguard teach-folders --config /etc/spamguard/spamguard.yaml"""


def add_teach_folders(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(
        commands, "teach-folders", run_teach_folders, TEACH_FOLDERS_ABOUT, TEACH_FOLDERS_EXAMPLE
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what each folder would teach"
    )
    parser.add_argument(
        "--config",
        type=common.file_argument,
        metavar="FILE",
        help="take state directory, mailboxes and roles of folders from it",
    )
    common.add_json(parser)
    about = "a Maildir, or a pattern of several, such as '/home/*/Maildir'"
    parser.add_argument(
        "maildirs", nargs="*", type=common.directory_argument, metavar="MAILDIR", help=about
    )


def run_teach_folders(options: argparse.Namespace) -> int:
    """Teach; say what each mailbox taught."""
    from spamguard.folders import doveconf
    from spamguard.folders.broker import make_mailboxes
    from spamguard.folders.roles import role_lookup

    watches, opener = _chosen_watches(options)
    special = doveconf.read().special_uses
    roles = [role_lookup(watch, special) for watch in watches]
    with closing(make_mailboxes(watches, opener, notify=False)) as mailboxes:
        users = list(mailboxes.find_mailboxes())
        for missing in _missing_maildirs(mailboxes, users, watches, each=bool(options.maildirs)):
            raise UsageError(
                f"{missing.maildir}: no Maildir there: check the path and its permissions"
            )
        told = _teach_mailboxes(options, mailboxes, users, roles)
    common.print_answer(
        options, "\n".join(map(_dry_run_line if options.dry_run else _taught_line, told)), told
    )
    return 0


def _missing_maildirs(
    mailboxes: Mailboxes, users: Sequence[Mailbox], watches: Sequence[Watch], *, each: bool
) -> Iterator[Watch]:
    """Those where there is no Maildir. each: of them, not only of all, there has to be one."""
    from spamguard.folders.broker import is_maildir

    found = {one.watch for one in users if is_maildir(mailboxes, one, if_unreadable=False)}
    if each or not found:
        yield from (watch for number, watch in enumerate(watches) if number not in found)


def _chosen_watches(options: argparse.Namespace) -> tuple[list[Watch], Path | None]:
    """Where mailboxes are, and the socket of who opens them for us; root does so itself. The filter
    is that of the configuration.
    """
    from spamguard.config.options import Watch

    if bool(options.maildirs) == bool(options.config):
        raise UsageError("say either which MAILDIR to teach from, or --config FILE")
    if options.maildirs:
        return [Watch(str(one.absolute())) for one in options.maildirs], None
    settings = common.load_config(options)
    if not settings.watch:
        raise UsageError(f"{options.config}: watches no mailboxes: name some under `watch`")
    return list(settings.watch), settings.watch_socket if os.geteuid() else None


def _teach_mailboxes(
    options: argparse.Namespace,
    mailboxes: Mailboxes,
    users: Iterable[Mailbox],
    roles: list[RoleLookup],
) -> list[dict[str, Any]]:
    """Of each mailbox what it has taught, or would teach, for which no filter is made."""
    from spamguard.folders.scan import QUIET_SECONDS, FolderScanner, find_filed

    told = []
    with _teaching_filter(options) as spam_filter:
        time.sleep(
            QUIET_SECONDS
            # what came a moment ago may still be being written: it would be passed over without a word
        )
        scanner = FolderScanner(
            mailboxes, token_bytes(32) if spam_filter is None else spam_filter.key
        )
        for mailbox in users:
            found = find_filed(mailboxes, mailbox, roles[mailbox.watch])
            if options.dry_run or spam_filter is None:
                taught = _count_lessons(spam_filter, scanner, mailbox, found)
            else:
                taught = _teach_mailbox(spam_filter, scanner, mailbox, found)
            told.append({"user": mailbox.user, "maildir": printable(mailbox.path), **taught})
        if spam_filter is not None and not options.dry_run:
            common.settle_if_due(spam_filter)
    return told


def _teaching_filter(options: argparse.Namespace) -> AbstractContextManager[Filter | None]:
    if not options.dry_run:
        return common.open_filter(options)
    return (
        common.open_existing(options, load=False) if common.has_filter(options) else nullcontext()
    )


def _count_lessons(
    spam_filter: Filter | None, scanner: FolderScanner, mailbox: Mailbox, found: list[FiledMessage]
) -> dict[str, Any]:
    """How many messages each folder would teach, how many are known as that, to be read anew after
    an upgrade, or had been taken back.
    """
    from spamguard.folders.mailboxes import display_folder
    from spamguard.records import EXTRACTOR

    new: Counter[tuple[str, str]] = Counter()
    seen: set[bytes] = set()
    known = renewed = taken_back = 0
    unwanted = frozenset(("spam",)) if spam_filter is None else spam_filter.unwanted
    for one, message in _read_lessons(scanner, mailbox, found, unwanted):
        vote = (
            spam_filter.ledger.get_vote(message.digest, mailbox.user)
            if spam_filter is not None
            else None
        )
        if message.digest in seen:
            known += 1
        elif vote is not None and vote.label is None:
            taken_back += 1
        elif vote is not None and vote.extractor < EXTRACTOR:
            renewed += 1
        elif vote is not None and vote.label == one.label:
            known += 1
        else:
            new[one.label, display_folder(one.folder.directory)] += 1
        seen.add(message.digest)
    folders = {
        folder: {"class": label, "messages": count}
        for (label, folder), count in sorted(new.items())
    }
    return {"folders": folders, "known": known, "renewed": renewed, "taken_back": taken_back}


def _dry_run_line(told: dict[str, Any]) -> str:
    parts = [
        f"{one['messages']:,} in {name} as {one['class']}" for name, one in told["folders"].items()
    ]
    return _mailbox_line(told, "would teach", parts)


def _taught_line(told: dict[str, Any]) -> str:
    return _mailbox_line(
        told,
        "taught",
        [
            f"{common.count_text(count)} as {label}"
            for label, count in told["taught"].items()
            if count
        ],
    )


def _mailbox_line(told: dict[str, Any], verb: str, parts: Sequence[str]) -> str:
    others = {
        "already known": told["known"],
        "to be read anew, as what they were taught as": told.get("renewed"),
        "taken back before, and left so": told["taken_back"],
    }
    beside = ", ".join(f"{number:,} {why}" for why, number in others.items() if number)
    return printable(
        f"{told['user']}: {verb} {', '.join(parts) or 'nothing'}"
        + (f" ({beside})" if beside else "")
    )


def _teach_mailbox(
    spam_filter: Filter, scanner: FolderScanner, mailbox: Mailbox, found: list[FiledMessage]
) -> dict[str, Any]:
    """How many messages of each class were taught, how many were known as that, and how many had
    been taken back.
    """
    from spamguard.engine import parallel_extract
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.learning.reextract import reextract_votes

    service = LessonService(spam_filter)
    for label in sorted({one.label for one in found}):
        service.open_class(label, NewClass.CREATE)
    taught: Counter[str] = Counter()
    known = taken_back = 0
    for batch in batches(
        parallel_extract.extract_examples(
            spam_filter.key, _labelled_messages(spam_filter, scanner, mailbox, found)
        )
    ):
        anew = reextract_votes(
            spam_filter, [one.example for one in batch], mailbox.user
        )  # what somebody has said weighs more than where it lies
        taught.update(
            str(one.user_label)
            for one in spam_filter.ledger.users.find_standings(anew, mailbox.user).values()
        )
        done = {*anew, *(back := _retracted_digests(spam_filter, mailbox.user, batch))}
        taken_back += len(back)
        for label, some in parallel_extract.group_by_class(batch).items():
            lessons = [one for one in some if one.digest not in done]
            # no quota: somebody asks for all of it
            outcomes = service.submit(
                lessons, label, mailbox.user, "folders, before they were watched"
            )
            taught[label] += outcomes.count(LessonOutcome.LEARNT)
            known += outcomes.count(LessonOutcome.UNCHANGED)
    return {"taught": dict(sorted(taught.items())), "known": known, "taken_back": taken_back}


def _retracted_digests(spam_filter: Filter, user: str, batch: list[LabelledExample]) -> set[bytes]:
    """Messages about which nothing is in force that this user has said, though something was."""
    votes = (spam_filter.ledger.get_vote(one.example.digest, user) for one in batch)
    return {vote.digest for vote in votes if vote is not None and vote.label is None}


def _labelled_messages(
    spam_filter: Filter, scanner: FolderScanner, mailbox: Mailbox, found: list[FiledMessage]
) -> Iterator[SourceMessage]:
    lessons = _read_lessons(scanner, mailbox, found, spam_filter.unwanted)
    return (
        SourceMessage(one.file.name, message.message.raw, one.label) for one, message in lessons
    )


def _read_lessons(
    scanner: FolderScanner, mailbox: Mailbox, found: list[FiledMessage], unwanted: frozenset[str]
) -> Iterator[tuple[FiledMessage, Read]]:
    from spamguard.folders.scan import initial_lessons

    for one, message in common.with_progress(
        initial_lessons(scanner, found, unwanted), len(found), title=mailbox.user
    ):
        if message is not None:
            yield one, message
