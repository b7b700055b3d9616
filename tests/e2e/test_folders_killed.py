"""Much mail moved while the daemon is killed: what was learnt is the truth, and no file
of a mailbox is another.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spamguard.engine.filter import Filter
from tests.e2e import daemon
from tests.e2e.moving import all_seen, sibling, votes
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually
from tests.unit.folders.maildirs import deliver, maildir

USERS = ("anna", "ben")
# the same ones for each, who do not always agree; the full size is 1,000
MESSAGES = int(os.environ.get("SPAMGUARD_CHAOS_MOVES", "300"))
SHARES = 3  # of each round of moves; in each the daemon is killed

# where a message goes, and what was said about it then; and where it goes after that, and what was
# said then
Plan = tuple[tuple[str, ...], str | None, tuple[str, ...], str | None]
PLANS: tuple[Plan, ...] = (
    ((".Junk",), "spam", ("",), "ham"),
    ((".Junk",), "spam", (".Trash",), "spam"),
    ((".Archive", ".Junk"), "spam", (".Archive",), "ham"),
    ((".Archive",), "ham", (".Junk",), "spam"),
    ((".Trash",), None, (), None),
    ((".Projects",), None, (".Junk",), "spam"),
    ((), None, (), None),
)


class Message:
    """A message of a mailbox, moved about as Dovecot would."""

    def __init__(self, box: Path, number: int) -> None:
        self.raw = sibling(number).replace(b"\r\n", b"\n")
        self.user = box.name
        self.plan = PLANS[(number + USERS.index(box.name)) % len(PLANS)]
        self._box = box
        self._chance = random.Random(f"{box.name}{number}")
        self._path = deliver(box, self.raw)

    def move(self, folder: str) -> None:
        """With the name it has, under a new one, or as a copy whose original then goes."""
        if self._chance.random() < 0.3:
            self._flag()
        way = self._chance.choice(("move", "move", "rename", "copy"))
        name = (
            self._path.name
            if way == "move"
            else f"{number_of(self._path)}{self._chance.randrange(1 << 30)}.host:2,S"
        )
        target = self._box / folder / ("cur" if ":2," in name else "new") / name
        if way == "copy":
            target.hardlink_to(self._path)
            time.sleep(self._chance.random() / 100)
            self._path.unlink()
        else:
            self._path.rename(target)
        self._path = target

    def _flag(self) -> None:
        seen = self._path.parents[1] / "cur" / f"{self._path.name.partition(':')[0]}:2,RS"
        self._path = self._path.rename(seen)


def number_of(path: Path) -> str:
    return path.name.partition(".")[0] + "."


class Killed:
    """The daemon, killed with or without its watcher, and started again."""

    def __init__(self, state: Path, pattern: str) -> None:
        file = state.with_name("spamguard.yaml")
        file.write_text(
            f"listeners: [{{listen: 'smtp://127.0.0.1:0', position: standalone, next_hop: "
            f"'maildir:{state}/Maildir'}}]\n"
            f"watch: [{{maildir: '{pattern}', lessons_per_day: 0}}]\n"
        )
        self._line = [*daemon.COMMAND, "--state", str(state), "run", "--config", str(file)]
        self.log = state.with_name("log")
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self._line, stdout=stream, stderr=stream, env=daemon.ENVIRONMENT
            )

    def watcher(self) -> int:
        """The process that watches, once there is one."""
        found: list[int] = []
        eventually(
            lambda: found.extend(children(self.process.pid, "spamguard.daemon.learner")) or found,
            "there is a watcher",
        )
        return found[0]

    def kill(self, everything: bool) -> None:
        """Without a warning."""
        watcher = self.watcher()
        if everything:
            self.process.kill()
            self.process.wait()
            self._start()
        else:
            os.kill(watcher, signal.SIGKILL)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()[-4000:]


def rounds(messages: list[Message], phase: int) -> Iterator[list[tuple[Message, str]]]:
    """Moves, those of one list in any order and at once."""
    for step in range(2):
        moves = [
            (message, message.plan[phase][step])
            for message in messages
            if len(message.plan[phase]) > step
        ]
        random.Random(phase + step).shuffle(moves)
        yield from (moves[at::SHARES] for at in range(SHARES) if moves)


def test_killed_while_much_is_moved(state: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    boxes = [
        maildir(tmp_path / "mail" / user, ".Junk", ".Archive", ".Trash", ".Projects")
        for user in USERS
    ]
    messages = [Message(box, number) for box in boxes for number in range(MESSAGES)]
    with Filter.open(state) as spam_filter:
        digests = {message.raw: spam_filter._reader.digest(message.raw) for message in messages}
    running = Killed(state, f"{tmp_path}/mail/*")
    try:
        for box in boxes:
            all_seen(state, box, MESSAGES)
        for phase in (0, 2):
            for number, moves in enumerate(rounds(messages, phase)):
                with ThreadPoolExecutor(4) as pool:
                    done = [pool.submit(message.move, folder) for message, folder in moves]
                    time.sleep(2 * chance.random())
                    running.kill(everything=number % 2 == 0)
                for one in done:
                    one.result()
            truth = {
                (digests[message.raw], message.user): message.plan[phase + 1]
                for message in messages
            }
            truth = {key: label for key, label in truth.items() if label}
            eventually(
                lambda truth=truth: (
                    {(vote.digest, vote.user): vote.label for vote in votes(state)} == truth
                ),
                "the truth is learnt",
                120,
            )
        time.sleep(2)
        assert {(vote.digest, vote.user): vote.label for vote in votes(state)} == truth
    finally:
        running.stop()
    there = sorted(path.read_bytes() for path in (tmp_path / "mail").rglob("*") if path.is_file())
    assert there == sorted(message.raw for message in messages)
    assert "Traceback" not in running.log.read_text()
