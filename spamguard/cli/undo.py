"""`undo`: take back what one user has taught. Never touches what others have said about the same messages."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from spamguard.batches import BATCH
from spamguard.cli import rim, usage, when
from spamguard.errors import UsageError

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.undo import Chosen, Done

_PLACES = 8  # of a user, those that most was said at: told where another one was meant

ABOUT = """Take back what a user has taught. It is exactly as if it had never been said: what that user had said about a message before is
in force again. Doing it twice changes nothing. Likewise a word list that was imported.

Votes that were replaced more than 30 days ago are not kept; then nothing comes back in their place. Of several users at once the
experts are settled once, which is most of the time it takes."""
EXAMPLE = """  spamguard undo --user anna --since tuesday --dry-run
  spamguard undo --user anna --since '2026-11-17 08:00'
  spamguard undo --user anna --origin 'folder Junk'
  spamguard undo --user anna --user ben --origin 'folders, before they were watched'
  spamguard undo --import bogofilter"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "undo", run, ABOUT, EXAMPLE)
    what = parser.add_mutually_exclusive_group(required=True)
    about = f"whose word to take back, as `status` tells it; the site's is {usage.SITE!r}; may be repeated"
    what.add_argument("--user", action="append", dest="users", metavar="NAME", help=about)
    what.add_argument("--import", dest="word_list", metavar="NAME", help="the word list to take back; `status` names them")
    parser.add_argument("--since", metavar="WHEN", help="only from then on: 2d, tuesday, 2026-11-17, '2026-11-17 08:00' (local time)")
    parser.add_argument("--origin", default="", metavar="TEXT", help="only what was said there: cli, folder, 'folder Junk'")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be taken back")
    usage.add_json(parser, "answer in JSON, on a line for each user")


def run(options: argparse.Namespace) -> int:
    """Take back, settle; say how much."""
    from spamguard import undo

    if options.word_list is not None:
        return _take_list_back(options)
    if not all(options.users):
        raise UsageError(f"--user is empty, as of a variable that is not set: say whose word to take back; the site's is {usage.SITE!r}")
    since = _since(options)
    everybody = [undo.Chosen(usage.teacher(user), since, options.origin) for user in options.users]
    with rim.open_existing(options) as spam_filter:
        messages = [_messages(spam_filter, chosen) for chosen in everybody]
        with rim.progress(sum(map(len, messages)), " messages") as advance:
            done = [
                list(_told(advance, undo.undo(spam_filter, *one, dry=options.dry_run))) for one in zip(messages, everybody, strict=True)
            ]
        # also when nothing is left to take back: whoever did it may have been interrupted before settling
        settled = not options.dry_run and (any(done) or (any(messages) and spam_filter.status().unsettled > 0))
        if settled:
            spam_filter.settle()
        for found, chosen in zip(messages, everybody, strict=True):
            _warn_of_origin(spam_filter, found, chosen)
    _warn_of_age(since, done)
    for name, chosen, taken in zip(options.users, everybody, done, strict=True):
        whose = f"{rim.printable(name)}: " if len(done) > 1 else ""
        rim.answer(options, whose + _summary(taken, dry=options.dry_run), _values(taken, chosen, settled, dry=options.dry_run))
    return 0


def _messages(spam_filter: Filter, chosen: Chosen) -> list[bytes]:
    """UsageError: this user has never said anything."""
    from spamguard import undo

    found = undo.messages(spam_filter, chosen)
    if not found and not spam_filter.ledger.users.messages(chosen.user, 0):
        raise UsageError(f"{chosen.user or usage.SITE!r} has taught nothing here: `spamguard status` lists who has")
    return found


def _take_list_back(options: argparse.Namespace) -> int:
    from spamguard.moving_in import taking
    from spamguard.undo import ORIGIN

    if options.since is not None or options.origin:
        raise UsageError("a word list is taken back whole: leave --since and --origin out")
    with rim.open_existing(options) as spam_filter:
        taken = taking.take_back(spam_filter, options.word_list, ORIGIN, dry=options.dry_run)
    verb = "would take" if options.dry_run else "took"
    text = f"{verb} back {rim.counted(taken.about.used, 'word')} from {rim.printable(taken.about.source)}"
    values = {"name": taken.name, "source": taken.about.source, "words": taken.about.used, "dry_run": options.dry_run}
    rim.answer(options, text, values)
    return 0


def _since(options: argparse.Namespace) -> int:
    return when.since(options.since, datetime.now()) if options.since is not None else 0


def _told(advance: Callable[[int], object], batches: Iterable[list[Done]]) -> Iterator[Done]:
    """One by one. advance: is told how many messages were looked at."""
    for batch in batches:
        advance(BATCH)
        yield from batch


def _warn_of_origin(spam_filter: Filter, digests: Sequence[bytes], chosen: Chosen) -> None:
    """A slip in the place must not look as if all were taken back."""
    users = spam_filter.ledger.users
    if not chosen.origin or users.last_heard(chosen.user, chosen.origin):
        return
    anywhere = chosen._replace(origin="")
    if said := Counter(vote.origin for one in digests for vote in users.votes(chosen.user, one) if anywhere.has(vote)):
        places = ", ".join(repr(place) for place, _ in said.most_common(_PLACES))
        rim.say(f"note: this user has said nothing at {chosen.origin!r}, but at: {places}")


def _warn_of_age(since: int, done: Sequence[list[Done]]) -> None:
    """What is older than votes are kept for cannot come back, which nobody should have to guess."""
    from spamguard.model.store import KEPT_SECONDS

    if any(done) and 0 < since < time.time() - KEPT_SECONDS:
        rim.say(f"note: votes that were replaced more than {KEPT_SECONDS // 86_400} days ago are not known any more and did not come back")


def _summary(done: list[Done], *, dry: bool) -> str:
    if not done:
        return "nothing to take back"
    back = sum(1 for one in done if one.back is not None)
    told = f"{'would take' if dry else 'took'} back {rim.counted(len(done), 'vote')}"
    return told + (f"; on {back:,} of these messages an earlier vote is in force again" if back else "")


def _values(done: list[Done], chosen: Chosen, settled: bool, *, dry: bool) -> dict[str, object]:
    return {
        "user": chosen.user,
        "since": chosen.since,
        "origin": chosen.origin,
        "taken_back": len(done),
        "by_class": dict(sorted(Counter(str(one.taken) for one in done if one.taken is not None).items())),
        "earlier_in_force": len([one for one in done if one.back is not None]),
        "settled": settled,
        "dry_run": dry,
    }
