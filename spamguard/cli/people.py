"""Who has taught what, and what could not be learnt: the part of `status` about people. Reads the ledger and what the watcher notes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from spamguard.cli import rim
from spamguard.cli.usage import SITE
from spamguard.folders import notes, refusals
from spamguard.folders.notes import Noted
from spamguard.folders.refusals import LIMIT, Refused
from spamguard.folders.values import ORIGIN
from spamguard.teaching.lesson import BROUGHT, PIPED
from spamguard.times import moment

if TYPE_CHECKING:
    from spamguard.engine import Filter

_SHOWN = 20  # users in the text; all are in the JSON
_DAY = 86_400
_OVERDUE_SECONDS = 120  # after which it is worth a warning that nothing is learnt: most of what passes has passed by then


def values(spam_filter: Filter) -> dict[str, Any]:
    """Users, the last one whose move was learnt first; the watcher, None if there never was one; and warnings."""
    noted, now = notes.read(spam_filter.directory), time.time()
    dropped = refusals.dropped(spam_filter.directory)
    users = _users(spam_filter, [noted.refused if noted else {}, dropped])
    return {
        "users": users,
        "watcher": noted and {"alive": noted.alive(now), "began": noted.began, "seen": noted.seen, "mailboxes": noted.mailboxes},
        "warnings": [
            *(_warnings(spam_filter, noted, now) if noted else ()),
            *_warnings_of_dropped(spam_filter, dropped),
            *_warnings_of_two_names(spam_filter, [one["user"] for one in users]),
        ],
    }


def _users(spam_filter: Filter, refused: Sequence[Mapping[str, Refused]]) -> list[dict[str, Any]]:
    """refused: by user, in folders and elsewhere."""
    known, lessons = spam_filter.ledger.users, spam_filter.ledger.users.lessons()
    today = date.today().isoformat()
    found = []
    for user in sorted({*lessons, *(user for some in refused for user in some)}):
        last = max(filter(None, (known.last_heard(user, way) for way in (ORIGIN, PIPED))), default=None)  # PIPED: as IMAPSieve does
        moved = last and {"time": last.time, "folder": last.origin.removeprefix(f"{ORIGIN} ")}
        number = sum(some[user].number for some in refused if user in some and some[user].day == today)
        found.append({"user": user, "lessons": lessons.get(user, {}), "last_move": moved, "refused_today": number})
    return sorted(found, key=lambda one: -one["last_move"]["time"] if one["last_move"] else 0)


def _warnings(spam_filter: Filter, noted: Noted, now: float) -> Iterator[str]:
    """What would teach and does not: because of a limit since nothing else was learnt, or of trouble that does not go away."""
    if not noted.alive(now):
        yield f"no watcher has been seen since {moment(noted.seen)}: moving mail teaches nothing until the daemon runs again"
    for user, refused in noted.refused.items():
        last = spam_filter.ledger.users.last_heard(user, ORIGIN)
        if last is None or refused.last >= last.time:
            told = f"{refused.number:,} moves of {refused.day} taught nothing, the last one into {refused.folder}"
            yield f"{user}: {told} at {moment(refused.last)}: beyond lessons_per_day"
    for trouble in noted.troubles:
        if now - trouble.since >= _OVERDUE_SECONDS:
            yield f"since {moment(trouble.since)}: {trouble.text}"


def _warnings_of_dropped(spam_filter: Filter, dropped: Mapping[str, Refused]) -> Iterator[str]:
    """What came by programs and by mail and was not learnt: within a day, or since anything else of that user was learnt in these ways."""
    for user, refused in dropped.items():
        heard = [last.time for origin in BROUGHT if (last := spam_filter.ledger.users.last_heard(user, origin))]
        lately = refused.why != LIMIT and time.time() - refused.last < _DAY  # what else is learnt mends nothing
        if lately or refused.last >= max(heard, default=0):
            told = f"{refused.number:,} lessons of {refused.day} were dropped, the last one by {refused.folder} at {moment(refused.last)}"
            yield f"{user or SITE}: {told}: {refused.why}"


def _warnings_of_two_names(spam_filter: Filter, users: Sequence[str]) -> Iterator[str]:
    """Who is named otherwise by Dovecot than by the pattern of `watch`: each move counts twice, and `undo` takes back half."""
    known, names = spam_filter.ledger.users, frozenset(users)
    for address in users:
        name = address.partition("@")[0]
        for watched, piped in ((name, address), (address, name)) if name != address and name in names else ():
            if known.last_heard(watched, ORIGIN) and known.last_heard(piped, PIPED):
                told = f"{watched}, whose folders are watched, and {piped}, of whom Dovecot tells (IMAPSieve), may be one person"
                yield f"{told}, who then counts twice: leave one of the two out, or let both name people alike"


def lines(told: dict[str, Any]) -> list[str]:
    """The same for people."""
    found = [f"warning: {rim.printable(one)}" for one in told["warnings"]]
    if found:
        found = ["", *found]
    users = told["users"][:_SHOWN]
    if not users:
        return found
    names = [rim.printable(one["user"]) or SITE for one in users]
    width = max(len("user"), *map(len, names))
    found += ["", f"{'user':{width}}  last move                  lessons"]
    found += [f"{name:{width}}  {_move(one['last_move']):25}  {_lessons(one)}".rstrip() for name, one in zip(names, users, strict=True)]
    more = len(told["users"]) - len(users)
    return [*found, f"and {more:,} more (--json shows all)"] if more else found


def watcher(told: dict[str, Any]) -> str:
    """One line about who watches."""
    found = told["watcher"]
    if found is None:
        return "nobody has watched folders here"
    running = found["alive"] and told["daemon"] is not None  # which may have ended a moment ago
    return f"{rim.counted(found['mailboxes'], 'mailbox')}, last seen {moment(found['seen'])}" + ("" if running else ", not running")


def _lessons(one: dict[str, Any]) -> str:
    told = ", ".join(f"{number:,} {label}" for label, number in one["lessons"].items()) or "none"
    return told + (f"; {one['refused_today']:,} refused today" if one["refused_today"] else "")


def _move(last: dict[str, Any] | None) -> str:
    return f"{moment(last['time'])} {rim.printable(last['folder'])}" if last else "-"
