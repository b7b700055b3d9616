"""`learn`, `forget`, `teach-folders` and `teach-pipe`: teach messages, and take that back.

`learn` casts votes in batches; what is committed stays, whatever happens next. `forget` takes back
what was taught about messages, exactly, without knowing as what they were taught. `teach-folders`
teaches what people filed before anybody watched their folders: each mailbox is searched for
messages whose folder says what they are, and these are taught in the name of its owner, once. All
use `learning`, the one way in for a lesson, and settle at the end. With --sender, `learn` and
`forget` keep a word about all mail of somebody: evidence that counts only where a server named in
the configuration (`authserv_ids`) has authenticated the sender, and one user's word only with
`personal: true`. What is kept is a keyed hash of the address, or of the domain. `teach-pipe` leaves
a lesson for the daemon; `spamguard.__main__` runs it without this module, because somebody waits
for it.

Must never teach a part of a message, never touch what others have taught, never write to a mailbox,
and never take an address for authentic. `teach-folders` that is run again must teach only what is
new.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command, flag
from spamguard.errors import SourceError, UsageError
from spamguard.learning import client
from spamguard.log import printable
from spamguard.records import EXTRACTOR
from spamguard.sources import SourceMessage
from spamguard.storage import batches
from spamguard.users import SENDER_NATS, Origin

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.engine.prepare import SplitMessage
    from spamguard.folders.maildir import Mailbox
    from spamguard.folders.scan import FiledMessage, FolderReader

# ---- senders: a word about all mail of somebody


def _parse_sender(text: str) -> str:
    """The address; or the domain, if that is all there is."""
    from spamguard.ledger.senders import sender_domain
    from spamguard.mail.authentication import parse_author

    given = text.encode("utf-8", "replace")
    if address := parse_author([given]):
        return address
    host = parse_author([b"any@" + given]).removeprefix("any@")
    if not host:
        raise ArgumentTypeError(
            f"{text!r} is no address such as anna@example.org, and no domain such as example.org"
        )
    if host != (domain := sender_domain(host)):
        raise ArgumentTypeError(f"{text!r}: name an address, or all of {domain}")
    return host


SENDER = argument(
    "--sender",
    "not a message, but a sender: all mail from this address, or from everybody at this "
    "domain, where it is authenticated",
    "ADDRESS|DOMAIN",
    type=_parse_sender,
)


def _cast_word(options: Namespace, label: str) -> int:
    """Keep that mail of the sender is ham or spam; "": take that back."""
    from spamguard.daemon.status import ask_daemon
    from spamguard.learning.lessons import LessonOutcome, LessonService
    from spamguard.ledger.senders import make_sender_vote

    names = ("paths", "unwanted", "new")
    if any(getattr(options, name, False) for name in names):
        options.wrong_usage("argument --sender: only --as and --user go with it")
    if label not in {*SENDER_NATS, ""}:
        raise UsageError(f"{options.sender}: say --as ham if its mail is wanted, or --as spam")
    if label:  # a word that would not count is not kept
        if options.config is not None:
            settings = common.load_config(options)
            said = {"authserv_ids": settings.believed_servers, "personal": settings.personal}
        else:
            said = ask_daemon(common.state_directory(options)) or {}
        if not said.get("authserv_ids") or (options.user and not said.get("personal")):
            raise UsageError(
                f"{options.sender}: not kept, as nothing tells that this would count. The "
                "configuration (--config, or that of the running daemon) needs `authserv_ids: "
                "[mx.example.org]`, with the name that your mail server gives itself in "
                "Authentication-Results, and a listener behind it (position after-queue, LMTP, or "
                "`strips_authentication_results: true`); for one user also `personal: true`"
            )
    with common.open_filter(options, must_exist=not label) as spam_filter:
        digest, nats = spam_filter.senders.digest(options.sender), SENDER_NATS.get(label)
        vote = make_sender_vote(digest, options.user, nats, Origin.COMMAND, int(time.time()))
        outcome = LessonService(spam_filter).submit_vote(vote)
    changed = outcome is LessonOutcome.LEARNT
    if label:
        mail = "its mail" if "@" in options.sender else "mail of everybody there"
        text = f"{mail} is {'wanted' if label == 'ham' else 'unwanted'}, where authenticated"
        text += "" if changed else " (already known)"
    else:
        text = "forgot what was said of it" if changed else "nothing was said of it"
    print(f"{options.sender}, for {options.user or arguments.SITE}: {text}")
    return 0


# ---- learn


@command(
    "learn",
    """\
Teach messages. Teaching a message again changes nothing; teaching it as another class moves it.
Messages of a TREC index bring their class along; for all others say it with --as.

What is marked as deleted is not taught, nor what has no header field at all, and so is no mail.

Messages that passed the daemon need not be at hand: name their ids. --sender teaches no message,
but "always from this sender", or from everybody at a domain.""",
    argument(
        "--as", "what the messages are: spam, ham, or a class of your own", "CLASS", dest="label"
    ),
    flag("--unwanted", "messages of this class are unwanted, as spam is"),
    flag("--new", "the class is new, even if its name resembles another one's"),
    SENDER,
    arguments.TEACHER,
    arguments.PATHS_OR_IDS,
    example="""  spamguard learn --as spam ~/Maildir/.Junk
  spamguard learn --as newsletter ~/Maildir/.News
  spamguard learn trec07p/full/index
  spamguard learn --as ham 0iq5r8jo4c1n2f3g
  spamguard learn --as ham --sender news@example.org --user anna
  spamguard learn --as spam --sender offers.example""",
)
def run_learn(options: Namespace) -> int:
    from spamguard.engine.prepare import LabelledExample, extract_examples, group_by_class
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.proxy.history_search import example_from_row

    if options.sender:
        return _cast_word(options, options.label or "unsaid")
    arguments.require_paths(options)
    common.warn_of_service(options)
    rows, messages = common.find_messages(options)
    if options.label is None and (options.unwanted or rows):
        unsaid = rows[0].id if rows else "--unwanted"
        raise UsageError(f"{unsaid}: say what it is with --as CLASS")
    refused: list[str] = []
    deleted: list[str] = []
    learnt: Counter[str] = Counter()
    total = 0
    with common.open_filter(options) as spam_filter:
        service = LessonService(spam_filter)
        new_class = NewClass.CREATE if options.new else NewClass.UNLESS_SIMILAR
        open_class = cache(
            partial(service.open_class, new_class=new_class, unwanted=options.unwanted)
        )
        if options.label is not None:
            open_class(options.label)
        passed = [
            LabelledExample(options.label, example_from_row(spam_filter, row)) for row in rows
        ]
        labelled = _label_messages(common.progress(messages), options, open_class, refused, deleted)
        # There is no need to pause for other writers: the next batch is scored before it locks the
        # ledger. With four commands teaching 3,000 messages each, a fifth writer waited 0.1 ms at
        # the median, 60-90 ms at the 99th percentile and 0.2 s at most.
        for batch in batches(chain(passed, extract_examples(spam_filter.key, labelled))):
            total += len(batch)
            last = {each.example.digest: each for each in batch}  # of two classes the last one wins
            for label, lessons in group_by_class(last.values()).items():
                outcomes = service.submit(lessons, label, options.user, Origin.COMMAND)
                learnt[label] += outcomes.count(LessonOutcome.LEARNT)
        if refused:
            no_mail = f"{len(refused):,} of the messages are no mail, such as {refused[0]}"
            no_mail += ": no header field at all"
            if not total:
                raise SourceError(no_mail)
            common.say(f"note: {no_mail}")
        spam_filter.settle_if_due()  # there may be no daemon to do it
    text = f"taught {taught_text(learnt)}"
    if not total and not deleted:
        text += ": no messages there"
    if repeated := total - learnt.total():
        text += f" ({repeated:,} already known)"
    if deleted:
        text += f"; marked as deleted, and so not taught: {len(deleted):,}"
    print(text)
    return 0


def _label_messages(
    messages: Iterable[SourceMessage],
    options: Namespace,
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
        label = options.label or message.label
        if message.deleted:
            deleted.append(message.name)
        elif not has_header(message.raw):
            refused.append(message.name)
        elif not label:
            raise UsageError(
                f"{message.name}: say what it is with --as CLASS; "
                "only a TREC index tells that by itself"
            )
        elif message.label not in (None, label):
            raise UsageError(
                f"{message.name}: its index calls it {message.label}, --as says {options.label}: "
                "leave --as out, or name the files"
            )
        else:
            open_class(label)
            yield message._replace(label=label)


# ---- forget


@command(
    "forget",
    """\
Take back what was taught about messages. What was never taught is no error. The votes of others
stay: `explain` shows them, --user takes them back.""",
    SENDER,
    arguments.TEACHER,
    arguments.PATHS_OR_IDS,
    example="""  spamguard forget message.eml
  spamguard forget ~/Maildir/.Junk
  spamguard forget 0iq5r8jo4c1n2f3g""",
)
def run_forget(options: Namespace) -> int:
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonService
    from spamguard.proxy.history_search import row_digest

    if options.sender:
        return _cast_word(options, "")
    arguments.require_paths(options)
    rows, found = common.find_messages(options)
    messages = common.progress(found)
    forgotten = unknown = by_others = 0
    with common.open_filter(options, must_exist=True) as spam_filter:
        service, reader = LessonService(spam_filter), ExampleReader(spam_filter.key)
        passed = [row_digest(spam_filter, row) for row in rows]
        for batch in batches(chain(passed, (reader.digest(message.raw) for message in messages))):
            retracted = service.retract(batch, options.user, Origin.COMMAND)
            untaught = [digest for digest, done in zip(batch, retracted, strict=True) if not done]
            forgotten += sum(retracted)
            unknown += len(untaught)
            standings = spam_filter.ledger.users.find_standings(untaught, options.user)
            by_others += sum(standing.label is not None for standing in standings.values())
        spam_filter.settle_if_due()
    text = f"forgot {common.count_text(forgotten)}"
    text += f" ({unknown:,} not known)" if unknown else ""
    if by_others:
        text += (
            f"; {by_others:,} of these stay taught by others: "
            "`explain` tells by whom, --user takes it back"
        )
    print(text)
    return 0


# ---- teach-pipe


command("teach-pipe", client.ABOUT, client.add_arguments, example=client.EXAMPLE)(client.run)


# ---- teach-folders

Outcome = tuple[str, int, int]
"""What was taught, for people, and the messages known before, and taken back before."""


@command(
    "teach-folders",
    """\
Teach what people filed already. Each message in Junk is taught as spam, each in an archive or read
in INBOX as ham, in the name of its owner; trash, sent mail, drafts and folders of no known name
teach nothing, nor does what spamguard itself filed. Try it with --dry-run first.

It can be interrupted and run again: what was taught is not taught twice, and what was taken back
(undo, forget) is not taught again just because it still lies there: `spamguard learn` does that.
Messages taught before an upgrade that reads mail otherwise are read again and keep their class. The
daemon does not do this by itself: messages that lie in a mailbox when it first looks teach nothing,
only later moves do.""",
    arguments.DRY_RUN,
    argument(
        "maildirs",
        "a Maildir, or a pattern of several, such as '/home/*/Maildir'",
        "MAILDIR",
        nargs="*",
        type=arguments.parse_path,
    ),
    example="""  spamguard teach-folders --dry-run '/home/*/Maildir'
  spamguard teach-folders ~/Maildir
  spamguard teach-folders --config spamguard.yaml""",
)
def run_teach_folders(options: Namespace) -> int:
    from spamguard.config.options import Watch
    from spamguard.folders.broker import make_mailboxes
    from spamguard.folders.roles import is_maildir, read_dovecot, role_lookup
    from spamguard.folders.scan import QUIET_SECONDS, FolderReader, find_filed

    broker_socket = None
    if options.maildirs:
        watches = [Watch(str(path.absolute())) for path in options.maildirs]
    elif options.config is None:
        raise UsageError("say which MAILDIR to teach from, or --config FILE")
    else:
        settings = common.load_config(options)
        if not settings.watch:
            raise UsageError(f"{options.config}: watches no mailboxes: name some under `watch`")
        watches = list(settings.watch)
        broker_socket = settings.watch_socket if os.geteuid() else None  # root opens them itself
    special_uses = read_dovecot().special_uses
    roles = [role_lookup(watch, special_uses) for watch in watches]
    with closing(make_mailboxes(watches, broker_socket, notify=False)) as mailboxes:
        owned = list(mailboxes.find_mailboxes())
        there = {each.watch for each in owned if is_maildir(mailboxes, each, if_unreadable=False)}
        for number, watch in enumerate(watches):  # of a configuration one will do
            if number not in there and (options.maildirs or not there):
                raise UsageError(
                    f"{watch.maildir}: no Maildir there: check the path and its permissions"
                )
        with common.open_filter(options, scratch=options.dry_run) as spam_filter:
            # A file younger than this counts as unfinished and would be passed over in silence.
            time.sleep(QUIET_SECONDS)
            reader = FolderReader(mailboxes, spam_filter.key)
            work = _count_lessons if options.dry_run else _teach_mailbox
            for mailbox in owned:
                filed = find_filed(mailboxes, mailbox, roles[mailbox.watch])
                outcome = work(spam_filter, reader, mailbox, filed)
                print_lessons(options, mailbox.user, outcome)
            if not options.dry_run:
                spam_filter.settle_if_due()
    return 0


def taught_text(learnt: Mapping[str, int]) -> str:
    counts = (f"{common.count_text(n)} as {label}" for label, n in sorted(learnt.items()) if n)
    return ", ".join(counts) or "nothing"


def print_lessons(options: Namespace, user: str, outcome: Outcome) -> None:
    taught, known, retracted = outcome
    remarks = {"already known": known, "taken back before, and left so": retracted}
    remark = ", ".join(f"{number:,} {what}" for what, number in remarks.items() if number)
    text = f"{user}: {'would teach' if options.dry_run else 'taught'} {taught}"
    print(printable(text + (f" ({remark})" if remark else "")))


def _count_lessons(
    spam_filter: Filter, reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage]
) -> Outcome:
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
    parts = [f"{count:,} in {folder} as {label}" for (label, folder), count in sorted(new.items())]
    return ", ".join(parts) or "nothing", unchanged, retracted


def _teach_mailbox(
    spam_filter: Filter, reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage]
) -> Outcome:
    messages = (
        SourceMessage(lesson.file.name, stored.raw, lesson.label)
        for lesson, stored in _read_lessons(reader, mailbox, filed, spam_filter.unwanted)
    )
    labels = {each.label for each in filed}
    return teach_filed(spam_filter, mailbox.user, labels, messages)


def teach_filed(
    spam_filter: Filter, user: str, labels: Iterable[str], messages: Iterable[SourceMessage]
) -> Outcome:
    """Teach what a user has filed."""
    from spamguard.engine.prepare import extract_examples, group_by_class
    from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
    from spamguard.learning.undo import reextract_votes

    service, ledger = LessonService(spam_filter), spam_filter.ledger
    for label in sorted(labels):
        service.open_class(label, NewClass.CREATE)
    learnt: Counter[str] = Counter()
    unchanged = n_retracted = 0
    for batch in batches(extract_examples(spam_filter.key, messages)):
        # The class of an old vote weighs more than the folder.
        renewed = reextract_votes(spam_filter, [each.example for each in batch], user)
        standings = ledger.users.find_standings(renewed, user)
        learnt.update(str(standing.user_label) for standing in standings.values())
        votes = [ledger.get_vote(each.example.digest, user) for each in batch]
        retracted = {vote.digest for vote in votes if vote and vote.is_retraction}
        n_retracted += len(retracted)
        done = {*renewed, *retracted}
        for label, examples in group_by_class(batch).items():
            lessons = [example for example in examples if example.digest not in done]
            # without a quota: the administrator asks for all of it
            outcomes = service.submit(lessons, label, user, Origin.FILED)
            learnt[label] += outcomes.count(LessonOutcome.LEARNT)
            unchanged += outcomes.count(LessonOutcome.UNCHANGED)
    return taught_text(learnt), unchanged, n_retracted


def _read_lessons(
    reader: FolderReader, mailbox: Mailbox, filed: list[FiledMessage], unwanted: frozenset[str]
) -> Iterator[tuple[FiledMessage, SplitMessage]]:
    from spamguard.folders.scan import initial_lessons

    lessons = initial_lessons(reader, filed, unwanted)
    for lesson, stored in common.progress(lessons, len(filed), title=mailbox.user):
        if stored is not None:
            yield lesson, stored
