"""`status`: what the filter knows, who taught it, and how the daemon on its directory is.

The answer is one document of values for JSON, put together from three parts: the filter itself, its
users and the watcher's status file, and the running daemon. The lines for people are made from
these values. The daemon and its next hops are asked, and given a few seconds to answer. `doctor`
uses the daemon's part too.

Must never change anything.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard import __version__
from spamguard.cli import arguments, common
from spamguard.cli.arguments import command
from spamguard.counters import pairs
from spamguard.log import printable
from spamguard.times import duration_text, local_time
from spamguard.users import Origin

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter


_MISSING_REMEDY = (
    "teach what people have filed (teach-folders, account teach), or let answering teach "
    "(answered_is_ham)"
)
_MAX_USERS = 20  # in the text; JSON has all
_DAY_SECONDS = 86_400
_OVERDUE_SECONDS = 120  # most troubles of the watcher pass sooner, so they are no warning before


@command(
    "status",
    """\
Show what the filter knows, and how the daemon is. It shows messages of each class, who taught them,
sizes and versions.

Of the daemon on this state directory: whether it is ready (its workers, scorers and next hops), and
its messages since it began.

Of each user: when the last move of a message into a folder was learnt, and the lessons in force.
Warnings tell what should teach and does not, and what was refused lately, such as beyond
lessons_per_day.""",
    arguments.JSON,
    example="""  spamguard status
  spamguard status --json | jq .classes.spam.messages""",
)
def run_status(options: Namespace) -> int:
    common.warn_of_service(options)
    from spamguard import native
    from spamguard.engine import policy
    from spamguard.learning.undo import count_outdated
    from spamguard.ledger.schema import SCHEMA_VERSION

    with common.open_filter(options, must_exist=True) as spam_filter:
        known, loss, ledger = spam_filter.status(), spam_filter.find_loss(), spam_filter.ledger
        oldest, aged = ledger.users.find_kept()
        values = {
            "state": str(spam_filter.directory),
            "versions": {
                "program": __version__,
                "extractor": known.extractor,
                "ledger": SCHEMA_VERSION,
            },
            "kernel": native.implementation(),
            "key": known.fingerprint,
            "classes": {
                name: {"messages": number, "unwanted": name in known.unwanted}
                for name, number in known.classes.items()
            },
            "kept": {"since": oldest, "aged": aged},
            "lost": asdict(loss) if loss else None,
            "outdated": count_outdated(ledger),
            "missing": policy.missing_lessons(known.classes, known.unwanted, known.stayed),
            "events": known.events,
            "unsettled": known.unsettled,
            "bytes": {"ledger": known.ledger_bytes, "tables": known.tables_bytes},
            **user_values(spam_filter),
            "daemon": (daemon := daemon_values(spam_filter.directory)),
            "accounts": account_values(spam_filter.directory, daemon),
            "shared": shared_values(spam_filter),
        }
    common.print_answer(options, "" if options.json else _status_text(values), values)
    return 0


def _status_text(values: dict[str, Any]) -> str:
    from spamguard.engine import snapshot
    from spamguard.learning import undo

    versions, sizes, kept = values["versions"], values["bytes"], values["kept"]
    keep = (values["daemon"] or {}).get("keep")  # as the running daemon says it
    keeping = f"since {local_time(kept['since'])[:10]}" if kept["since"] else "nothing yet"
    keeping += f" (keep: {keep})" if keep else ""
    if kept["aged"]:
        keeping += f"; {kept['aged']:,} older lessons were forgotten in the last 30 days"
    accounts = [f"{name}: {row['text']}" for name, row in values["accounts"].items()]
    watching = [] if accounts else ["nobody has watched folders here"]
    if watcher := values["watcher"]:
        # A watcher dies with its daemon, however recently it was seen.
        ending = "" if watcher["alive"] and values["daemon"] else ", not running"
        mailboxes = common.count_text(watcher["mailboxes"], "mailbox")
        watching = [f"{mailboxes}, last seen {local_time(watcher['seen'])}{ending}"]
    shared = []
    if values["shared"]:
        shared = [f"{values['shared']['position']:,} of {values['shared']['last']:,} events"]
        shared += [note.removeprefix("shared log: ") for note in values["shared"]["notes"]]
    parts = {
        "state": [values["state"]],
        "version": [
            f"spamguard {versions['program']}, extractor {versions['extractor']}, "
            f"ledger {versions['ledger']}"
        ],
        "kernel": [values["kernel"]],
        "key": [values["key"]],
        "events": [f"{values['events']:,}, {values['unsettled']:,} since the experts were settled"],
        "kept": [keeping],
        "watcher": watching,
        "accounts": accounts,
        "daemon": daemon_lines(values["daemon"]),
        "shared log": shared,
        "size": [f"ledger {sizes['ledger'] / 1e6:,.1f} MB, tables {sizes['tables'] / 1e6:,.1f} MB"],
    }
    lines = [
        f"{'' if number else title:11}{printable(line)}"
        for title, part in parts.items()
        for number, line in enumerate(part)
    ]
    lines += ["", "class       messages"]
    for name, row in values["classes"].items():
        side = "unwanted" if row["unwanted"] else "wanted"
        lines.append(f"{name:10}  {row['messages']:8,}  {side}")
    if values["lost"]:
        loss = snapshot.describe_loss(snapshot.LedgerLoss(**values["lost"]))
        lines.append(f"{loss}: {snapshot.LOSS_REMEDY}")
    if values["outdated"]:
        lines.append(undo.describe_outdated(values["outdated"]))
    if values["missing"]:
        lines.append(f"{values['missing']}: {_MISSING_REMEDY}")
    warnings = [f"warning: {printable(warning)}" for warning in values["warnings"]]
    lines += warnings and ["", *warnings]
    if values["users"]:
        lines += ["", "user        last move                  lessons"]
    for user in values["users"][:_MAX_USERS]:
        name = printable(user["user"]) or arguments.SITE
        lessons = ", ".join(f"{number:,} {label}" for label, number in user["lessons"].items())
        move = user["last_move"]
        when = f"{local_time(move['time'])} {printable(move['folder'])}" if move else "-"
        lines.append(f"{name:10}  {when:25}  {lessons or 'none'}")
    more = len(values["users"]) - _MAX_USERS
    return "\n".join([*lines, f"and {more:,} more (--json shows all)"] if more > 0 else lines)


# ---- users, and the watcher


def user_values(spam_filter: Filter) -> dict[str, Any]:
    """The users, by the time of their last move; the watcher, if there ever was one; warnings."""
    from spamguard.config.options import ACCOUNTS_SIGHTINGS
    from spamguard.learning import status_files

    ledger = spam_filter.ledger.users
    users: list[dict[str, Any]] = []
    for name, lessons in sorted(ledger.count_lessons().items()):
        # IMAPSieve tells of moves too, by teach-pipe
        votes = [ledger.last_vote(name, origin) for origin in (Origin.FOLDER, Origin.PIPE)]
        last = max(filter(None, votes), default=None)
        folder = last and last.origin.removeprefix(f"{Origin.FOLDER} ")
        move = last and {"time": last.time, "folder": folder}
        users.append({"user": name, "lessons": lessons, "last_move": move})
    users.sort(key=lambda user: -user["last_move"]["time"] if user["last_move"] else 0)
    watcher, now = status_files.read_watcher_status(spam_filter.directory), time.time()
    watcher_values = watcher and {
        "alive": watcher.is_alive(now),
        "seen": watcher.seen,
        "mailboxes": watcher.mailboxes,
    }
    warnings = []
    refusals = [*status_files.read_dropped(spam_filter.directory).items()]
    of_accounts = status_files.read_watcher_status(spam_filter.directory / ACCOUNTS_SIGHTINGS)
    for each in filter(None, (watcher, of_accounts)):
        if not each.is_alive(now):
            warnings.append(
                f"no watcher has been seen since {local_time(each.seen)}: "
                "moving mail teaches nothing until the daemon runs again"
            )
        for trouble in each.troubles:
            if now - trouble.since >= _OVERDUE_SECONDS:
                warnings.append(f"since {local_time(trouble.since)}: {trouble.text}")
        refusals += each.refused.items()
    for user, refused in refusals:
        if now - refused.last < _DAY_SECONDS:
            warnings.append(
                f"{user or arguments.SITE}: {refused.number:,} lessons of {refused.day} were "
                f"dropped, the last one by {refused.folder} at {local_time(refused.last)}: "
                f"{refused.why}"
            )
    return {"users": users, "watcher": watcher_values, "warnings": warnings}


def account_values(state: Path, daemon: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """How the accounts of the running daemon are, by name, as far as it has said so."""
    from spamguard.imap.status import read_status

    known = read_status(state)
    names = [name for name in (daemon or {}).get("accounts", ()) if name in known]
    return {name: {**asdict(known[name]), "text": known[name].text} for name in names}


# ---- the running daemon


def daemon_values(state: Path) -> dict[str, Any] | None:
    """What the daemon says, with everything that keeps it from working; None: none runs.

    Its next hops are asked too.
    """
    import asyncio

    from spamguard.config.options import Hop, Tls, parse_endpoint
    from spamguard.daemon.status import ask_daemon
    from spamguard.delivery.smtp import find_unreachable
    from spamguard.log import hostname

    values = ask_daemon(state)
    if values is None:
        return None
    if daemon_trouble(values):  # what another version says may mean something else
        return {"pid": values["pid"], "version": values.get("version"), "ready": False}
    hops = [
        Hop(parse_endpoint(listener["next_hop"]), Tls(listener["tls"]))
        for listener in values["listeners"]
    ]
    problems = [*daemon_problems(values), *asyncio.run(find_unreachable(hops, hostname()))]
    return {**values, "ready": not problems, "not_ready": problems}


def daemon_trouble(values: dict[str, Any] | None) -> str:
    """Why nothing is known about the daemon, or "". values: what it says."""
    if values is None:
        return "none runs on this state directory"
    if values.get("version") is None:
        return f"pid {values['pid']} runs and does not answer: see its log, or restart it"
    if values["version"] != __version__:
        return (
            f"pid {values['pid']} runs version {values['version']}, "
            f"this program is {__version__}: restart it"
        )
    return ""


def daemon_problems(values: dict[str, Any]) -> Iterator[str]:
    """What keeps the daemon from working, apart from its next hops, ledger and tables."""
    if values["stopping"]:
        yield "it is stopping"
    if not any(worker["ready"] for worker in values["workers"]):
        yield "workers: none accepts mail"
    elif not values["report"]["scoring"]:
        yield "scorers: none is ready"
    yield from values["report"]["absent"]


def daemon_lines(values: dict[str, Any] | None) -> list[str]:
    """The daemon for people. values: of `daemon_values`."""
    if values is None or daemon_trouble(values):
        return [daemon_trouble(values)]
    ready = "ready" if values["ready"] else "NOT READY"
    report, counters = values["report"], values["report"]["counters"]
    uptime = duration_text(time.time() - report["began"])
    lines = [
        f"{ready}, pid {values['pid']}, for {uptime}",
        *(f"not ready: {problem}" for problem in values["not_ready"]),
        *(
            f"listens on {each['listen']} ({each['position']}), hands on to {each['next_hop']}"
            for each in values["listeners"]
        ),
    ]
    if values["scanners"]:
        lines.append(f"judges for other servers on {', '.join(values['scanners'])}")
    workers = [str(worker["pid"]) for worker in values["workers"]]
    lines.append(f"{common.count_text(len(workers), 'worker')}: {', '.join(workers)}")
    if web := values["web"]:
        lines.append(f"page and API on {web['listen']}, for people {web['page']}")
    verdicts: Counter[str] = Counter()
    for (verdict, _), number in pairs(counters["messages"]):
        verdicts[verdict] += number
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.most_common())
    lines.append(common.count_text(verdicts.total()) + (f": {counts}" if counts else ""))
    if errors := sum(counters["next_hop_errors"].values()):
        lines.append(f"{common.count_text(errors, 'error')} of next hops, the last ones:")
        last = sorted(counters["last_errors"].values(), reverse=True)[:8]
        lines += (f"  {local_time(moment)} {text}" for moment, text in last)
    return lines


# ---- the shared log


def shared_values(spam_filter: Filter) -> dict[str, Any] | None:
    """How this node stands to the shared log; None: the ledger has not joined one."""
    log = spam_filter.ledger.shared
    if log is None:
        return None
    from spamguard.shared.status import describe_status

    return describe_status(spam_filter.directory, log.counts(), time.time())
