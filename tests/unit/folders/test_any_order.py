"""Mail is moved, and flagged in any order. What is learnt is what the table says,
whatever events are lost, and between whichever two writes the watcher is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.folders import scan
from spamguard.folders.maildir import Changes
from spamguard.folders.sightings import Sightings
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import MAIL, Watched

CLASSES = {"": "ham", ".Archive": "ham", ".Junk": "spam", ".Trash": "", ".Projects": ""}
MESSAGES = 6
STEPS = 30


class Message:
    """A message that its user moves and flags. said: what the user has said by that."""

    def __init__(self, box: Path, number: int) -> None:
        self.said = ""
        self._box = box
        self._path = deliver(box, MAIL[number])
        self._folder = ""
        self._class = "ham"
        self._flags: set[str] = set()

    def move(self, folder: str) -> None:
        before, now = CLASSES[self._folder], CLASSES[folder]
        kept = before == now == "ham" and self._folder != folder
        if now and (now != self._class or kept or (now == "spam" and not before)):
            self.said = now
        self._class = now or self._class
        self._folder = folder
        self._path = move(self._path, self._box / folder)

    def flag(self, letter: str) -> None:
        self._flags ^= {letter}
        name = f"{self._path.name.partition(':')[0]}:2,{''.join(sorted(self._flags))}"
        self._path = self._path.rename(self._path.parents[1] / "cur" / name)
        if not self.said and CLASSES[self._folder] == "ham" and self._flags & {"R", "F"}:
            self.said = "ham"


class Killed(BaseException):
    """An exception that no code catches."""


def killed_while_resting(
    one: Watched, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the watcher at one of the first moments before or after a write, if there are so many;
    the next one finds the remains.
    """
    moments = iter(range(chance.randrange(6)))

    def killed(real: Callable[..., object]) -> Callable[..., object]:
        def writes(*arguments: object, **named: object) -> object:
            live()
            found = real(*arguments, **named)
            live()
            return found

        return writes

    def live() -> None:
        if next(moments, None) is None:
            raise Killed

    with monkeypatch.context() as patched, suppress(Killed):
        for what, name in (
            (one.filter, "cast_votes"),
            (Sightings, "update"),
            (Sightings, "drop_pending"),
        ):
            patched.setattr(what, name, killed(getattr(what, name)))
        one.rest()
    one.stop()
    one.start()
    one.rest()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_votes_are_what_was_said(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    monkeypatch.setattr(scan, "STEP_MESSAGES", 1)
    one = Watched(
        tmp_path,
        answered_is_ham=True,
        flagged_is_ham=True,
        debounce=0.01,
    )
    for folder in CLASSES:
        maildir(one.box / folder)
    one.rest()
    messages = [Message(one.box, number) for number in range(MESSAGES)]
    one.rest()
    for _ in range(STEPS):
        is_killed = chance.random() < 0.3  # then it may not see a flag
        for message in chance.sample(messages, chance.randrange(1, 4)):
            if is_killed or chance.random() < 0.5:
                message.move(chance.choice(list(CLASSES)))
            else:
                message.flag(chance.choice("RFS"))
        if chance.random() < 0.2:
            one.watcher.take_changes(Changes(everything=True))
        if is_killed:
            killed_while_resting(one, chance, monkeypatch)
        one.rest()
        assert one.votes() == {
            f"anna {number}": each.said for number, each in enumerate(messages) if each.said
        }
    one.stop()
    one.filter.close()
