"""A short-lived process that settles a filter.

The master starts it, apart from the mail and from the learner. Settling takes much processor, so
the process has the lowest priority of all, and much memory, which returns when it ends. It settles
if that is due, also when tables are damaged, and removes drafts that killed processes have left
behind. Of nodes that share a log each settles for itself; one of them forgets lessons. It removes
held mail that is too old, counts good mail that has stayed (`note_stayed`), and forgets the lessons
beyond `keep` before it settles. A clock that has jumped ahead removes nothing (`trusted_time`).

Must never be needed for judging: if it dies, the next one does its work.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from spamguard.config.options import Settings
from spamguard.config.values import KeptLessons
from spamguard.daemon.children import Channel
from spamguard.delivery.quarantine import DIRECTORY, REFUSED, Quarantine
from spamguard.engine.filter import Filter
from spamguard.engine.policy import ENOUGH_HAM
from spamguard.errors import LedgerError, SpamguardError, TableError
from spamguard.learning.undo import age_votes
from spamguard.proxy.history import HISTORY_FILE, History
from spamguard.storage import remove_stale_drafts

_log = logging.getLogger("spamguard.daemon")

_STAY_SECONDS = 3 * 86_400  # within these people complain of a verdict, if they do


def main(settings: Settings, channel: Channel) -> int:
    """Settle if that is still due, and return the exit status."""
    channel.begin_service(10)
    return settle(settings)


def settle(settings: Settings) -> int:
    """Do what is due, and return the exit status."""
    state, started_at = settings.state, time.monotonic()
    try:
        settled = settle_if_due(state, settings.keep)
        remove_stale_drafts(state)
        remove_expired(state, settings.quarantine.keep)
        remove_expired(state, settings.reject.keep, REFUSED)
        if (state / HISTORY_FILE).exists():
            note_stayed(state)
    except (SpamguardError, OSError) as error:
        _log.error("cannot settle: %s", error)
        return 1
    if settled:
        _log.info("settled in %.1f s", time.monotonic() - started_at)
    return 0


def note_stayed(state: Path) -> None:
    """Count the ham that was delivered some days ago and never taught since.

    Mail that was taught as ham later counts as a lesson, and as spam not at all.
    """
    with (
        Filter.open(state, _load=False) as spam_filter,
        History.open(state / HISTORY_FILE) as history,
    ):
        if spam_filter.stayed >= ENOUGH_HAM:
            return  # the number never falls
        until = history.trusted_time(time.time()) - _STAY_SECONDS
        fingerprint = spam_filter.ledger.fingerprint
        judged = history.find_judged("ham", fingerprint, until, 2 * ENOUGH_HAM)
        taught = spam_filter.ledger.users.find_standings(judged, "")
        spam_filter.note_stayed(len(judged) - len(taught))


def remove_expired(state: Path, days: int | None, reason: str = "") -> None:
    """Remove held mail that is older than so many days: all, or what is held for one reason."""
    if days is None:
        return
    with History.open(state / HISTORY_FILE) as history:
        now = history.trusted_time(time.time())
    Quarantine(state / DIRECTORY).remove_older(now - days * 86_400, reason)


def settle_if_due(state: Path, kept: KeptLessons | None = None) -> bool:
    """Settle if that is due or if the tables cannot be used: nothing is judged without them.

    Lessons beyond those that are kept are forgotten first; None: all are kept.
    """
    now = time.time()
    try:
        with Filter.open(state) as spam_filter:
            shared = spam_filter.ledger.shared
            may_forget, is_copying = True, False
            if shared is not None:
                from spamguard.shared.status import read_status  # noqa: PLC0415  not on one machine

                status = read_status(state)
                may_forget = status.is_first(now)
                is_copying = status.is_copying(now, shared.head().position)
            if kept and may_forget:
                forget_oldest(spam_filter, kept)
            due = spam_filter.is_settling_due()
    except (LedgerError, TableError) as error:
        _log.error("%s; trying to make all tables anew", error)
        due = True
    # _load=False: only the ledger is read, and once, as the tables may be what is damaged
    if due:
        with Filter.open(state, _load=False) as spam_filter:
            spam_filter.settle()
    elif shared is not None and not is_copying:
        with Filter.open(state, _load=False) as spam_filter:
            due = spam_filter.follow_shared_log()
    return due


def forget_oldest(spam_filter: Filter, kept: KeptLessons) -> None:
    """Forget what is older than `kept` says. If that fails, settling goes on all the same."""
    try:
        if aged := age_votes(spam_filter, kept, time.time()):
            _log.info("forgot the %d oldest lessons (keep: %s)", aged, kept)
            if spam_filter.ledger.shared is not None:
                spam_filter.settle_everywhere()
    except SpamguardError as error:
        _log.error("cannot forget the oldest lessons: %s", error)
