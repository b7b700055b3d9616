"""The learner: users' folders and the lessons that wait.

The master starts it where folders are watched or lessons accepted, apart from the mail and at low
priority. One thread watches the folders and one learns what waits in the queue and in the spool;
each has a filter of its own, and opens it again after an error.

SIGTERM or the end of the master end the process at once, at any moment. The ledger alone says what
has been learnt, and an accepted lesson lies on the disk.

Must never be needed for mail to flow. Must never let trouble with the folders keep the lessons
waiting, or the other way round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import inf

from spamguard.config.options import ACCOUNTS_SIGHTINGS, ACCOUNTS_SOCKET, Settings, TeachSettings
from spamguard.daemon.children import Channel, Message
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.folders import broker
from spamguard.folders.roles import DovecotSettings
from spamguard.folders.watcher import Watcher
from spamguard.learning.lessons import Learner
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue, LessonSpool
from spamguard.log import WarnOnce
from spamguard.servers.teach import TrainingAccounts

_log = logging.getLogger("spamguard.teaching")
_folders_log = logging.getLogger("spamguard.folders")

POLL_SECONDS = 0.5  # for lessons in a spool, or put into the queue by another process
RETRY_SECONDS = 15.0  # after an error of our own, such as a full disk
_MOVES_WAIT = "what is moved meanwhile is found when that is mended"
_LESSONS_WAIT = "lessons wait until that is mended"


def main(settings: Settings, channel: Channel) -> int:
    """Learn until this process is ended."""
    channel.begin_service()
    threads = []
    if settings.watch:
        watch = partial(_watch_folders, settings, channel)
        threads.append(_start_thread(watch, _folders_log, _MOVES_WAIT))
    if settings.accounts:
        watch = partial(_watch_accounts, settings, channel)
        threads.append(_start_thread(watch, _folders_log, _MOVES_WAIT))
    if settings.accepts_lessons:
        learn = partial(_learn_lessons, settings, channel)
        threads.append(_start_thread(learn, _log, _LESSONS_WAIT))
    for thread in threads:
        thread.join()
    return 1


def _start_thread(
    rounds: Callable[[], Iterator[None]], logger: logging.Logger, consequence: str
) -> threading.Thread:
    """Start a thread that goes through endless rounds, and after an error begins anew."""

    def run() -> None:
        errors = WarnOnce(logger, logging.ERROR)
        while True:
            try:
                for _ in rounds():
                    errors.clear()
            except (SpamguardError, OSError) as error:
                errors.report("%s; %s", error, consequence)
            except Exception:
                logger.exception("a fault; %s", consequence)
            time.sleep(RETRY_SECONDS)

    thread = threading.Thread(target=run, name=logger.name, daemon=True)
    thread.start()
    return thread


def _watch_folders(settings: Settings, channel: Channel) -> Iterator[None]:
    with (
        Filter.open(settings.state) as spam_filter,
        closing(broker.make_mailboxes(settings.watch, settings.watch_socket)) as mailboxes,
        closing(Watcher(spam_filter, settings, mailboxes, channel.request_settling)) as watcher,
    ):
        while True:
            watcher.run_once(inf)
            channel.send(Message(task="folders"))
            yield


def _watch_accounts(settings: Settings, channel: Channel) -> Iterator[None]:
    """Watch the accounts like Maildirs of another state directory, with the same filter."""
    apart = replace(
        settings,
        state=settings.state / ACCOUNTS_SIGHTINGS,
        watch=broker.account_watches(settings.accounts),
    )
    apart.state.mkdir(mode=0o700, exist_ok=True)
    with (
        Filter.open(settings.state) as spam_filter,
        closing(broker.RemoteMailboxes(settings.state / ACCOUNTS_SOCKET, apart.watch)) as mailboxes,
        closing(
            Watcher(
                spam_filter,
                apart,
                mailboxes,
                channel.request_settling,
                dovecot=DovecotSettings(),
            )
        ) as watcher,
    ):
        while True:
            watcher.run_once(inf)
            channel.send(Message(task="moves"))
            yield


def _learn_lessons(settings: Settings, channel: Channel) -> Iterator[None]:
    teach = settings.teach or TeachSettings()
    queues: list[LessonQueue | LessonSpool] = [LessonQueue(settings.state / QUEUE_DIRECTORY)]
    if settings.teach is not None:
        queues.append(LessonSpool(teach.spool, TrainingAccounts(teach.for_others).resolve_user))
    with Filter.open(settings.state) as spam_filter:
        learner = Learner(spam_filter, queues, channel.request_settling, teach.lessons_per_day)
        while True:
            learner.run_once()
            channel.send(Message(task="lessons"))
            yield
            time.sleep(POLL_SECONDS)
