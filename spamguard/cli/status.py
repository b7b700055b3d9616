"""The running daemon: the part of `status` about it. Asks the daemon itself, and its next hops
whether they answer; waits for neither for more than some seconds.

Who has taught what, and what could not be learnt: the part of `status` about people. Reads the
ledger and what the watcher notes.

`status`: what the filter knows and from whom, how full its tables are, how large its files, and how
the daemon is that runs on it.

Never changes anything.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.cli import common
from spamguard.cli.common import SITE
from spamguard.log import local_time, printable
from spamguard.users import PIPE_ORIGIN, SUBMITTED_ORIGINS

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.folders.status_file import WatcherStatus
    from spamguard.learning.refusals import RefusedLessons
    from spamguard.records import Status


_INDENT = " " * 11


def daemon_values(state: Path) -> dict[str, Any] | None:
    """What it says, and what keeps it from working, its next hops too; None: none runs on this
    state directory.
    """
    told = ask_daemon(state)
    if told is None or daemon_trouble(told):
        return told
    wrong = [*daemon_problems(told), *_unreachable_hops(told["listeners"])]
    return {**told, "ready": not wrong, "not_ready": wrong}


def ask_daemon(state: Path) -> dict[str, Any] | None:
    """What it says. None: none runs on this state directory.

    answers: whether it said anything but its pid. Of a daemon of another version than this program
    only that much is told.
    """
    from spamguard import __version__
    from spamguard.daemon import status

    told = status.ask_daemon(state)
    if told is None or told.get("version") == __version__:
        return told and {**told, "answers": True}
    return {
        "pid": told["pid"],
        "version": told.get("version"),
        "answers": "version" in told,
        "ready": False,
    }


def daemon_trouble(told: dict[str, Any] | None) -> str:
    """Why there is no more to tell of it, in words; empty: there is."""
    from spamguard import __version__

    if told is None:
        return "none runs on this state directory"
    if not told["answers"]:
        return f"pid {told['pid']} runs and does not answer: see its log, or restart it"
    if told["version"] != __version__:
        return f"pid {told['pid']} runs version {told['version']}, this program is {__version__}: restart it"
    return ""


def daemon_problems(told: dict[str, Any]) -> Iterator[str]:
    """What of its own keeps it from working. That ledger and tables can be used has been seen."""
    if told["stopping"]:
        yield "it is stopping"
    if not any(worker["ready"] for worker in told["workers"]):
        yield "workers: none accepts mail"
    elif not told["scoring"]:
        yield "scorers: none is ready"
    yield from told["not_served"]


def _unreachable_hops(listeners: list[dict[str, Any]]) -> list[str]:
    import asyncio

    from spamguard.aio import hostname
    from spamguard.config.options import Hop, Tls, parse_endpoint
    from spamguard.web import health

    hops = [Hop(parse_endpoint(one["next_hop"]), Tls(one["tls"])) for one in listeners]
    return asyncio.run(health.find_unreachable(hops, hostname()))


def daemon_lines(told: dict[str, Any] | None) -> list[str]:
    """The same for people."""
    if told is None or daemon_trouble(told):
        return [f"daemon     {daemon_trouble(told)}"]
    return [
        _daemon_head(told),
        *(_INDENT + printable(line) for line in _daemon_details(told)),
    ]


def _daemon_head(told: dict[str, Any]) -> str:
    return f"daemon     {'ready' if told['ready'] else 'NOT READY'}, pid {told['pid']}, for {_duration_text(time.time() - told['began'])}"


def _daemon_details(told: dict[str, Any]) -> Iterator[str]:
    yield from (f"not ready: {line}" for line in told["not_ready"])
    for one in told["listeners"]:
        yield f"listens on {one['listen']} ({one['position']}), hands on to {one['next_hop']}"
    if told["scanners"]:
        yield f"judges for other servers on {', '.join(told['scanners'])}"
    yield f"{common.count_text(len(told['workers']), 'worker')}: {', '.join(map(_worker_text, told['workers']))}"
    if told["metrics"]:
        yield f"monitors may ask http://{told['metrics']}/metrics"
    if told["web"]:
        yield f"page and API on {told['web']['listen']}, for people {told['web']['page']}"
    yield _messages_text(told)
    if number := sum(one["number"] for one in told["next_hop_errors"]):
        yield f"{common.count_text(number, 'error')} of next hops, the last ones:"
        yield from (f"  {local_time(one['time'])} {one['text']}" for one in told["last_errors"])


def _worker_text(one: dict[str, Any]) -> str:
    state = "drains" if one["draining"] else "" if one["ready"] else "starts"
    return f"{one['pid']} ({state})" if state else str(one["pid"])


def _messages_text(told: dict[str, Any]) -> str:
    by_verdict: Counter[str] = Counter()
    for one in told["messages"]:
        by_verdict[one["verdict"]] += one["number"]
    whole = common.count_text(by_verdict.total())
    return (
        f"{whole}: {', '.join(f'{number:,} {verdict}' for verdict, number in by_verdict.most_common())}"
        if by_verdict
        else whole
    )


def _duration_text(seconds: float) -> str:
    """`40 s`, `3 min`, `5 h 10 min`, `12 d 3 h`."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


_MAX_USERS = 20  # users in the text; all are in the JSON
_DAY_SECONDS = 86_400
# after which it is worth a warning that nothing is learnt: most of what passes has passed by then
_OVERDUE_SECONDS = 120


def user_values(spam_filter: Filter) -> dict[str, Any]:
    """Users, the last one whose move was learnt first; the watcher, None if there never was one;
    and warnings.
    """
    from spamguard.folders import status_file
    from spamguard.learning import refusals

    noted, now = status_file.read_watcher_status(spam_filter.directory), time.time()
    dropped = refusals.read_dropped(spam_filter.directory)
    users = _list_users(spam_filter, [noted.refused if noted else {}, dropped])
    return {
        "users": users,
        "watcher": noted
        and {
            "alive": noted.is_alive(now),
            "began": noted.began,
            "seen": noted.seen,
            "mailboxes": noted.mailboxes,
        },
        "warnings": [
            *(_watcher_warnings(spam_filter, noted, now) if noted else ()),
            *_dropped_warnings(spam_filter, dropped),
            *_two_name_warnings(spam_filter, [one["user"] for one in users]),
        ],
    }


def _list_users(
    spam_filter: Filter, refused: Sequence[Mapping[str, RefusedLessons]]
) -> list[dict[str, Any]]:
    """refused: by user, in folders and elsewhere."""
    from spamguard.folders.mailboxes import MOVE_ORIGIN

    known, lessons = spam_filter.ledger.users, spam_filter.ledger.users.count_lessons()
    today = date.today().isoformat()
    found = []
    for user in sorted({*lessons, *(user for some in refused for user in some)}):
        last = max(
            filter(None, (known.last_vote(user, way) for way in (MOVE_ORIGIN, PIPE_ORIGIN))),
            default=None,
        )  # PIPED: as IMAPSieve does
        moved = last and {"time": last.time, "folder": last.origin.removeprefix(f"{MOVE_ORIGIN} ")}
        number = sum(
            some[user].number for some in refused if user in some and some[user].day == today
        )
        found.append(
            {
                "user": user,
                "lessons": lessons.get(user, {}),
                "last_move": moved,
                "refused_today": number,
            }
        )
    return sorted(found, key=lambda one: -one["last_move"]["time"] if one["last_move"] else 0)


def _watcher_warnings(spam_filter: Filter, noted: WatcherStatus, now: float) -> Iterator[str]:
    """What would teach and does not: because of a limit since nothing else was learnt, or of
    trouble that does not go away.
    """
    from spamguard.folders.mailboxes import MOVE_ORIGIN

    if not noted.is_alive(now):
        yield f"no watcher has been seen since {local_time(noted.seen)}: moving mail teaches nothing until the daemon runs again"
    for user, refused in noted.refused.items():
        last = spam_filter.ledger.users.last_vote(user, MOVE_ORIGIN)
        if last is None or refused.last >= last.time:
            told = f"{refused.number:,} moves of {refused.day} taught nothing, the last one into {refused.folder}"
            yield f"{user}: {told} at {local_time(refused.last)}: beyond lessons_per_day"
    for trouble in noted.troubles:
        if now - trouble.since >= _OVERDUE_SECONDS:
            yield f"since {local_time(trouble.since)}: {trouble.text}"


def _dropped_warnings(spam_filter: Filter, dropped: Mapping[str, RefusedLessons]) -> Iterator[str]:
    """What came by programs and by mail and was not learnt: within a day, or since anything else of
    that user was learnt in these ways.
    """
    from spamguard.learning.refusals import OVER_QUOTA

    for user, refused in dropped.items():
        heard = [
            last.time
            for origin in SUBMITTED_ORIGINS
            if (last := spam_filter.ledger.users.last_vote(user, origin))
        ]
        lately = (
            refused.why != OVER_QUOTA and time.time() - refused.last < _DAY_SECONDS
        )  # what else is learnt mends nothing
        if lately or refused.last >= max(heard, default=0):
            told = f"{refused.number:,} lessons of {refused.day} were dropped, the last one by {refused.folder} at {local_time(refused.last)}"
            yield f"{user or SITE}: {told}: {refused.why}"


def _two_name_warnings(spam_filter: Filter, users: Sequence[str]) -> Iterator[str]:
    """Who is named otherwise by Dovecot than by the pattern of `watch`: each move counts twice, and
    `undo` takes back half.
    """
    from spamguard.folders.mailboxes import MOVE_ORIGIN

    known, names = spam_filter.ledger.users, frozenset(users)
    for address in users:
        name = address.partition("@")[0]
        for watched, piped in (
            ((name, address), (address, name)) if name != address and name in names else ()
        ):
            if known.last_vote(watched, MOVE_ORIGIN) and known.last_vote(piped, PIPE_ORIGIN):
                told = f"{watched}, whose folders are watched, and {piped}, of whom Dovecot tells (IMAPSieve), may be one person"
                yield f"{told}, who then counts twice: leave one of the two out, or let both name people alike"


def user_lines(told: dict[str, Any]) -> list[str]:
    """The same for people."""
    found = [f"warning: {printable(one)}" for one in told["warnings"]]
    if found:
        found = ["", *found]
    users = told["users"][:_MAX_USERS]
    if not users:
        return found
    names = [printable(one["user"]) or SITE for one in users]
    width = max(len("user"), *map(len, names))
    found += ["", f"{'user':{width}}  last move                  lessons"]
    found += [
        f"{name:{width}}  {_move_text(one['last_move']):25}  {_lessons_text(one)}".rstrip()
        for name, one in zip(names, users, strict=True)
    ]
    more = len(told["users"]) - len(users)
    return [*found, f"and {more:,} more (--json shows all)"] if more else found


def watcher_line(told: dict[str, Any]) -> str:
    """One line about who watches."""
    found = told["watcher"]
    if found is None:
        return "nobody has watched folders here"
    running = found["alive"] and told["daemon"] is not None  # which may have ended a moment ago
    return (
        f"{common.count_text(found['mailboxes'], 'mailbox')}, last seen {local_time(found['seen'])}"
        + ("" if running else ", not running")
    )


def _lessons_text(one: dict[str, Any]) -> str:
    told = ", ".join(f"{number:,} {label}" for label, number in one["lessons"].items()) or "none"
    return told + (f"; {one['refused_today']:,} refused today" if one["refused_today"] else "")


def _move_text(last: dict[str, Any] | None) -> str:
    return f"{local_time(last['time'])} {printable(last['folder'])}" if last else "-"


STATUS_ABOUT = """Show what the filter knows, and how the daemon is. It tells messages of each class, who taught them, table load, sizes, versions.

Of the daemon on this state directory: whether it is ready (its workers, scorers and next hops), and its messages since it began.

Of each user: when somebody's move of a message into a folder was last learnt, the lessons in force, and how many more were refused,
as beyond lessons_per_day. Warnings tell what should teach and does not.

A new word that falls on a bucket in use (a collision) is taken for the word that has it: the load tells how often that happens. With many
lessons the tables become twice as large, when the experts are settled."""
_KERNELS = {
    "compiled": "compiled",
    "numpy": "numpy (no C compiler was there at the installation: the same verdicts, slower)",
}
_ONE_WRONG_IN = (
    1000  # the bound that is shown; which one is in force where is the configuration's business
)
_MISSING_REMEDY = "teach what people have filed (teach-folders), or let reading and answering teach (ham_evidence)"
STATUS_EXAMPLE = """  spamguard status
  spamguard status --json | jq .classes.spam.messages"""


def add_status(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "status", run_status, STATUS_ABOUT, STATUS_EXAMPLE)
    common.add_json(parser)


def run_status(options: argparse.Namespace) -> int:
    """Look and print."""
    with common.open_existing(options) as spam_filter:
        values = _status_values(spam_filter, options.profile)
    common.print_answer(options, "" if options.json else _status_text(values), values)
    return 0


def _status_values(spam_filter: Filter, profile: str) -> dict[str, Any]:

    found = spam_filter.status()
    return {
        **_program_values(spam_filter, found),
        **_profile_values(profile),
        **_lesson_values(spam_filter, found),
        "buckets": found.buckets,
        "tables": _table_values(found),
        "imports": _import_values(spam_filter),
        **user_values(spam_filter),
        "daemon": daemon_values(spam_filter.directory),
        "bytes": {"ledger": found.ledger_bytes, "tables": found.tables_bytes},
    }


def _program_values(spam_filter: Filter, found: Status) -> dict[str, Any]:
    from spamguard import __version__, native
    from spamguard.ledger.schema import SCHEMA_VERSION

    return {
        "state": str(spam_filter.directory),
        "versions": {
            "program": __version__,
            "extractor": found.extractor,
            "ledger": SCHEMA_VERSION,
        },
        "kernel": native.implementation(),
        "key": found.fingerprint,
    }


def _profile_values(chosen: str) -> dict[str, Any]:
    from spamguard.bayes.profiles import PROFILES

    return {"profile": chosen, "profiles": {one.name: one.about for one in PROFILES.values()}}


def _lesson_values(spam_filter: Filter, found: Status) -> dict[str, Any]:
    """What was taught, and what of it is of no use, or missing."""
    from spamguard.engine.policy import missing_lessons
    from spamguard.learning.reextract import count_outdated

    return {
        "classes": {
            name: {"messages": number, "unwanted": name in found.unwanted}
            for name, number in found.classes.items()
        },
        "lost": asdict(lost) if (lost := spam_filter.find_loss()) else None,
        "outdated": count_outdated(spam_filter.ledger),
        "missing": missing_lessons(found.classes, found.unwanted),
        "events": found.events,
        "unsettled": found.unsettled,
        "threshold": _threshold_values(spam_filter),
        "receipts": not spam_filter.is_adopted,
    }


def _threshold_values(spam_filter: Filter) -> dict[str, Any]:
    """From which probability on mail is spam, and what is known of good mail."""
    from spamguard.engine import policy

    good, bound = spam_filter.ham_scores(), spam_filter.spam_threshold(_ONE_WRONG_IN)
    return {
        "fixed": policy.SPAM_THRESHOLD,
        "one_wrong_in": _ONE_WRONG_IN,
        "confirmed": good.confirmed,
        "probability": bound.spam_from if bound.is_bounded else None,
    }


def _import_values(spam_filter: Filter) -> list[dict[str, Any]]:
    """The word lists of other filters in force."""
    lists = spam_filter.ledger.word_lists()
    return [
        {"name": one.name, "source": one.about.source, "words": one.about.used, "time": one.time}
        for one in lists
    ]


def _table_values(found: Status) -> dict[str, dict[str, float]]:
    """By token set: buckets in use, and their share of all. The hash is as good as random: so many
    new tokens fall on one of them.
    """
    return {
        name: {"used": found.vocabulary[name], "load": load} for name, load in found.used.items()
    }


def _status_text(values: dict[str, Any]) -> str:
    from spamguard.engine import snapshot
    from spamguard.learning import reextract

    versions, sizes = values["versions"], values["bytes"]
    return "\n".join(
        (
            f"state      {values['state']}"
            + ("" if values["receipts"] else " (tables without receipts: can only judge)"),
            f"version    spamguard {versions['program']}, extractor {versions['extractor']}, ledger {versions['ledger']}",
            f"kernel     {_KERNELS[values['kernel']]}",
            f"key        {values['key']}",
            f"profile    {values['profile']} (of {', '.join(values['profiles'])})",
            f"events     {values['events']:,}, {values['unsettled']:,} since the experts were settled",
            f"threshold  {_threshold_text(values['threshold'])}",
            f"watcher    {watcher_line(values)}",
            *daemon_lines(values["daemon"]),
            f"size       ledger {_size_text(sizes['ledger'])}, tables {_size_text(sizes['tables'])}",
            "",
            *_class_lines(values["classes"]),
            *(
                [
                    f"{snapshot.describe_loss(snapshot.LedgerLoss(**values['lost']))}: {snapshot.LOSS_REMEDY}"
                ]
                if values["lost"]
                else []
            ),
            *(
                [f"{reextract.describe_outdated(values['outdated'])}; {reextract.REEXTRACT_REMEDY}"]
                if values["outdated"]
                else []
            ),
            *([f"{values['missing']}: {_MISSING_REMEDY}"] if values["missing"] else []),
            "",
            *_table_lines(values["tables"]),
            *_import_lines(values["imports"]),
            *user_lines(values),
        )
    )


def _threshold_text(values: dict[str, Any]) -> str:
    from spamguard.engine.policy import MIN_CONFIRMED

    fixed, rate, confirmed = (
        f"spam from {values['fixed']}",
        f"1 good message in {values['one_wrong_in']:,}",
        f"{values['confirmed']:,}",
    )
    if values["probability"] is None:
        return f"{fixed}; to be wrong about at most {rate} needs {MIN_CONFIRMED:,} confirmed good messages, there are {confirmed}"
    return f"{fixed}; from {values['probability']:.4f} to be wrong about at most {rate}, by {confirmed} confirmed"


def _class_lines(classes: dict[str, dict[str, Any]]) -> list[str]:
    width = max(len("class"), *map(len, classes))
    head = f"{'class':{width}}  messages"
    return [
        head,
        *(
            f"{name:{width}}  {one['messages']:8,}  {'unwanted' if one['unwanted'] else 'wanted'}"
            for name, one in classes.items()
        ),
    ]


def _table_lines(tables: dict[str, dict[str, float]]) -> list[str]:
    head = "tokens     buckets used     load: so many new ones collide"
    return [
        head,
        *(f"{name:9}  {one['used']:12,}  {one['load']:7.2%}" for name, one in tables.items()),
    ]


def _import_lines(imports: list[dict[str, Any]]) -> list[str]:
    if not imports:
        return []
    lines = [
        f"{one['name']}  {one['words']:,} words from {printable(one['source'])}, {local_time(one['time'])[:10]}"
        for one in imports
    ]
    return ["", "word lists imported", *lines]


def _size_text(number: int) -> str:
    return f"{number / 1_000_000:,.1f} MB"
