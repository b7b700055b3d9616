"""Tokens, links and sessions: shown once, stored as hashes, used up, revoked, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.web.auth import (
    IDLE_SECONDS,
    CredentialKind,
    CredentialStore,
    Person,
)

ANNA, OLGA = Person("anna"), Person("olga", operator=True)
NOW = 1_800_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CredentialStore]:
    made = CredentialStore.open(tmp_path)
    yield made
    made.close()


def test_an_unused_session_ends(store: CredentialStore) -> None:
    text = store.create(CredentialKind.SESSION, ANNA, NOW, expires=NOW + 10**7)
    credential = store.find(CredentialKind.SESSION, text, NOW + IDLE_SECONDS - 1)
    assert credential
    store.note_use(credential, NOW + IDLE_SECONDS - 1)
    assert store.find(CredentialKind.SESSION, text, NOW + 2 * IDLE_SECONDS - 2)
    assert store.find(CredentialKind.SESSION, text, NOW + 2 * IDLE_SECONDS) is None


def test_there_is_an_end_to_sessions(store: CredentialStore) -> None:
    texts = [
        store.create(CredentialKind.SESSION, ANNA, NOW + n, expires=NOW + 10**6) for n in range(25)
    ]
    other = store.create(CredentialKind.SESSION, OLGA, NOW, expires=NOW + 10**6)
    assert [bool(store.find(CredentialKind.SESSION, text, NOW + 30)) for text in texts] == [
        False
    ] * 5 + [True] * 20
    assert store.find(CredentialKind.SESSION, other, NOW + 30)
