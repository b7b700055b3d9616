"""Anything in any order, against two references: one that sees what each user does, and one that
sees what was found.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.folders.reconcile import Arrival, Sighting, reconcile
from spamguard.folders.roles import FolderKind
from tests.unit.folders.observed import (
    FILING,
    FOLDERS,
    NOT_FILING,
    ROLES,
    Mail,
    Mailbox,
    Memory,
    signed,
    stem,
)

INBOX, ARCHIVE, JUNK, OLD, NEWS, UNDECIDED, TRASH, PROJECTS = FOLDERS


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Sighting], list[Arrival], set[tuple[str, int]]]:
    """Sightings of a few messages that contradict each other as much as they can."""
    places = st.tuples(st.sampled_from(FOLDERS), st.integers(1, 6))
    digests = st.sampled_from((b"a" * 16, b"b" * 16, b""))
    keys = draw(st.lists(places, unique=True, max_size=8))
    seen, gone, truth = st.integers(1, 3), st.sampled_from((0, 0, 5)), st.booleans()
    origins = st.sampled_from((None, *FOLDERS))
    copies = [
        Sighting(
            *at, draw(digests), 0, draw(origins), draw(truth), draw(truth), draw(seen), draw(gone)
        )
        for at in keys
    ]
    new = [at for at in draw(st.lists(places, unique=True, max_size=6)) if at not in keys]
    arrivals = [Arrival(*at, draw(digests)) for at in new]
    missed = {at for at in keys if draw(truth)}
    return copies, arrivals, missed


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_makes_no_difference(
    situation: tuple[list[Sighting], list[Arrival], set[tuple[str, int]]], chance: random.Random
) -> None:
    copies, arrivals, gone = situation
    expected = reconcile(copies, arrivals, gone, FILING, 10)
    chance.shuffle(copies)
    chance.shuffle(arrivals)
    assert reconcile(copies, arrivals, gone, FILING, 10) == expected


# A reference that sees what each person does


def label(folder: str) -> str:
    role = ROLES[folder]
    return role.label if role.kind is FolderKind.CLASS else ""


def says(way: list[str]) -> str | None:
    """What the last step of a way through folders teaches, in the words of the issue."""
    *before, source, target = way
    to, came = label(target), label(source)
    if not to or source == target:
        return None
    if came:
        return to if came != to or to == "ham" else None
    if to != "ham":
        return to
    earlier = next((label(folder) for folder in reversed(before) if label(folder)), "")
    return "ham" if earlier not in ("", "ham") else None


def at_first(mail: Mail, folder: str, *, filing: bool) -> str | None:
    if not filing or mail.signed is None:
        return None
    if mail.signed.label == "spam":
        return "ham" if label(folder) == "ham" else None
    return "spam" if label(folder) == "spam" else None


class Person:
    """A user who moves and deletes mail, and what was meant by it."""

    def __init__(self, seed: int, memory: Memory | None = None) -> None:
        self.chance = random.Random(seed)
        self.filing = self.chance.random() < 0.5
        self.box = Mailbox(FILING if self.filing else NOT_FILING, memory)
        # Of the files, by the delivery: the folders each copy was in.
        self.ways: dict[str, list[list[str]]] = {}
        self.at: dict[tuple[str, str], tuple[str, list[str]]] = {}  # file: delivery, its way
        self.copied: dict[str, str] = {}
        self.meant: dict[bytes, str] = {}

    def deliver(self) -> tuple[str, str]:
        number = len(self.ways)
        digest = self.chance.choice(
            (b"%016d" % self.chance.randrange(3), b"%016d" % (number + 100))
        )
        verdict = self.chance.choice(("ham", "unsure", "spam"))
        folder = self.chance.choice((INBOX, JUNK))
        if self.filing:
            folder = JUNK if verdict == "spam" else INBOX
        fresh = (
            not any(mail.digest == digest for mail in self.box.files.values())
            and digest > b"%016d" % 99
        )
        mail = Mail(
            digest, None if fresh and self.chance.random() < 0.3 else signed(verdict, f"id{number}")
        )
        name = self.box.put(folder, mail)
        self.ways[str(number)] = [way := [folder]]
        self.at[folder, name] = (str(number), way)
        return folder, name

    def look(self, *folders: str) -> None:
        """Scan these folders, in some order and some of them together."""
        left = list(folders)
        self.chance.shuffle(left)
        while left:
            size = self.chance.randint(1, len(left))
            self.box.scan(*left[:size])
            left = left[size:]

    def step(self) -> None:
        """Something happens, and is scanned."""
        if not self.at or self.chance.random() < 0.2:
            folder, _ = self.deliver()
            self.look(folder)
            return
        (source, name), (delivery, way) = self.chance.choice(sorted(self.at.items()))
        acts = [self.flag, self.remove, self.copy]
        # Else nothing tells which of the copies was moved.
        if self.copied.get(delivery, "new name") == "new name":
            acts += [self.move] * 2
        if delivery not in self.copied:  # or, under a new name, which was copied
            acts += [self.copy_and_expunge] * 2
        self.chance.choice(acts)(source, name, delivery, way)

    def mean(self, source: str, name: str, way: list[str]) -> None:
        if (taught := says(way)) is not None:
            self.meant[self.box.files[source, name].digest] = taught

    def elsewhere(self, source: str) -> str:
        return self.chance.choice([folder for folder in FOLDERS if folder != source])

    def move(self, source: str, name: str, delivery: str, way: list[str]) -> None:
        target = self.elsewhere(source)
        self.mean(source, name, [*way, target])
        del self.at[source, name]
        changed = self.box.rename(
            source, name, target, stem(name) + self.chance.choice(("", ":2,S", ",W=14"))
        )
        self.at[target, changed] = (delivery, [*way, target])
        self.look(source, target)

    def copy(self, source: str, name: str, delivery: str, way: list[str]) -> None:
        if delivery in self.copied:
            return
        self.copied[delivery] = self.chance.choice(("new name", "same name"))
        target = self.elsewhere(source)
        self.mean(source, name, [*way, target])
        made = self.box.put(
            target,
            self.box.files[source, name],
            name if self.copied[delivery] == "same name" else "",
        )
        self.at[target, made] = (delivery, [*way, target])
        self.look(target)

    def copy_and_expunge(self, source: str, name: str, delivery: str, way: list[str]) -> None:
        target = self.elsewhere(source)
        self.mean(source, name, [*way, target])
        mail = self.box.files[source, name]
        del self.at[source, name]
        if expunged_first := self.chance.random() < 0.3:
            del self.box.files[source, name]
            self.look(*self.chance.choice(((), (source,), (target,))))
        # Dovecot keeps the name where it can
        made = self.box.put(target, mail, self.chance.choice(("", name)))
        self.at[target, made] = (delivery, [*way, target])
        if not expunged_first:
            self.look(*self.chance.choice(((), (source,), (target,), (source, target))))
            del self.box.files[source, name]
        self.look(source, target)

    def flag(self, source: str, name: str, delivery: str, way: list[str]) -> None:
        del self.at[source, name]
        changed = self.box.rename(
            source, name, source, stem(name) + self.chance.choice((":2,S", ",S=9:2,FS", "!2,R", ""))
        )
        self.at[source, changed] = (delivery, way)
        self.look(source)

    def remove(self, source: str, name: str, delivery: str, way: list[str]) -> None:
        del self.at[source, name], self.box.files[source, name]
        self.look(source)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_at_rest_the_votes_are_what_people_meant(seed: int, steps: int) -> None:
    person = Person(seed)
    for _ in range(steps):
        person.step()
    person.box.scan()
    assert person.box.votes == person.meant


class Diary:
    """A reference for seldom scans. It knows of each message only where it was found, one after the
    other, and never that it left a folder and is back under the name it had at the next scan; so
    here it comes back under another name.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.filing = self.chance.random() < 0.5
        self.box = Mailbox(FILING if self.filing else NOT_FILING)
        self.mails = [self.mail(number) for number in range(self.chance.randint(1, 5))]
        self.at: list[tuple[str, str] | None] = [None for _ in self.mails]
        self.found: list[list[str]] = [[] for _ in self.mails]
        self.expected: dict[bytes, str] = {}
        self.before: set[tuple[str, str]] = set()

    def mail(self, number: int) -> Mail:
        if self.chance.random() < 0.3:
            return Mail(b"%016d" % number)
        return Mail(
            b"%016d" % (number // 2),
            signed(self.chance.choice(("ham", "unsure", "spam")), f"id{number}"),
        )

    def act(self) -> None:
        number = self.chance.randrange(len(self.mails))
        at, folder = self.at[number], self.chance.choice(FOLDERS)
        if at is None:
            self.at[number] = (folder, self.box.put(folder, self.mails[number]))
        elif self.chance.random() < 0.2:
            del self.box.files[at]
            self.at[number] = None
        elif self.chance.random() < 0.5 and (folder, at[1]) not in self.before:
            self.at[number] = (folder, self.box.rename(*at, folder))
        else:
            del self.box.files[at]
            self.at[number] = (folder, self.box.put(folder, self.mails[number]))
        self.before.update(self.box.files)

    def look(self, *folders: str) -> None:
        said: dict[bytes, set[str]] = {}
        for mail, at, found in zip(self.mails, self.at, self.found, strict=True):
            if at is not None and at[0] in folders and (not found or found[-1] != at[0]):
                found.append(at[0])
                taught = (
                    says(found) if len(found) > 1 else at_first(mail, at[0], filing=self.filing)
                )
                said.setdefault(mail.digest, set()).update([taught] if taught else [])
        self.expected |= {
            digest: labels.pop() for digest, labels in said.items() if len(labels) == 1
        }
        self.box.scan(*folders)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_however_seldom_somebody_looks_the_votes_follow_what_was_found(
    seed: int, steps: int
) -> None:
    diary = Diary(seed)
    for _ in range(steps):
        if diary.chance.random() < 0.6:
            diary.act()
        else:
            diary.look(*diary.chance.sample(FOLDERS, diary.chance.randint(1, len(FOLDERS))))
    diary.look(*FOLDERS)
    assert diary.box.votes == diary.expected
