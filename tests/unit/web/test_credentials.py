"""Tokens, links and sessions: shown once, stored as hashes, used up, revoked, bounded."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.database import open_database
from spamguard.errors import AccessError
from spamguard.web import auth
from spamguard.web.auth import (
    CREDENTIALS_FILE,
    IDLE_SECONDS,
    LINK_SECONDS,
    SEEN_UPDATE_SECONDS,
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


def test_a_token_names_its_person(store: CredentialStore) -> None:
    text = store.create(CredentialKind.TOKEN, OLGA, NOW, name="monitor")
    credential = store.find(CredentialKind.TOKEN, text, NOW + 10**8)
    assert credential is not None
    assert (credential.person, credential.name, credential.expires) == (OLGA, "monitor", 0)


def test_secrets_are_not_in_the_file(store: CredentialStore, tmp_path: Path) -> None:
    texts = [store.create(kind, ANNA, NOW, name="x", expires=NOW + 60) for kind in CredentialKind]
    raw = (tmp_path / CREDENTIALS_FILE).read_bytes()
    assert all(text.partition(".")[2].encode() not in raw for text in texts)
    assert stat.S_IMODE((tmp_path / CREDENTIALS_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [CREDENTIALS_FILE]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"),
        lambda t: t.upper(),
        lambda t: "",
        lambda t: t + "\0",
    ],
)
def test_another_text_is_nobodys(store: CredentialStore, change) -> None:
    text = store.create(CredentialKind.TOKEN, ANNA, NOW, name="x")
    assert store.find(CredentialKind.TOKEN, text, NOW)
    assert store.find(CredentialKind.TOKEN, change(text), NOW) is None
    assert store.find(CredentialKind.TOKEN, "0" * 16 + "." + "A" * 43, NOW) is None


def test_one_kind_is_not_taken_for_another(store: CredentialStore) -> None:
    texts = {kind: store.create(kind, ANNA, NOW, name="x") for kind in CredentialKind}
    assert {
        (kind, other)
        for kind in CredentialKind
        for other in CredentialKind
        if store.find(kind, texts[other], NOW)
    } == {(kind, kind) for kind in CredentialKind}


def test_they_end(store: CredentialStore) -> None:
    text = store.create(CredentialKind.TOKEN, ANNA, NOW, name="x", expires=NOW + 60)
    assert store.find(CredentialKind.TOKEN, text, NOW + 59)
    assert store.find(CredentialKind.TOKEN, text, NOW + 60) is None
    store.create(CredentialKind.TOKEN, ANNA, NOW + 60, name="x")  # the name is free again


def test_an_unused_session_ends(store: CredentialStore) -> None:
    text = store.create(CredentialKind.SESSION, ANNA, NOW, expires=NOW + 10**7)
    credential = store.find(CredentialKind.SESSION, text, NOW + IDLE_SECONDS - 1)
    assert credential
    store.note_use(credential, NOW + IDLE_SECONDS - 1)
    assert store.find(CredentialKind.SESSION, text, NOW + 2 * IDLE_SECONDS - 2)
    assert store.find(CredentialKind.SESSION, text, NOW + 2 * IDLE_SECONDS) is None


def test_it_is_not_noted_each_time(store: CredentialStore) -> None:
    text = store.create(CredentialKind.SESSION, ANNA, NOW, expires=NOW + 10**7)
    credential = store.find(CredentialKind.SESSION, text, NOW)
    assert credential
    store.note_use(credential, NOW + SEEN_UPDATE_SECONDS - 1)
    assert store.find(CredentialKind.SESSION, text, NOW) == credential


def test_a_link_is_used_once(store: CredentialStore) -> None:
    text = store.create(CredentialKind.LINK, ANNA, NOW, expires=NOW + 600)
    assert store.redeem(text, NOW + 600) is None
    assert store.redeem(text, NOW + 599)
    assert store.redeem(text, NOW + 599) is None


def test_of_many_at_once_one_has_it(store: CredentialStore, tmp_path: Path) -> None:
    text = store.create(CredentialKind.LINK, ANNA, NOW, expires=NOW + 600)
    found: list[bool] = []

    def burn() -> None:
        own = CredentialStore.open(tmp_path)
        try:
            found.append(own.redeem(text, NOW) is not None)
        finally:
            own.close()

    threads = [threading.Thread(target=burn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False] * 7 + [True]


def test_names_are_their_own(store: CredentialStore) -> None:
    store.create(CredentialKind.TOKEN, ANNA, NOW, name="x")
    with pytest.raises(AccessError, match="already"):
        store.create(CredentialKind.TOKEN, OLGA, NOW, name="x")
    assert store.revoke("x")
    assert not store.revoke("x")
    store.create(CredentialKind.TOKEN, OLGA, NOW, name="x")


def test_a_revoked_token_is_refused_at_once(store: CredentialStore, tmp_path: Path) -> None:
    text = store.create(CredentialKind.TOKEN, ANNA, NOW, name="x")
    other = CredentialStore.open(tmp_path)
    assert other.find(CredentialKind.TOKEN, text, NOW)
    store.revoke("x")
    assert other.find(CredentialKind.TOKEN, text, NOW) is None
    other.close()


def test_there_is_an_end_to_sessions_and_tokens(
    store: CredentialStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        store.create(CredentialKind.SESSION, ANNA, NOW + n, expires=NOW + 10**6) for n in range(25)
    ]
    other = store.create(CredentialKind.SESSION, OLGA, NOW, expires=NOW + 10**6)
    assert [bool(store.find(CredentialKind.SESSION, text, NOW + 30)) for text in texts] == [
        False
    ] * 5 + [True] * 20
    assert store.find(CredentialKind.SESSION, other, NOW + 30)
    monkeypatch.setitem(auth._MAX_CREDENTIALS, CredentialKind.SESSION, (20, 3))
    store.create(CredentialKind.SESSION, Person("ben"), NOW + 40, expires=NOW + 10**6)
    assert (
        len(
            [
                credential
                for credential in store.list_valid(NOW + 41)
                if credential.kind is CredentialKind.SESSION
            ]
        )
        == 3
    )
    monkeypatch.setattr(auth, "_MAX_TOKENS", 1)
    store.create(CredentialKind.TOKEN, ANNA, NOW, name="a")
    with pytest.raises(AccessError, match="revoke some"):
        store.create(CredentialKind.TOKEN, ANNA, NOW, name="b")


def test_a_person_is_sent_away(store: CredentialStore) -> None:
    gone = [
        store.create(kind, ANNA, NOW, expires=NOW + 600)
        for kind in (CredentialKind.SESSION, CredentialKind.LINK)
    ]
    stays = [
        store.create(CredentialKind.TOKEN, ANNA, NOW, name="a"),
        store.create(CredentialKind.SESSION, OLGA, NOW, expires=NOW + 600),
    ]
    assert store.end_sessions("anna") == 2
    assert [
        store.find(kind, text, NOW)
        for kind, text in zip((CredentialKind.SESSION, CredentialKind.LINK), gone, strict=True)
    ] == [
        None,
        None,
    ]
    assert all(
        store.find(kind, text, NOW)
        for kind, text in zip((CredentialKind.TOKEN, CredentialKind.SESSION), stays, strict=True)
    )


def test_it_stays_over_restarts(tmp_path: Path) -> None:
    first = CredentialStore.open(tmp_path)
    text, key = first.create(CredentialKind.SESSION, ANNA, NOW, expires=NOW + 600), first.key
    first.close()
    second = CredentialStore.open(tmp_path)
    assert second.find(CredentialKind.SESSION, text, NOW)
    assert second.key == key
    assert len(key) == 32
    second.close()


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_damaged_file_gets_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CREDENTIALS_FILE).write_bytes(content)
    with pytest.raises(AccessError, match=CREDENTIALS_FILE):
        CredentialStore.open(tmp_path)


def test_a_damaged_row_gets_an_error(tmp_path: Path, store: CredentialStore) -> None:
    """By `spamguard token list`, in one line."""
    store.create(CredentialKind.TOKEN, ANNA, NOW, name="monitor")
    with closing(open_database(tmp_path / CREDENTIALS_FILE, 1.0)) as db:
        db.execute("UPDATE credentials SET kind = 'tNken'")
    with pytest.raises(AccessError, match=CREDENTIALS_FILE):
        store.list_valid(NOW)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_made_by_root_belong_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    code = (
        "import sys; from pathlib import Path; from spamguard.web.auth import *\n"
        "store = CredentialStore.open(Path(sys.argv[1]))\n"
        "store.create(CredentialKind.TOKEN, Person('a'), 1, name='x'); store.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}


def test_a_link_made_while_the_clock_was_ahead_does_not_last(store: CredentialStore) -> None:
    text = store.create(CredentialKind.LINK, ANNA, NOW + 10**7, expires=NOW + 10**7 + LINK_SECONDS)
    assert store.find(CredentialKind.LINK, text, NOW) is None
    assert store.redeem(text, NOW) is None
