"""A scan is killed, or meets a full disk, at any write, and messages move on before the next scan.
What a killed scan may have seen cannot be known from outside. So the test keeps every possible
state of each message; a vote that belongs to none of them is a lesson lost, or one too many.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spamguard.folders.maildir import Changes
from spamguard.ledger.sqlite import SqliteLedger
from tests.support.killing import in_child
from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.watched import MAIL, Watched

CLASSES = {"": "ham", ".Archive": "ham", ".Junk": "spam", ".Trash": ""}
FOLDERS = (*CLASSES, ".Sent")  # the last one is not looked at
KILLED = -signal.SIGKILL
MESSAGES = 3


def maildir_of(place: Path) -> Path:
    """The mailbox of a watcher that has scanned it once."""
    looks(place)
    return place / "home" / "anna"


def looks(place: Path, **options: object) -> dict[str, str | None]:
    """Start a watcher, let it scan until nothing is left to do, and stop it; the votes then."""
    one = Watched(place, **options)
    with closing(one.filter):
        one.rest()
        one.stop()
        return one.votes()


def killed_look(place: Path, owner: type, method: str, *, after: bool, **options: object) -> None:
    """`looks` in a process that is killed at the first call of this method, before or after its
    work.
    """
    real = getattr(owner, method)

    def dying(*arguments: object, **named: object) -> None:
        if after:
            real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        one = Watched(place, **options)
        setattr(owner, method, dying)
        one.rest()

    assert in_child(work) == KILLED


def test_what_a_killed_look_decided_is_told_once_and_keeps_its_place_in_the_day(tmp_path, caplog):
    caplog.set_level("INFO")
    box = maildir_of(tmp_path)
    messages = [deliver(box, raw) for raw in MAIL[:3]]
    looks(tmp_path)
    for message in messages:
        move(message, box / ".Junk")
    caplog.clear()
    killed_look(tmp_path, SqliteLedger, "append", after=False, lessons_per_day=2)
    for _ in range(2):
        assert list(looks(tmp_path, lessons_per_day=2).values()) == ["spam", "spam"]
    told = [record.getMessage() for record in caplog.records]
    lesson = "lesson user=anna from='INBOX' to='Junk' class=spam"
    assert sum(line.startswith(lesson) for line in told) == 2
    assert [line for line in told if line.startswith("lessons that were decided")] == [
        "lessons that were decided before a stop or a failure, and are taught now: 2"
    ]


class State(NamedTuple):
    """What a watcher may know of a message. said: what its user has said by moving it. label: the
    class of the last folder that has one. folder: the last folder in which it was seen.
    """

    said: str = ""
    label: str = "ham"
    folder: str = ""

    def seen(self, folder: str) -> State:
        """The state after a scan has seen the message in a folder."""
        if folder not in CLASSES or folder == self.folder:
            return self
        label = CLASSES[folder]
        before = CLASSES[self.folder]
        teaches = label and (
            label != self.label or (label == "spam" and not before) or label == before == "ham"
        )
        return State(label if teaches else self.said, label or self.label, folder)


class Message:
    """A message and its possible states."""

    def __init__(self, box: Path, number: int) -> None:
        self.number = number
        self.folder = ""
        self.states = {State()}
        self._box = box
        self._path = deliver(box, MAIL[number])

    def move(self, folder: str) -> None:
        self._path = move(self._path, self._box / folder)
        self.folder = folder

    def looked_at(self, *, interrupted: bool) -> None:
        seen = {state.seen(self.folder) for state in self.states}
        self.states = seen | self.states if interrupted else seen

    def check(self, votes: dict[str, str | None]) -> None:
        """The vote belongs to a possible state; only such states remain."""
        vote = votes.get(f"anna {self.number}") or ""
        assert vote in {state.said for state in self.states}, (self.number, vote, self.states)
        self.states = {state for state in self.states if state.said == vote}


def at_transaction(one: Watched, step: int, fault: Callable[[], object]) -> Callable[[], bool]:
    """Inject a fault before the begin or the commit number `step` of the sightings and the ledger;
    whether it has happened.
    """
    steps = itertools.count()

    def traced(statement: str) -> None:
        if statement.startswith(("BEGIN", "COMMIT")) and next(steps) == step:
            fault()

    for database in (one.watcher._sightings._db, one.filter.ledger._db):
        database.connection.set_trace_callback(traced)
    return lambda: next(steps) > step


def limit_writes(size: int) -> None:
    """Let every write beyond this size of a file fail, for the whole process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def faulty_look(place: Path, step: int, fault: str) -> bool:
    """A scan with a fault at some transaction; whether the scan ended. fault: "kill"; "full":
    writing fails from then on, until a kill; "mended": until the watcher has given up, then it
    scans again.
    """

    def work() -> None:
        one = Watched(place)
        if fault == "kill":
            at_transaction(one, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        else:
            happened = at_transaction(one, step, lambda: limit_writes(0))
        one.rest()
        if fault == "full" and happened():
            os.kill(os.getpid(), signal.SIGKILL)
        limit_writes(resource.RLIM_INFINITY)
        one.watcher.take_changes(Changes(everything=True))
        one.rest()

    status = in_child(work)
    assert status in (0, KILLED)
    return status == 0


BACK = "back"  # to where the message was at the beginning of the round
ROUNDS = st.lists(
    st.tuples(
        # Where each message is put before a look; before which transaction of the scan the fault
        # is, without those that prune; the fault; and where the message is put while nobody looks.
        st.tuples(*[st.sampled_from(FOLDERS)] * MESSAGES),
        st.integers(2, 11),
        st.sampled_from(("kill", "full", "mended")),
        st.tuples(*[st.sampled_from((*FOLDERS, *[BACK] * 5))] * MESSAGES),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@example([((".Junk", "", ".Trash"), 6, "kill", (BACK, ".Junk", BACK))])
@example([((".Junk", ".Archive", ""), 8, "full", (BACK, BACK, ".Archive"))])
@given(ROUNDS)
def test_wherever_a_look_is_interrupted_its_lessons_are_those_of_the_moves(rounds):
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        box = maildir_of(place)
        messages = [Message(box, number) for number in range(MESSAGES)]
        looks(place)
        for folders, step, fault, folders_then in rounds:
            at_first = [message.folder for message in messages]
            for message, folder in zip(messages, folders, strict=True):
                message.move(folder)
            complete = faulty_look(place, step, fault)
            for message, folder, before in zip(messages, folders_then, at_first, strict=True):
                message.looked_at(interrupted=not complete)
                message.move(before if folder == BACK else folder)
            votes = looks(place)
            for message in messages:
                message.looked_at(interrupted=False)
                message.check(votes)
