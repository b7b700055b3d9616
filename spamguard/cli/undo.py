"""`undo`: take back what one user has taught, or an imported word list.

It finds the messages that the user voted on, takes the votes back in batches through `learning`,
and settles once at the end. `parse_since` reads the times that people type.

Must never touch what others have taught, and never take back a part of a word list.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.log import printable
from spamguard.storage import BATCH_SIZE

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.learning.undo import UndoneVote, VoteSelection

UNDO_ABOUT = """\
Take back what a user has taught. It is exactly as if it had never been taught: the user's earlier
vote on a message is in force again. Doing it twice changes nothing. Likewise a word list that was
imported.

Votes that were replaced more than 30 days ago are not kept; then nothing comes back in their place.
Of several users at once the experts are settled once, which is most of the time it takes."""
UNDO_EXAMPLE = """  spamguard undo --user anna --since tuesday --dry-run
  spamguard undo --user anna --since '2026-11-17 08:00'
  spamguard undo --user anna --origin 'folder Junk'
  spamguard undo --user anna --user ben --origin 'folders, before they were watched'
  spamguard undo --import bogofilter"""

_MAX_ORIGINS = 8  # the most frequent origins of a user's votes that a note names


def add_undo(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "undo", run_undo, UNDO_ABOUT, UNDO_EXAMPLE)
    what = parser.add_mutually_exclusive_group(required=True)
    about = (
        "whose word to take back, as `status` tells it; "
        f"the site's is {arguments.SITE!r}; may be repeated"
    )
    what.add_argument("--user", action="append", dest="users", metavar="NAME", help=about)
    about = "the word list to take back; `status` names them"
    what.add_argument("--import", dest="word_list", metavar="NAME", help=about)
    about = "only from then on: 2d, tuesday, 2026-11-17, '2026-11-17 08:00' (local time)"
    parser.add_argument("--since", metavar="WHEN", help=about)
    about = "only what was taught there: cli, folder, 'folder Junk'"
    parser.add_argument("--origin", default="", metavar="TEXT", help=about)
    about = "only say what would be taken back"
    parser.add_argument("--dry-run", action="store_true", help=about)
    arguments.add_json(parser, "answer in JSON, on a line for each user")


def run_undo(options: argparse.Namespace) -> int:
    """Take back, settle, print how much was taken back."""
    from spamguard.learning.undo import VoteSelection

    if options.word_list is not None:
        return _undo_import(options)
    if not all(options.users):
        raise UsageError(
            "--user is empty, as of a variable that is not set: say whose word to take back; "
            f"the site's is {arguments.SITE!r}"
        )
    since = 0 if options.since is None else parse_since(options.since, datetime.now())
    selections = [
        VoteSelection(arguments.parse_teacher(user), since, options.origin)
        for user in options.users
    ]
    with common.open_existing(options) as spam_filter:
        digests = [_find_messages(spam_filter, selection) for selection in selections]
        undone = _undo_votes(spam_filter, digests, selections, dry_run=options.dry_run)
        # Settle also if there were votes but none is left: whoever took them back may have been
        # interrupted before settling.
        settled = not options.dry_run and (
            any(undone) or (any(digests) and spam_filter.status().unsettled > 0)
        )
        if settled:
            spam_filter.settle()
        for user_digests, selection in zip(digests, selections, strict=True):
            _warn_about_origin(spam_filter, user_digests, selection)
    if any(undone):
        _warn_about_age(since)
    for name, selection, votes in zip(options.users, selections, undone, strict=True):
        prefix = f"{printable(name)}: " if len(undone) > 1 else ""
        common.print_answer(
            options,
            prefix + _undo_summary(votes, dry_run=options.dry_run),
            _undo_values(votes, selection, settled=settled, dry_run=options.dry_run),
        )
    return 0


def _find_messages(spam_filter: Filter, selection: VoteSelection) -> list[bytes]:
    """The digests of the messages that this user voted on; UsageError if the user never voted."""
    from spamguard.learning import undo

    digests = undo.affected_messages(spam_filter, selection)
    if not digests and not spam_filter.ledger.users.voted_digests(selection.user, 0):
        raise UsageError(
            f"{selection.user or arguments.SITE!r} has taught nothing here: "
            "`spamguard status` lists who has"
        )
    return digests


def _undo_votes(
    spam_filter: Filter,
    digests: Sequence[list[bytes]],
    selections: Sequence[VoteSelection],
    *,
    dry_run: bool,
) -> list[list[UndoneVote]]:
    """Undo each selection on its messages."""
    from spamguard.learning import undo

    undone: list[list[UndoneVote]] = []
    with common.progress(sum(map(len, digests)), " messages") as advance:
        for user_digests, selection in zip(digests, selections, strict=True):
            undone.append([])
            for batch in undo.undo_votes(spam_filter, user_digests, selection, dry_run=dry_run):
                advance(BATCH_SIZE)
                undone[-1] += batch
    return undone


def _undo_import(options: argparse.Namespace) -> int:
    from spamguard.learning import importers
    from spamguard.learning.undo import UNDO_ORIGIN

    if options.since is not None or options.origin:
        raise UsageError("a word list is taken back whole: leave --since and --origin out")
    with common.open_existing(options) as spam_filter:
        removed = importers.remove_word_list(
            spam_filter, options.word_list, UNDO_ORIGIN, dry_run=options.dry_run
        )
    verb, about = "would take" if options.dry_run else "took", removed.about
    words, source = common.count_text(about.used, "word"), printable(about.source)
    values = {"name": removed.name, "source": about.source, "words": about.used}
    common.print_answer(
        options, f"{verb} back {words} from {source}", values | {"dry_run": options.dry_run}
    )
    return 0


def _warn_about_origin(
    spam_filter: Filter, digests: Sequence[bytes], selection: VoteSelection
) -> None:
    """Name the user's origins if the given one fits none: it may be a slip."""
    users = spam_filter.ledger.users
    if not selection.origin or users.last_vote(selection.user, selection.origin):
        return
    any_origin = selection._replace(origin="")
    origins = Counter(
        vote.origin
        for digest in digests
        for vote in users.all_votes(selection.user, digest)
        if any_origin.matches(vote)
    )
    if origins:
        names = ", ".join(repr(origin) for origin, _ in origins.most_common(_MAX_ORIGINS))
        common.say(f"note: this user has said nothing at {selection.origin!r}, but at: {names}")


def _warn_about_age(since: int) -> None:
    """Say that votes older than the ledger keeps them cannot come back."""
    from spamguard.engine.store import UNDO_SECONDS

    if 0 < since < time.time() - UNDO_SECONDS:
        common.say(
            f"note: votes that were replaced more than {UNDO_SECONDS // 86_400} days ago "
            "are not known any more and did not come back"
        )


def _undo_summary(votes: list[UndoneVote], *, dry_run: bool) -> str:
    if not votes:
        return "nothing to take back"
    text = f"{'would take' if dry_run else 'took'} back {common.count_text(len(votes), 'vote')}"
    if restored := sum(vote.new_label is not None for vote in votes):
        text += f"; on {restored:,} of these messages an earlier vote is in force again"
    return text


def _undo_values(
    votes: list[UndoneVote], selection: VoteSelection, *, settled: bool, dry_run: bool
) -> dict[str, object]:
    labels = Counter(vote.old_label for vote in votes if vote.old_label is not None)
    return {
        "user": selection.user,
        "since": selection.since,
        "origin": selection.origin,
        "taken_back": len(votes),
        "by_class": dict(sorted(labels.items())),
        "earlier_in_force": sum(vote.new_label is not None for vote in votes),
        "settled": settled,
        "dry_run": dry_run,
    }


# ---- times

_AGO = re.compile(r"([0-9]{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")
_FORMS = "say it as 90m, 12h, 2d, 1w, today, yesterday, tuesday, 2026-11-17 or '2026-11-17 08:00'"


def parse_since(text: str, now: datetime) -> int:
    """The time that a text of --since names, in seconds since 1970.

    A day means its beginning, a weekday the last such day, which may be today. now: local time,
    without a zone. UsageError: the text names no time, or one in the future.
    """
    moment = _parse_time(text.strip().lower(), now)
    if moment is None:
        raise UsageError(f"{text!r} is no time: {_FORMS}")
    if moment > now:
        raise UsageError(f"{text!r} is still to come: {_FORMS}")
    return int(moment.timestamp())


def _parse_time(text: str, now: datetime) -> datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if ago := _AGO.fullmatch(text):
        return max(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}), datetime(1971, 1, 1))
    if text in _WEEKDAYS:
        return midnight - timedelta(days=(now.weekday() - _WEEKDAYS.index(text)) % 7)
    if text in ("today", "yesterday"):
        return midnight - timedelta(days=int(text == "yesterday"))
    if _DATE.fullmatch(text.upper()):
        with suppress(ValueError):  # no such day
            moment = datetime.fromisoformat(text.upper())
            return moment if moment.year > 1970 else None
    return None
