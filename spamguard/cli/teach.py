"""`learn`: teach messages. Commits some at a time; what is committed stays, whatever happens next.
Never teaches part of a message.

`forget`: take teaching back, exactly, as if it had never been. Never needs to know what the
messages were taught as.

`undo`: take back what one user has taught. Never touches what others have said about the same
messages.

`teach-pipe` among the other commands; `spamguard.__main__` runs it without loading them, as it is
to be quick.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from spamguard.cli import common, dates, history
from spamguard.errors import UsageError
from spamguard.learning import client
from spamguard.log import printable
from spamguard.sources import SourceMessage
from spamguard.storage import BATCH_SIZE, batches

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.engine.parallel_extract import LabelledExample
    from spamguard.learning.lessons import LessonService
    from spamguard.learning.undo import UndoneVote, VoteSelection


LEARN_ABOUT = """Teach messages. Teaching a message again changes nothing; teaching it as another class moves it.
Messages of a TREC index bring their class along; for all others say it with --as.

Messages that passed the daemon need not be at hand: name them with --id, as X-Spamguard or the log does."""
LEARN_EXAMPLE = """  spamguard learn --as spam ~/Maildir/.Junk
  spamguard learn --as newsletter ~/Maildir/.News
  spamguard learn trec07p/full/index
  spamguard learn --as ham --id 0iq5r8jo4c1n2f3g"""


def add_learn(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "learn", run_learn, LEARN_ABOUT, LEARN_EXAMPLE)
    parser.add_argument(
        "--as",
        dest="label",
        metavar="CLASS",
        help="what the messages are: spam, ham, or a class of your own",
    )
    parser.add_argument(
        "--unwanted", action="store_true", help="messages of this class are unwanted, as spam is"
    )
    parser.add_argument(
        "--new",
        action="store_true",
        help="the class is new, even if its name resembles another one's",
    )
    add_teacher_option(parser)
    common.add_json(parser)
    history.add_paths_or_ids(parser)


def add_teacher_option(parser: argparse.ArgumentParser) -> None:
    """The option --user."""
    about = "whose word it is; a majority of users counts (default: the site's)"
    parser.add_argument(
        "--user", type=common.teacher_argument, default="", metavar="NAME", help=about
    )


def run_learn(options: argparse.Namespace) -> int:
    """Teach; say how many."""
    from spamguard.engine import parallel_extract
    from spamguard.learning.lessons import LessonService, NewClass
    from spamguard.proxy.history import example_from_row

    history.check_paths_or_ids(options)
    if options.unwanted and options.label is None:
        raise UsageError("--unwanted says something about a class: name it with --as")
    if options.ids and options.label is None:
        raise UsageError(f"{options.ids[0]}: say what it is with --as CLASS")
    rows = history.find_rows(options, options.ids)
    found = common.with_progress(
        common.read_messages(options.paths), common.expected_count(options.paths)
    )
    with common.open_filter(options) as spam_filter:
        lessons = [
            parallel_extract.LabelledExample(options.label, example_from_row(spam_filter, row))
            for row in rows
        ]
        service = LessonService(spam_filter)
        new_class = NewClass.CREATE if options.new else NewClass.UNLESS_SIMILAR
        check = cache(partial(service.open_class, new_class=new_class, unwanted=options.unwanted))
        if options.label is not None:
            check(options.label)
        ready = parallel_extract.extract_examples(
            spam_filter.key, _label_messages(found, options.label, check)
        )
        taught, known, outvoted = _learn_batches(
            spam_filter, service, chain(lessons, ready), options.user
        )
        # the command settles itself: there may be no daemon to ask
        settled = common.settle_if_due(spam_filter)
    values = {"taught": taught, "known": known, "outvoted": outvoted, "settled": settled}
    common.print_answer(options, _learn_summary(taught, known, outvoted), values)
    return 0


def _label_messages(
    messages: Iterable[SourceMessage], said: str | None, check: Callable[[str], None]
) -> Iterator[SourceMessage]:
    """The messages, each with its class. said: by the command line. check: is told each class
    before its first message is taught.
    """
    for message in messages:
        if said is None and message.label is None:
            raise UsageError(
                f"{message.name}: say what it is with --as CLASS; only a TREC index tells that by itself"
            )
        if said and message.label not in (None, said):
            raise UsageError(
                f"{message.name}: its index calls it {message.label}, --as says {said}: leave --as out, or name the files"
            )
        label = said or message.label or ""
        check(label)
        yield replace(message, label=label)


def _learn_batches(
    spam_filter: Filter, service: LessonService, lessons: Iterable[LabelledExample], user: str
) -> tuple[dict[str, int], dict[str, int], int]:
    """How many messages of each class were taught, how many were known as that already, and of how
    many others' votes do not let it count.

    There is no need to pause for other writers: the next batch is scored before it locks the
    ledger. With four commands teaching 3,000 messages each, a fifth writer waited 0.1 ms at the
    median, 60-90 ms at the 99th percentile and 0.2 s at most; pauses of 2 and 10 ms between the
    batches changed nothing.
    """
    from spamguard.engine import parallel_extract
    from spamguard.learning.lessons import LessonOutcome

    taught: Counter[str] = Counter()
    known: Counter[str] = Counter()
    outvoted = 0
    for batch in chain.from_iterable(map(_split_contradictions, batches(lessons))):
        for label, some in parallel_extract.group_by_class(batch).items():
            outcomes = service.submit(some, label, user, "cli")
            taught[label] += outcomes.count(LessonOutcome.LEARNT)
            known[label] += outcomes.count(LessonOutcome.UNCHANGED)
            standing = spam_filter.ledger.users.find_standings([one.digest for one in some], user)
            outvoted += sum(one.label != label for one in standing.values())
    return dict(taught), dict(known), outvoted


def _split_contradictions(batch: list[LabelledExample]) -> Iterator[list[LabelledExample]]:
    """The batch, parted where it says something else about a message than before: what is said last
    must be taught last.
    """
    said: dict[bytes, str | None] = {}
    part: list[LabelledExample] = []
    for one in batch:
        if said.setdefault(one.example.digest, one.label) != one.label:
            yield part
            said, part = {one.example.digest: one.label}, []
        part.append(one)
    yield part


def _learn_summary(taught: dict[str, int], known: dict[str, int], outvoted: int) -> str:
    if not taught:
        return "taught nothing: no messages there"
    told = ", ".join(
        f"{common.count_text(number)} as {label}" for label, number in sorted(taught.items())
    )
    repeated = sum(known.values())
    told += f" ({repeated:,} already known)" if repeated else ""
    return f"taught {told}" + (
        f"; {outvoted:,} of these others call something else, so that it does not count: see `explain`"
        if outvoted
        else ""
    )


FORGET_ABOUT = """Take back what was taught about messages. What was never taught is no error. What others have said stays: `explain` tells who has
said what, --user takes it back."""
FORGET_EXAMPLE = """  spamguard forget message.eml
  spamguard forget ~/Maildir/.Junk
  spamguard forget --id 0iq5r8jo4c1n2f3g"""


def add_forget(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "forget", run_forget, FORGET_ABOUT, FORGET_EXAMPLE)
    add_teacher_option(parser)
    common.add_json(parser)
    history.add_paths_or_ids(parser)


def run_forget(options: argparse.Namespace) -> int:
    """Forget; say how many."""
    from spamguard.engine.prepare import ExampleReader
    from spamguard.learning.lessons import LessonService
    from spamguard.proxy.history import row_digest

    history.check_paths_or_ids(options)
    rows = history.find_rows(options, options.ids)
    forgotten = unknown = others = 0
    found = common.with_progress(
        common.read_messages(options.paths), common.expected_count(options.paths)
    )
    with common.open_existing(options) as spam_filter:
        service, preparer = LessonService(spam_filter), ExampleReader(spam_filter.key)
        known = [row_digest(spam_filter, row) for row in rows]
        for batch in batches(chain(known, (preparer.digest(message.raw) for message in found))):
            changed = service.retract(batch, options.user, "cli")
            forgotten += sum(changed)
            unknown += len(changed) - sum(changed)
            left = [digest for digest, done in zip(batch, changed, strict=True) if not done]
            others += sum(
                one.label is not None
                for one in spam_filter.ledger.users.find_standings(left, options.user).values()
            )
        settled = common.settle_if_due(spam_filter)
    text = f"forgot {common.count_text(forgotten)}" + (
        f" ({unknown:,} not known)" if unknown else ""
    )
    if others:
        text += f"; {others:,} of these stay taught by others: `explain` tells by whom, --user takes it back"
    common.print_answer(
        options,
        text,
        {"forgotten": forgotten, "unknown": unknown, "by_others": others, "settled": settled},
    )
    return 0


_MAX_ORIGINS = 8  # of a user, those that most was said at: told where another one was meant

UNDO_ABOUT = """Take back what a user has taught. It is exactly as if it had never been said: what that user had said about a message before is
in force again. Doing it twice changes nothing. Likewise a word list that was imported.

Votes that were replaced more than 30 days ago are not kept; then nothing comes back in their place. Of several users at once the
experts are settled once, which is most of the time it takes."""
UNDO_EXAMPLE = """  spamguard undo --user anna --since tuesday --dry-run
  spamguard undo --user anna --since '2026-11-17 08:00'
  spamguard undo --user anna --origin 'folder Junk'
  spamguard undo --user anna --user ben --origin 'folders, before they were watched'
  spamguard undo --import bogofilter"""


def add_undo(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "undo", run_undo, UNDO_ABOUT, UNDO_EXAMPLE)
    what = parser.add_mutually_exclusive_group(required=True)
    about = f"whose word to take back, as `status` tells it; the site's is {common.SITE!r}; may be repeated"
    what.add_argument("--user", action="append", dest="users", metavar="NAME", help=about)
    what.add_argument(
        "--import",
        dest="word_list",
        metavar="NAME",
        help="the word list to take back; `status` names them",
    )
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="only from then on: 2d, tuesday, 2026-11-17, '2026-11-17 08:00' (local time)",
    )
    parser.add_argument(
        "--origin",
        default="",
        metavar="TEXT",
        help="only what was said there: cli, folder, 'folder Junk'",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be taken back")
    common.add_json(parser, "answer in JSON, on a line for each user")


def run_undo(options: argparse.Namespace) -> int:
    """Take back, settle; say how much."""
    from spamguard.learning import undo

    if options.word_list is not None:
        return _undo_import(options)
    if not all(options.users):
        raise UsageError(
            f"--user is empty, as of a variable that is not set: say whose word to take back; the site's is {common.SITE!r}"
        )
    since = _since_seconds(options)
    everybody = [
        undo.VoteSelection(common.teacher_argument(user), since, options.origin)
        for user in options.users
    ]
    with common.open_existing(options) as spam_filter:
        messages = [_find_messages(spam_filter, chosen) for chosen in everybody]
        with common.progress(sum(map(len, messages)), " messages") as advance:
            done = [
                list(
                    _with_advance(
                        advance, undo.undo_votes(spam_filter, *one, dry_run=options.dry_run)
                    )
                )
                for one in zip(messages, everybody, strict=True)
            ]
        # also when nothing is left to take back: whoever did it may have been interrupted before
        # settling
        settled = not options.dry_run and (
            any(done) or (any(messages) and spam_filter.status().unsettled > 0)
        )
        if settled:
            spam_filter.settle()
        for found, chosen in zip(messages, everybody, strict=True):
            _warn_about_origin(spam_filter, found, chosen)
    _warn_about_age(since, done)
    for name, chosen, taken in zip(options.users, everybody, done, strict=True):
        whose = f"{printable(name)}: " if len(done) > 1 else ""
        common.print_answer(
            options,
            whose + _undo_summary(taken, dry=options.dry_run),
            _undo_values(taken, chosen, settled, dry=options.dry_run),
        )
    return 0


def _find_messages(spam_filter: Filter, chosen: VoteSelection) -> list[bytes]:
    """UsageError: this user has never said anything."""
    from spamguard.learning import undo

    found = undo.affected_messages(spam_filter, chosen)
    if not found and not spam_filter.ledger.users.voted_digests(chosen.user, 0):
        raise UsageError(
            f"{chosen.user or common.SITE!r} has taught nothing here: `spamguard status` lists who has"
        )
    return found


def _undo_import(options: argparse.Namespace) -> int:
    from spamguard.learning import importers
    from spamguard.learning.undo import UNDO_ORIGIN

    if options.since is not None or options.origin:
        raise UsageError("a word list is taken back whole: leave --since and --origin out")
    with common.open_existing(options) as spam_filter:
        taken = importers.remove_word_list(
            spam_filter, options.word_list, UNDO_ORIGIN, dry_run=options.dry_run
        )
    verb = "would take" if options.dry_run else "took"
    text = f"{verb} back {common.count_text(taken.about.used, 'word')} from {printable(taken.about.source)}"
    values = {
        "name": taken.name,
        "source": taken.about.source,
        "words": taken.about.used,
        "dry_run": options.dry_run,
    }
    common.print_answer(options, text, values)
    return 0


def _since_seconds(options: argparse.Namespace) -> int:
    return dates.parse_since(options.since, datetime.now()) if options.since is not None else 0


def _with_advance(
    advance: Callable[[int], object], batches: Iterable[list[UndoneVote]]
) -> Iterator[UndoneVote]:
    """One by one. advance: is told how many messages were looked at."""
    for batch in batches:
        advance(BATCH_SIZE)
        yield from batch


def _warn_about_origin(
    spam_filter: Filter, digests: Sequence[bytes], chosen: VoteSelection
) -> None:
    """A slip in the place must not look as if all were taken back."""
    users = spam_filter.ledger.users
    if not chosen.origin or users.last_vote(chosen.user, chosen.origin):
        return
    anywhere = chosen._replace(origin="")
    if said := Counter(
        vote.origin
        for one in digests
        for vote in users.all_votes(chosen.user, one)
        if anywhere.matches(vote)
    ):
        places = ", ".join(repr(place) for place, _ in said.most_common(_MAX_ORIGINS))
        common.say(f"note: this user has said nothing at {chosen.origin!r}, but at: {places}")


def _warn_about_age(since: int, done: Sequence[list[UndoneVote]]) -> None:
    """What is older than votes are kept for cannot come back, which nobody should have to guess."""
    from spamguard.engine.store import UNDO_SECONDS

    if any(done) and 0 < since < time.time() - UNDO_SECONDS:
        common.say(
            f"note: votes that were replaced more than {UNDO_SECONDS // 86_400} days ago are not known any more and did not come back"
        )


def _undo_summary(done: list[UndoneVote], *, dry: bool) -> str:
    if not done:
        return "nothing to take back"
    back = sum(1 for one in done if one.new_label is not None)
    told = f"{'would take' if dry else 'took'} back {common.count_text(len(done), 'vote')}"
    return told + (
        f"; on {back:,} of these messages an earlier vote is in force again" if back else ""
    )


def _undo_values(
    done: list[UndoneVote], chosen: VoteSelection, settled: bool, *, dry: bool
) -> dict[str, object]:
    return {
        "user": chosen.user,
        "since": chosen.since,
        "origin": chosen.origin,
        "taken_back": len(done),
        "by_class": dict(
            sorted(Counter(str(one.old_label) for one in done if one.old_label is not None).items())
        ),
        "earlier_in_force": len([one for one in done if one.new_label is not None]),
        "settled": settled,
        "dry_run": dry,
    }


def add_teach_pipe(commands: common.Commands) -> None:
    """The command's arguments."""
    client.add_arguments(
        common.add_command(commands, "teach-pipe", run_teach_pipe, client.ABOUT, client.EXAMPLE)
    )


def run_teach_pipe(options: argparse.Namespace) -> int:
    """Hand a lesson over."""
    return client.run(options)
