"""A mail program that does anything in any order in a real Dovecot: what is learnt is what a person
would say that it meant.
"""

from __future__ import annotations

import imaplib
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from spamguard.config.options import Settings, Watch
from spamguard.engine.filter import Filter
from spamguard.folders.maildir import Changes, LocalMailboxes
from spamguard.folders.roles import encode_utf7
from spamguard.folders.watcher import Watcher
from tests.e2e import dovecot
from tests.e2e.dovecot import Dovecot
from tests.e2e.moving import append, copy, mail_program, move, needs_dovecot, ok, sibling, uid
from tests.unit.folders.watched import rest

STEPS = 80
NESTED = (
    "mail_location = maildir:{root}/mail/%n:LAYOUT=fs\nnamespace inbox {{\n  separator = /\n}}\n"
)
CLASSES = {
    "INBOX": "ham", "Archive": "ham", "Archive{}2024": "ham", "Junk": "spam", "迷惑メール": "spam",
    "Werbung": "spam", "Trash": "",
    "Projects": "", "Lists{}Python": "", "Mail & mehr": "", "Entwürfe": None, "Sent": None,
}  # fmt: skip
"""Folders, their levels parted by {}; "": of no class, None: not looked at."""


@dataclass(slots=True)
class Message:
    """folder: where it is, "" once it is deleted. watched: the last of its folders that are looked
    at. label: of the last that has a class. said: what was meant by its moves.
    """

    folder: str
    watched: str
    label: str
    said: str = ""

    def move(self, folder: str, classes: dict[str, str | None]) -> None:
        self.folder = folder
        label, before = classes[folder], classes[self.watched]
        if label is None:
            return
        kept = label == before == "ham" and folder != self.watched
        if label and (kept or self.label not in ("", label) or (label == "spam" and not before)):
            self.said = label
        self.label = label or self.label
        self.watched = folder


class Looking:
    """A watcher that is asked to rest after each thing that is done, and is started anew now and
    then.
    """

    def __init__(self, server: Dovecot, state: Path) -> None:
        self._watch = Watch(f"{server.root}/mail/*")
        self._state = state
        self._opened = ExitStack()
        self._open()

    def _open(self) -> None:
        self.filter = self._opened.enter_context(Filter.open(self._state, _bits=14, _durable=False))
        mailboxes = self._opened.enter_context(closing(LocalMailboxes([self._watch])))
        settings = Settings(self._state, (), watch=(self._watch,))
        self._watcher = self._opened.enter_context(
            closing(Watcher(self.filter, settings, mailboxes, lambda: None, 0.01))
        )

    def anew(self) -> None:
        self.close()
        self._open()

    def lose_events(self) -> None:
        self._watcher.take_changes(Changes(everything=True))

    def rest(self) -> None:
        rest(self._watcher)

    def said(self) -> dict[bytes, str]:
        last = {vote.digest: vote.label for vote in self.filter.ledger.all_votes()}
        return {digest: label for digest, label in last.items() if label is not None}

    def close(self) -> None:
        self._opened.close()


def quoted(folder: str) -> str:
    return f'"{encode_utf7(folder)}"'


@contextmanager
def looking(
    layout: str, separator: str, state: Path
) -> Iterator[tuple[imaplib.IMAP4, Looking, dict[str, str | None]]]:
    """With all folders there are."""
    classes = {folder.format(separator): label for folder, label in CLASSES.items()}
    with (
        dovecot.running(lambda root: layout.format(root=root)) as server,
        mail_program(server) as client,
    ):
        for folder in classes.keys() - {"INBOX", "Junk"}:
            ok(client.create(quoted(folder)))
        with closing(Looking(server, state)) as watcher:
            watcher.rest()
            yield client, watcher, classes


@needs_dovecot
@pytest.mark.parametrize(("layout", "separator", "seed"), [("", ".", 1), (NESTED, "/", 2)])
def test_votes_are_what_was_meant(tmp_path: Path, layout: str, separator: str, seed: int) -> None:
    chance, messages = random.Random(seed), list[Message]()
    with looking(layout, separator, tmp_path / "state") as (client, watcher, classes):
        digests = [watcher.filter._reader.digest(sibling(number)) for number in range(STEPS)]
        for _ in range(STEPS):
            there = [number for number, one in enumerate(messages) if one.folder]
            number = chance.choice(there) if there else 0
            what = chance.random()
            if not there or what < 0.2:
                folder = chance.choice(["INBOX", "Junk", "Projects"])
                ok(
                    client.append(
                        quoted(folder), chance.choice(["", r"(\Seen)"]), "", sibling(len(messages))
                    )
                )
                messages.append(Message(folder, folder, classes[folder] or ""))
            elif what < 0.8:
                one = messages[number]
                folder = chance.choice([name for name in classes if name != one.folder])
                chance.choice([move, copy, append])(
                    client, number, quoted(one.folder), quoted(folder)
                )
                one.move(folder, classes)
            elif what < 0.9:
                ok(client.select(quoted(messages[number].folder)))
                sign = chance.choice([r"\Seen", r"\Flagged", "$Junk", "NonJunk", r"\Deleted"])
                ok(client.uid("STORE", uid(client, number), "+FLAGS", f"({sign})"))
                if sign == r"\Deleted":
                    ok(client.expunge())
                    messages[number].folder = ""
            else:
                chance.choice([watcher.anew, watcher.lose_events])()
            watcher.rest()
            assert watcher.said() == {
                digests[number]: one.said for number, one in enumerate(messages) if one.said
            }
        assert {one.said for one in messages} == {"", "ham", "spam"}
