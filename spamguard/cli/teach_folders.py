"""`teach-folders`: teach what people filed before anybody watched their folders.

Each mailbox is searched for messages whose folder says what they are, and these are taught in the
name of its owner, once. A message that the owner taught before, or took back, is left as it is;
votes of an earlier extractor are read again and keep their class.

Must never write to a mailbox. Run again, it must teach only what is new.
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

from spamguard.cli import arguments, common
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
    from spamguard.folders.scan import FiledMessage, FolderScanner, StoredMessage

TEACH_FOLDERS_ABOUT = """\
Teach what people filed already. Each message in Junk is taught as spam, each in an archive or read
in INBOX as ham, in the name of its owner; trash, sent mail, drafts and folders of no known name
teach nothing, nor does what spamguard itself filed. Try it with --dry-run first.

It can be interrupted and run again: what was taught is not taught twice, and what was taken back
(undo, forget) is not taught again just because it still lies there: `spamguard learn` does that.
Messages taught before an upgrade that reads mail otherwise are read again and keep their class. The
daemon does not do this by itself: messages that lie in a mailbox when it first looks teach nothing,
only later moves do."""
TEACH_FOLDERS_EXAMPLE = """  spamguard teach-folders --dry-run '/home/*/Maildir'
  spamguard teach-folders ~/Maildir
  spamguard teach-folders --config /etc/spamguard/spamguard.yaml"""

_ORIGIN = "folders, before they were watched"


def add_teach_folders(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "teach-folders", run_teach_folders, TEACH_FOLDERS_ABOUT, TEACH_FOLDERS_EXAMPLE
    )
    about = "only say what each folder would teach"
    parser.add_argument("--dry-run", action="store_true", help=about)
    about = "take state directory, mailboxes and roles of folders from it"
    parser.add_argument("--config", type=arguments.parse_file, metavar="FILE", help=about)
    arguments.add_json(parser)
    about = "a Maildir, or a pattern of several, such as '/home/*/Maildir'"
    parser.add_argument(
        "maildirs", nargs="*", type=arguments.parse_directory, metavar="MAILDIR", help=about
    )


def run_teach_folders(options: argparse.Namespace) -> int:
    """Teach every mailbox; print what each has taught."""
    from spamguard.folders import doveconf
    from spamguard.folders.broker import make_mailboxes
    from spamguard.folders.roles import role_lookup

    watches, broker_socket = _chosen_watches(options)
    special_uses = doveconf.read().special_uses
    roles = [role_lookup(watch, special_uses) for watch in watches]
    with closing(make_mailboxes(watches, broker_socket, notify=False)) as mailboxes:
        owned = list(mailboxes.find_mailboxes())
        _require_maildirs(mailboxes, owned, watches, each=bool(options.maildirs))
        results = _teach_mailboxes(options, mailboxes, owned, roles)
    lines = map(_dry_run_line if options.dry_run else _taught_line, results)
    common.print_answer(options, "\n".join(lines), results)
    return 0


def _chosen_watches(options: argparse.Namespace) -> tuple[list[Watch], Path | None]:
    """Where mailboxes are, and the broker's socket unless root opens them itself.

    With --config, its filter is used from here on.
    """
    from spamguard.config.options import Watch

    if bool(options.maildirs) == bool(options.config):
        raise UsageError("say either which MAILDIR to teach from, or --config FILE")
    if options.maildirs:
        return [Watch(str(path.absolute())) for path in options.maildirs], None
    settings = common.load_config(options)
    if not settings.watch:
        raise UsageError(f"{options.config}: watches no mailboxes: name some under `watch`")
    return list(settings.watch), settings.watch_socket if os.geteuid() else None


def _require_maildirs(
    mailboxes: Mailboxes, owned: Sequence[Mailbox], watches: Sequence[Watch], *, each: bool
) -> None:
    """UsageError if there is no Maildir at all; or, with `each`, none for one of the watches."""
    from spamguard.folders.broker import is_maildir

    with_maildir = {
        mailbox.watch for mailbox in owned if is_maildir(mailboxes, mailbox, if_unreadable=False)
    }
    for number, watch in enumerate(watches):
        if number not in with_maildir and (each or not with_maildir):
            raise UsageError(
                f"{watch.maildir}: no Maildir there: check the path and its permissions"
            )


def _teach_mailboxes(
    options: argparse.Namespace,
    mailboxes: Mailboxes,
    owned: Iterable[Mailbox],
    roles: list[RoleLookup],
) -> list[dict[str, Any]]:
    """What each mailbox has taught; or would teach, for which no filter is made."""
    from spamguard.folders.scan import QUIET_SECONDS, FolderScanner, find_filed

    results = []
    with _teaching_filter(options) as spam_filter:
        # A file younger than this counts as unfinished and would be passed over in silence.
        time.sleep(QUIET_SECONDS)
        key = token_bytes(32) if spam_filter is None else spam_filter.key
        scanner = FolderScanner(mailboxes, key)
        for mailbox in owned:
            filed = find_filed(mailboxes, mailbox, roles[mailbox.watch])
            if options.dry_run or spam_filter is None:
                counts = _count_lessons(spam_filter, scanner, mailbox, filed)
            else:
                counts = _teach_mailbox(spam_filter, scanner, mailbox, filed)
            path = printable(mailbox.path)
            results.append({"user": mailbox.user, "maildir": path, **counts})
        if spam_filter is not None and not options.dry_run:
            common.settle_if_due(spam_filter)
    return results


def _teaching_filter(options: argparse.Namespace) -> AbstractContextManager[Filter | None]:
    if not options.dry_run:
        return common.open_filter(options)
    if common.has_filter(options):
        return common.open_existing(options, load=False)
    return nullcontext()


def _count_lessons(
    spam_filter: Filter | None, scanner: FolderScanner, mailbox: Mailbox, filed: list[FiledMessage]
) -> dict[str, Any]:
    """Count, for a dry run, the messages that each folder would teach, and the others."""
    from spamguard.folders.mailboxes import display_folder
    from spamguard.records import EXTRACTOR

    new: Counter[tuple[str, str]] = Counter()
    digests: set[bytes] = set()
    known = renewed = taken_back = 0
    unwanted = frozenset(("spam",)) if spam_filter is None else spam_filter.unwanted
    for lesson, stored in _read_lessons(scanner, mailbox, filed, unwanted):
        digest = stored.digest
        vote = None if spam_filter is None else spam_filter.ledger.get_vote(digest, mailbox.user)
        if digest in digests:
            known += 1
        elif vote is not None and vote.label is None:
            taken_back += 1
        elif vote is not None and vote.extractor < EXTRACTOR:
            renewed += 1
        elif vote is not None and vote.label == lesson.label:
            known += 1
        else:
            new[lesson.label, display_folder(lesson.folder.directory)] += 1
        digests.add(digest)
    folders = {
        folder: {"class": label, "messages": count}
        for (label, folder), count in sorted(new.items())
    }
    return {"folders": folders, "known": known, "renewed": renewed, "taken_back": taken_back}


def _teach_mailbox(
    spam_filter: Filter, scanner: FolderScanner, mailbox: Mailbox, filed: list[FiledMessage]
) -> dict[str, Any]:
    """Teach a mailbox; return the numbers of messages taught, known before, and taken back."""
    from spamguard.engine.parallel_extract import extract_examples, group_by_class
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.learning.undo import reextract_votes

    service = LessonService(spam_filter)
    for label in sorted({message.label for message in filed}):
        service.open_class(label, NewClass.CREATE)
    taught: Counter[str] = Counter()
    known = taken_back = 0
    messages = (
        SourceMessage(lesson.file.name, stored.message.raw, lesson.label)
        for lesson, stored in _read_lessons(scanner, mailbox, filed, spam_filter.unwanted)
    )
    for batch in batches(extract_examples(spam_filter.key, messages)):
        # The class of an old vote weighs more than the folder.
        renewed = reextract_votes(spam_filter, [each.example for each in batch], mailbox.user)
        standings = spam_filter.ledger.users.find_standings(renewed, mailbox.user)
        taught.update(str(standing.user_label) for standing in standings.values())
        retracted = _retracted_digests(spam_filter, mailbox.user, batch)
        taken_back += len(retracted)
        done = {*renewed, *retracted}
        for label, examples in group_by_class(batch).items():
            lessons = [example for example in examples if example.digest not in done]
            # without a quota: the administrator asks for all of it
            outcomes = service.submit(lessons, label, mailbox.user, _ORIGIN)
            taught[label] += outcomes.count(LessonOutcome.LEARNT)
            known += outcomes.count(LessonOutcome.UNCHANGED)
    return {"taught": dict(sorted(taught.items())), "known": known, "taken_back": taken_back}


def _retracted_digests(spam_filter: Filter, user: str, batch: list[LabelledExample]) -> set[bytes]:
    """The messages on which this user's vote was taken back."""
    votes = (spam_filter.ledger.get_vote(each.example.digest, user) for each in batch)
    return {vote.digest for vote in votes if vote is not None and vote.label is None}


def _read_lessons(
    scanner: FolderScanner, mailbox: Mailbox, filed: list[FiledMessage], unwanted: frozenset[str]
) -> Iterator[tuple[FiledMessage, StoredMessage]]:
    from spamguard.folders.scan import initial_lessons

    lessons = initial_lessons(scanner, filed, unwanted)
    for lesson, stored in common.with_progress(lessons, len(filed), title=mailbox.user):
        if stored is not None:
            yield lesson, stored


def _dry_run_line(result: dict[str, Any]) -> str:
    parts = [
        f"{row['messages']:,} in {name} as {row['class']}"
        for name, row in result["folders"].items()
    ]
    return _mailbox_line(result, "would teach", parts)


def _taught_line(result: dict[str, Any]) -> str:
    counts = result["taught"].items()
    parts = [f"{common.count_text(count)} as {label}" for label, count in counts if count]
    return _mailbox_line(result, "taught", parts)


def _mailbox_line(result: dict[str, Any], verb: str, parts: Sequence[str]) -> str:
    others = {
        "already known": result["known"],
        "to be read again, and to keep their class": result.get("renewed"),
        "taken back before, and left so": result["taken_back"],
    }
    remarks = ", ".join(f"{number:,} {remark}" for remark, number in others.items() if number)
    return printable(
        f"{result['user']}: {verb} {', '.join(parts) or 'nothing'}"
        + (f" ({remarks})" if remarks else "")
    )
