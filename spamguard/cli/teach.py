"""`learn`, `forget`, `teach-folders` and `teach-pipe`: teach messages, and take that back.

`learn` casts votes in batches; what is committed stays, whatever happens next. `forget` takes back
what was taught about messages, exactly, without knowing as what they were taught. `teach-folders`
teaches what people filed before anybody watched their folders: each mailbox is searched for
messages whose folder says what they are, and these are taught in the name of its owner, once. All
use `learning`, the one way in for a lesson, and settle at the end. `teach-pipe` leaves a lesson
for the daemon; `spamguard.__main__` runs it without this module, because somebody waits for it.

Must never teach a part of a message, never touch what others have taught, and never write to a
mailbox. `teach-folders` that is run again must teach only what is new.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common, senders
from spamguard.errors import SourceError, UsageError
from spamguard.learning import client
from spamguard.log import printable
from spamguard.records import EXTRACTOR
from spamguard.sources import SourceMessage
from spamguard.storage import batches
from spamguard.users import Origin

if TYPE_CHECKING:
    from spamguard.config.options import Watch
    from spamguard.engine.filter import Filter
    from spamguard.engine.prepare import LabelledExample, SplitMessage
    from spamguard.folders.broker import Mailboxes
    from spamguard.folders.mailboxes import Mailbox
    from spamguard.folders.scan import FiledMessage, FolderReader

# ---- learn

LEARN_ABOUT = """\
Teach messages. Teaching a message again changes nothing; teaching it as another class moves it.
Messages of a TREC index bring their class along; for all others say it with --as.

What is marked as deleted is not taught. What has no header field at all is no mail and is not
taught, unless --force says so.

Messages that passed the daemon need not be at hand: name them with --id, as X-Spamguard or the log
does. --sender teaches no message, but "always from this sender"."""
LEARN_EXAMPLE = """  spamguard learn --as spam ~/Maildir/.Junk
  spamguard learn --as newsletter ~/Maildir/.News
  spamguard learn trec07p/full/index
  spamguard learn --dry-run --as ham ~/Documents/mail
  spamguard learn --as ham --id 0iq5r8jo4c1n2f3g
  spamguard learn --as ham --sender news@example.org --user anna"""


def add_learn(parser: argparse.ArgumentParser) -> None:
    about = "what the messages are: spam, ham, or a class of your own"
    parser.add_argument("--as", dest="label", metavar="CLASS", help=about)
    arguments.add_flag(parser, "--unwanted", "messages of this class are unwanted, as spam is")
    arguments.add_flag(
        parser, "--new", "the class is new, even if its name resembles another one's"
    )
    arguments.add_flag(
        parser, "--force", "teach also what has no header field at all, and so is no mail"
    )
    arguments.add_dry_run(parser)
    senders.add_sender(parser)
    arguments.add_teacher(parser)
    arguments.add_json(parser)
    arguments.add_paths_or_ids(parser)


def run_learn(options: argparse.Namespace) -> int:
    """Teach the messages; print how many were taught as what."""
    from spamguard.engine.prepare import LabelledExample, extract_examples, group_by_class
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.proxy.history_search import example_from_row

    if options.sender:
        return senders.cast_word(options, options.label or "unsaid")
    arguments.check_paths_or_ids(options)
    if options.label is None and (options.unwanted or options.ids):
        unsaid = (*options.ids, "--unwanted")[0]
        raise UsageError(f"{unsaid}: say what it is with --as CLASS")
    common.warn_of_service(options)
    rows = common.find_rows(options, options.ids)
    messages = common.progress(common.read_messages(options.paths))
    refused: list[str] = []
    deleted: list[str] = []
    opener = common.open_for_dry_run if options.dry_run else common.open_filter
    with opener(options) as spam_filter:
        passed = [
            LabelledExample(options.label, example_from_row(spam_filter, row)) for row in rows
        ]
        service = LessonService(spam_filter)
        new_class = NewClass.CREATE if options.new else NewClass.UNLESS_SIMILAR
        open_class: Callable[[str], None] = cache(
            partial(spam_filter.check_class, new=options.new, unwanted=options.unwanted or None)
            if options.dry_run
            else partial(service.open_class, new_class=new_class, unwanted=options.unwanted)
        )
        if options.label is not None:
            open_class(options.label)
        labelled = _label_messages(messages, options, open_class, refused, deleted)
        learnt: Counter[str] = Counter()
        unchanged: Counter[str] = Counter()
        if options.dry_run:
            learnt.update(str(message.label) for message in labelled)
            learnt.update(str(example.label) for example in passed)
        else:
            # There is no need to pause for other writers: the next batch is scored before it
            # locks the ledger. With four commands teaching 3,000 messages each, a fifth writer
            # waited 0.1 ms at the median, 60-90 ms at the 99th percentile and 0.2 s at most;
            # pauses of 2 and 10 ms between the batches changed nothing.
            examples = chain(passed, extract_examples(spam_filter.key, labelled))
            for batch in chain.from_iterable(map(_split_contradictions, batches(examples))):
                for label, lessons in group_by_class(batch).items():
                    outcomes = service.submit(lessons, label, options.user, Origin.COMMAND)
                    learnt[label] += outcomes.count(LessonOutcome.LEARNT)
                    unchanged[label] += outcomes.count(LessonOutcome.UNCHANGED)
        if refused and not learnt:
            raise SourceError(_describe_refused(refused))
        # the command settles by itself: there may be no daemon to do it
        settled = not options.dry_run and spam_filter.settle_if_due()
    if refused:
        common.say(f"note: {_describe_refused(refused)}")
    values = {"taught": learnt, "known": unchanged, "refused": len(refused)}
    values |= {"deleted": len(deleted), "settled": settled, "dry_run": options.dry_run}
    verb = "would teach" if options.dry_run else "taught"
    counts = (f"{common.count_text(number)} as {label}" for label, number in sorted(learnt.items()))
    text = f"{verb} {', '.join(counts)}" if learnt else f"{verb} nothing"
    if not learnt and not deleted:
        text += ": no messages there"
    if repeated := unchanged.total():
        text += f" ({repeated:,} already known)"
    if deleted:
        text += f"; marked as deleted, and so not taught: {len(deleted):,}"
    common.print_answer(options, text, values)
    return 0


def _describe_refused(names: Sequence[str]) -> str:
    return (
        f"{len(names):,} of the messages are no mail, such as {names[0]}: no header field at all; "
        "--force teaches it all the same"
    )


def _label_messages(
    messages: Iterable[SourceMessage],
    options: argparse.Namespace,
    open_class: Callable[[str], None],
    refused: list[str],
    deleted: list[str],
) -> Iterator[SourceMessage]:
    """Yield what is mail, each with its class.

    open_class: called with each class before its first message. refused: gets the names of files
    without a header field; deleted: of messages that are marked as deleted.
    """
    from spamguard.mail.mime import has_header

    for message in messages:
        if message.deleted:
            deleted.append(message.name)
            continue
        if not options.force and not has_header(message.raw):
            refused.append(message.name)
            continue
        if options.label is None and message.label is None:
            raise UsageError(
                f"{message.name}: say what it is with --as CLASS; "
                "only a TREC index tells that by itself"
            )
        if options.label and message.label not in (None, options.label):
            raise UsageError(
                f"{message.name}: its index calls it {message.label}, --as says {options.label}: "
                "leave --as out, or name the files"
            )
        label = options.label or message.label or ""
        open_class(label)
        yield message._replace(label=label)


def _split_contradictions(batch: list[LabelledExample]) -> Iterator[list[LabelledExample]]:
    """Split a batch where it repeats a message with another class: the last one must win."""
    labels: dict[bytes, str | None] = {}
    part: list[LabelledExample] = []
    for labelled in batch:
        digest = labelled.example.digest
        if labels.setdefault(digest, labelled.label) != labelled.label:
            yield part
            labels, part = {digest: labelled.label}, []
        part.append(labelled)
    yield part


# ---- forget

FORGET_ABOUT = """\
Take back what was taught about messages. What was never taught is no error. The votes of others
stay: `explain` shows them, --user takes them back."""
FORGET_EXAMPLE = """  spamguard forget message.eml
  spamguard forget ~/Maildir/.Junk
  spamguard forget --id 0iq5r8jo4c1n2f3g"""


def add_forget(parser: argparse.ArgumentParser) -> None:
    senders.add_sender(parser)
    arguments.add_teacher(parser)
    arguments.add_json(parser)
    arguments.add_paths_or_ids(parser)


def run_forget(options: argparse.Namespace) -> int:
    """Retract the votes on the messages; print how many there were."""
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonService
    from spamguard.proxy.history_search import row_digest

    if options.sender:
        return senders.cast_word(options, "")
    arguments.check_paths_or_ids(options)
    rows = common.find_rows(options, options.ids)
    messages = common.progress(common.read_messages(options.paths))
    forgotten = unknown = by_others = 0
    with common.open_existing(options) as spam_filter:
        service, reader = LessonService(spam_filter), ExampleReader(spam_filter.key)
        passed = [row_digest(spam_filter, row) for row in rows]
        for batch in batches(chain(passed, (reader.digest(message.raw) for message in messages))):
            retracted = service.retract(batch, options.user, Origin.COMMAND)
            untaught = [digest for digest, done in zip(batch, retracted, strict=True) if not done]
            forgotten += sum(retracted)
            unknown += len(untaught)
            standings = spam_filter.ledger.users.find_standings(untaught, options.user)
            by_others += sum(standing.label is not None for standing in standings.values())
        settled = spam_filter.settle_if_due()
    text = f"forgot {common.count_text(forgotten)}"
    text += f" ({unknown:,} not known)" if unknown else ""
    if by_others:
        text += (
            f"; {by_others:,} of these stay taught by others: "
            "`explain` tells by whom, --user takes it back"
        )
    values = {"forgotten": forgotten, "unknown": unknown}
    common.print_answer(options, text, values | {"by_others": by_others, "settled": settled})
    return 0


# ---- teach-pipe


TEACH_PIPE_ABOUT, TEACH_PIPE_EXAMPLE = client.ABOUT, client.EXAMPLE
add_teach_pipe, run_teach_pipe = client.add_arguments, client.run


# ---- teach-folders

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
  spamguard teach-folders --config spamguard.yaml"""


def add_teach_folders(parser: argparse.ArgumentParser) -> None:
    arguments.add_dry_run(parser)
    arguments.add_json(parser)
    about = "a Maildir, or a pattern of several, such as '/home/*/Maildir'"
    parser.add_argument(
        "maildirs", nargs="*", type=arguments.parse_directory, metavar="MAILDIR", help=about
    )


def run_teach_folders(options: argparse.Namespace) -> int:
    """Teach every mailbox; print what each has taught."""
    from spamguard.folders.broker import make_mailboxes
    from spamguard.folders.roles import read_dovecot, role_lookup
    from spamguard.folders.scan import QUIET_SECONDS, FolderReader, find_filed

    watches, broker_socket = _chosen_watches(options)
    special_uses = read_dovecot().special_uses
    roles = [role_lookup(watch, special_uses) for watch in watches]
    with closing(make_mailboxes(watches, broker_socket, notify=False)) as mailboxes:
        owned = list(mailboxes.find_mailboxes())
        _require_maildirs(mailboxes, owned, watches, each=bool(options.maildirs))
        results = []
        opener = common.open_for_dry_run if options.dry_run else common.open_filter
        with opener(options) as spam_filter:
            # A file younger than this counts as unfinished and would be passed over in silence.
            time.sleep(QUIET_SECONDS)
            reader = FolderReader(mailboxes, spam_filter.key)
            work = _count_lessons if options.dry_run else _teach_mailbox
            for mailbox in owned:
                filed = find_filed(mailboxes, mailbox, roles[mailbox.watch])
                counts = work(spam_filter, reader, mailbox, filed)
                path = printable(mailbox.path)
                results.append({"user": mailbox.user, "maildir": path, **counts})
            if not options.dry_run:
                spam_filter.settle_if_due()
    common.print_answer(options, "\n".join(map(_mailbox_line, results)), results)
    return 0


def _chosen_watches(options: argparse.Namespace) -> tuple[list[Watch], Path | None]:
    """Where mailboxes are, and the broker's socket unless root opens them itself.

    With --config, its filter is used from here on.
    """
    from spamguard.config.options import Watch

    if options.maildirs:
        return [Watch(str(path.absolute())) for path in options.maildirs], None
    if options.config is None:
        raise UsageError("say which MAILDIR to teach from, or --config FILE")
    settings = common.load_config(options)
    if not settings.watch:
        raise UsageError(f"{options.config}: watches no mailboxes: name some under `watch`")
    return list(settings.watch), settings.watch_socket if os.geteuid() else None


def _require_maildirs(
    mailboxes: Mailboxes, owned: Sequence[Mailbox], watches: Sequence[Watch], *, each: bool
) -> None:
    """UsageError if there is no Maildir at all; or, with `each`, none for one of the watches."""
    from spamguard.folders.roles import is_maildir

    with_maildir = {
        mailbox.watch for mailbox in owned if is_maildir(mailboxes, mailbox, if_unreadable=False)
    }
    for number, watch in enumerate(watches):
        if number not in with_maildir and (each or not with_maildir):
            raise UsageError(
                f"{watch.maildir}: no Maildir there: check the path and its permissions"
            )


def _count_lessons(
    spam_filter: Filter, reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage]
) -> dict[str, Any]:
    """Count, for a dry run, the messages that each folder would teach, and the others."""
    from spamguard.folders.roles import display_folder

    new: Counter[tuple[str, str]] = Counter()
    digests: set[bytes] = set()
    unchanged = retracted = 0
    for lesson, stored in _read_lessons(reader, mailbox, filed, spam_filter.unwanted):
        vote = spam_filter.ledger.get_vote(stored.digest, mailbox.user)
        if stored.digest not in digests and vote and vote.is_retraction:
            retracted += 1
        elif stored.digest in digests or (
            vote and (vote.label == lesson.label or vote.extractor < EXTRACTOR)
        ):
            unchanged += 1
        else:
            new[lesson.label, display_folder(lesson.folder.directory)] += 1
        digests.add(stored.digest)
    folders = {
        folder: {"class": label, "messages": count}
        for (label, folder), count in sorted(new.items())
    }
    return {"folders": folders, "known": unchanged, "taken_back": retracted}


def _teach_mailbox(
    spam_filter: Filter, reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage]
) -> dict[str, Any]:
    """Teach a mailbox; return the numbers of messages taught, known before, and taken back."""
    from spamguard.engine.prepare import extract_examples, group_by_class
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.learning.undo import reextract_votes

    service, ledger = LessonService(spam_filter), spam_filter.ledger
    for label in sorted({message.label for message in filed}):
        service.open_class(label, NewClass.CREATE)
    learnt: Counter[str] = Counter()
    unchanged = n_retracted = 0
    messages = (
        SourceMessage(lesson.file.name, stored.raw, lesson.label)
        for lesson, stored in _read_lessons(reader, mailbox, filed, spam_filter.unwanted)
    )
    for batch in batches(extract_examples(spam_filter.key, messages)):
        # The class of an old vote weighs more than the folder.
        renewed = reextract_votes(spam_filter, [each.example for each in batch], mailbox.user)
        standings = ledger.users.find_standings(renewed, mailbox.user)
        learnt.update(str(standing.user_label) for standing in standings.values())
        votes = [ledger.get_vote(each.example.digest, mailbox.user) for each in batch]
        retracted = {vote.digest for vote in votes if vote and vote.is_retraction}
        n_retracted += len(retracted)
        done = {*renewed, *retracted}
        for label, examples in group_by_class(batch).items():
            lessons = [example for example in examples if example.digest not in done]
            # without a quota: the administrator asks for all of it
            outcomes = service.submit(lessons, label, mailbox.user, Origin.FILED)
            learnt[label] += outcomes.count(LessonOutcome.LEARNT)
            unchanged += outcomes.count(LessonOutcome.UNCHANGED)
    return {"taught": dict(sorted(learnt.items())), "known": unchanged, "taken_back": n_retracted}


def _read_lessons(
    reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage], unwanted: frozenset[str]
) -> Iterator[tuple[FiledMessage, SplitMessage]]:
    from spamguard.folders.scan import initial_lessons

    lessons = initial_lessons(reader, filed, unwanted)
    for lesson, stored in common.progress(lessons, len(filed), title=mailbox.user):
        if stored is not None:
            yield lesson, stored


def _mailbox_line(result: dict[str, Any]) -> str:
    if "folders" in result:
        verb, rows = "would teach", result["folders"].items()
        parts = [f"{row['messages']:,} in {name} as {row['class']}" for name, row in rows]
    else:
        verb, counts = "taught", result["taught"].items()
        parts = [f"{common.count_text(count)} as {label}" for label, count in counts if count]
    remarks = {
        "already known": result["known"],
        "taken back before, and left so": result["taken_back"],
    }
    remark = ", ".join(f"{number:,} {about}" for about, number in remarks.items() if number)
    text = f"{result['user']}: {verb} {', '.join(parts) or 'nothing'}"
    return printable(text + (f" ({remark})" if remark else ""))
