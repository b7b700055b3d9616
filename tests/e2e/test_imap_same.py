"""The same mail programs, seen in Maildirs and over IMAP on one Dovecot: both teach the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.config.accounts import Account, Mode
from spamguard.config.options import Settings
from spamguard.engine.filter import Filter
from spamguard.folders import broker
from spamguard.folders.roles import DovecotSettings
from spamguard.folders.watcher import Watcher
from spamguard.imap import account as accounts
from spamguard.imap.hub import Hub
from spamguard.imap.judge import Answer
from tests.e2e import dovecot, imap_accounts
from tests.e2e.imap_accounts import BARE
from tests.e2e.moving import append, copy, mail_program, move, needs_dovecot, ok, sibling, uid
from tests.e2e.test_folders_any_order import CLASSES, Looking, quoted
from tests.support import imap_proxy
from tests.unit.filters import KEY
from tests.unit.folders.watched import rest

pytestmark = [needs_dovecot, pytest.mark.slow]

STEPS = 60
OLD = 12  # messages that were there before
FOLDERS = {folder.format("."): label for folder, label in CLASSES.items()}


class LookingByImap(Looking):
    """The same for an account. All that comes is ham, and nothing is moved."""

    def __init__(self, account: Account, state: Path) -> None:
        self._account, self._state = account, state
        super().__init__(dovecot.Dovecot(state, 0, 0), state)

    def _open(self) -> None:
        opened = self._opened.enter_context
        self.filter = opened(Filter.open(self._state, _bits=14, _durable=False))
        self._hub = opened(closing(Hub(self._state, [self._account], lambda *_: Answer())))
        self._hub.watches[0].step()
        mailboxes = opened(closing(self._hub.open_mailboxes()))
        settings = Settings(self._state, (), watch=broker.account_watches([self._account]))
        arguments = (self.filter, settings, mailboxes, lambda: None, 0.01, DovecotSettings())
        self._watcher = opened(closing(Watcher(*arguments)))

    def rest(self) -> None:
        for _ in range(3):  # what is old is read where it was, then where it is
            self._hub.watches[0].step()
            assert not self._hub.watches[0].status.trouble
            rest(self._watcher)
            self._watcher.run_once(0.001)  # once it waits, what it has read is known


@contextmanager
def both(state: Path, extra: str, unknown: Sequence[str]) -> Iterator[tuple]:
    """A mail program, and both watchers of its mail; there is old mail already."""
    with (
        imap_accounts.server(extra) as server,
        imap_proxy.before(server.imap_port, unknown) as proxy,
        mail_program(server) as client,
    ):
        for folder in FOLDERS.keys() - {"INBOX", "Junk"}:
            client.create(quoted(folder))
        for number in range(OLD):
            ok(client.append(list(FOLDERS)[number % 4], "", "", sibling(1000 + number)))
        for place in (state, state / "maildir", state / "imap"):
            place.mkdir(0o700)
            keys.store_key(place / "key", KEY)
        through = replace(server, imap_port=proxy.port)
        account = imap_accounts.account(through, state, mode=Mode.LOOK)
        with (
            closing(Looking(server, state / "maildir")) as maildir,
            closing(LookingByImap(account, state / "imap")) as by_imap,
        ):
            yield client, maildir, by_imap


@pytest.mark.parametrize(
    ("seed", "extra", "unknown"),
    [(1, "", ()), (2, BARE.format("IMAP4rev1 IDLE UIDPLUS"), ("X-GUID",))],
)
def test_same_lessons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, extra: str, unknown: Sequence[str]
) -> None:
    monkeypatch.setattr(accounts, "POLL_SECONDS", 0.0)
    chance, script = random.Random(seed), list[str]()
    lies = {1000 + number: list(FOLDERS)[number % 4] for number in range(OLD)}
    with both(tmp_path / "state", extra, unknown) as (client, *watchers):
        for watcher in watchers:
            watcher.rest()
        for step in range(STEPS):
            number = chance.choice(list(lies))
            source, what = lies[number], chance.random()
            target = chance.choice([name for name in FOLDERS if name != source])
            if what < 0.2:
                number, target = step, chance.choice(["INBOX", "Junk", "Projects"])
                ok(client.append(quoted(target), "", "", sibling(number)))
                lies[number] = target
                script.append(f"{number} comes into {target}")
            elif what < 0.8:
                # Nobody has read what is old: a copy that is appended is another message.
                way = chance.choice([move, copy] if number >= 1000 else [move, copy, append])
                way(client, number, quoted(source), quoted(target))
                lies[number] = target
                script.append(f"{number} {way.__name__} {source} -> {target}")
            elif what < 0.9:
                ok(client.select(quoted(source)))
                flag = chance.choice([r"\Seen", r"\Flagged", r"\Deleted"])
                ok(client.uid("STORE", uid(client, number), "+FLAGS", f"({flag})"))
                if flag == r"\Deleted":
                    ok(client.expunge())
                    del lies[number]
                script.append(f"{number} {flag} in {source}")
            else:
                watchers[step % 2].anew()
            for watcher in watchers:
                watcher.rest()
            in_maildirs, by_imap = (watcher.said() for watcher in watchers)
            assert by_imap == in_maildirs, script
        assert {"ham", "spam"} <= set(in_maildirs.values())
