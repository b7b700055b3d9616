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
from pathlib import Path

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


def main(settings: Settings, channel: Channel) -> int:
    """Learn until this process is ended."""
    channel.begin_service()
    threads = []
    if settings.watch:
        watch = partial(_watch_folders, settings.state, settings, channel, "folders")
        threads.append(_start_thread(watch, _folders_log))
    if settings.accounts:
        # Like Maildirs of another state directory, with the same filter.
        apart = replace(
            settings,
            state=settings.state / ACCOUNTS_SIGHTINGS,
            watch=broker.account_watches(settings.accounts),
            watch_socket=settings.state / ACCOUNTS_SOCKET,
        )
        watch = partial(_watch_folders, settings.state, apart, channel, "moves", DovecotSettings())
        threads.append(_start_thread(watch, _folders_log))
    if settings.accepts_lessons:
        learn = partial(_learn_lessons, settings, channel)
        threads.append(_start_thread(learn, _log))
    for thread in threads:
        thread.join()
    return 1


def _start_thread(rounds: Callable[[], Iterator[None]], logger: logging.Logger) -> threading.Thread:
    """Start a thread that goes through endless rounds, and after an error begins anew."""

    def run() -> None:
        errors = WarnOnce(logger, logging.ERROR)
        while True:
            try:
                for _ in rounds():
                    errors.clear()
            except (SpamguardError, OSError) as error:
                errors.report("%s; lessons and moves wait until that is mended", error)
            except Exception:
                logger.exception("a fault; lessons and moves wait until that is mended")
            time.sleep(RETRY_SECONDS)

    thread = threading.Thread(target=run, name=logger.name, daemon=True)
    thread.start()
    return thread


def _watch_folders(
    state: Path,
    settings: Settings,
    channel: Channel,
    task: str,
    dovecot: DovecotSettings | None = None,
) -> Iterator[None]:
    """`state` has the filter, and that of `settings` the sightings."""
    settings.state.mkdir(mode=0o700, exist_ok=True)
    with (
        Filter.open(state) as spam_filter,
        closing(broker.make_mailboxes(settings.watch, settings.watch_socket)) as mailboxes,
        closing(
            Watcher(spam_filter, settings, mailboxes, channel.request_settling, dovecot=dovecot)
        ) as watcher,
    ):
        while True:
            watcher.run_once(inf)
            channel.send(Message(task=task))
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
