"""The key: made once, private, never replaced, and missed in words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spamguard import keys, storage
from spamguard.errors import LedgerError
from tests.support.disks import needs_disks, small_disk

KEY = bytes(range(32))


def test_it_is_made_when_missing_and_then_stays(tmp_path: Path) -> None:
    key = keys.load_key(tmp_path / "key", create=True)
    assert len(key) == 32
    assert (
        keys.load_key(tmp_path / "key", create=True)
        == key
        == keys.load_key(tmp_path / "key", create=False)
    )
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]
    assert keys.load_key(tmp_path / "other", create=True) != key


def test_a_key_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    assert keys.store_key(tmp_path / "key", KEY) == KEY
    assert keys.store_key(tmp_path / "key", KEY[::-1]) == KEY
    assert (tmp_path / "key").read_bytes() == KEY


def test_it_is_made_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bare chroot, in which an image is made."""
    monkeypatch.setattr(storage, "_FD_DIRECTORY", tmp_path / "none")
    assert keys.store_key(tmp_path / "key", KEY) == KEY
    assert keys.store_key(tmp_path / "key", KEY[::-1]) == KEY
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_many_who_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(keys.load_key(tmp_path / "key", create=True)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1


def test_a_missing_key_is_not_made_beside_a_ledger_that_needs_it(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"key: the key is missing.*backup"):
        keys.load_key(tmp_path / "key", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", KEY[:-1], KEY + b"\n"])
def test_what_is_no_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(LedgerError, match="not a key of 32 bytes"):
        keys.load_key(tmp_path / "key", create=True)
    assert (tmp_path / "key").read_bytes() == content


def test_what_has_no_end_is_not_read_to_it(tmp_path: Path) -> None:
    """Root looks at the state directory of a daemon, who may put anything there."""
    (tmp_path / "key").symlink_to("/dev/zero")
    with pytest.raises(LedgerError, match="not a key of 32 bytes"):
        keys.load_key(tmp_path / "key", create=True)


def test_a_place_that_cannot_be_read_or_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        keys.load_key(tmp_path, create=True)
    with pytest.raises(LedgerError, match="cannot be written"):
        keys.load_key(tmp_path / "nowhere" / "key", create=True)

    def read_only(*_arguments: object, **_settings: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.open", read_only)
    with pytest.raises(LedgerError, match="Read-only file system"):
        keys.load_key(tmp_path / "key", create=True)


@needs_disks
def test_a_full_disk_is_not_the_wrong_directory(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "fill").write_bytes(bytes(16 << 10))
        with pytest.raises(
            LedgerError, match=r"cannot be written \(No space left on device\): make room"
        ):
            keys.load_key(disk / "key", create=True)


def test_derived_keys_and_the_fingerprint_tell_nothing_of_each_other() -> None:
    found = [
        keys.derive_key(KEY, b"tokens"),
        keys.derive_key(KEY, b"digest"),
        keys.derive_key(KEY[::-1], b"tokens"),
        KEY,
    ]
    assert len(set(found)) == 4
    assert {len(one) for one in found} == {32}
    assert keys.key_fingerprint(KEY) != keys.key_fingerprint(KEY[::-1])
    assert bytes.fromhex(keys.key_fingerprint(KEY)) not in b"".join(found)
