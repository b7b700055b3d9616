"""The key, signed verdicts and the names of messages."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import keys
from spamguard.config.options import Action
from spamguard.errors import LedgerError
from spamguard.keys import (
    SignedVerdict,
    id_time,
    is_id,
    key_id,
    new_id,
    sign_verdict,
    verify_verdict,
)
from spamguard.records import Verdict
from tests.support.disks import needs_disks, small_disk
from tests.unit.bayes.support import repeatable

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


# ---- signed verdicts

SIGNING_KEY = b"k" * 32
DIGEST = b"d" * 16


def signed(
    label: str = "spam",
    log_odds: float = 6.5,
    action: Action = Action.TAG,
    name: str = "01J-x.y_z",
    **other: bytes,
) -> bytes:
    verdict = Verdict(label, 0.5, log_odds, {})
    return sign_verdict(
        other.get("key", SIGNING_KEY), verdict, action, name, other.get("digest", DIGEST)
    )


def test_the_value_has_its_form() -> None:
    found = re.fullmatch(rb"spam; id=01J-x\.y_z; k=([0-9a-f]{8}); s=[A-Za-z0-9_-]{20}", signed())
    assert found
    assert found[1] == key_id(SIGNING_KEY) != key_id(b"another key")


@repeatable
@given(
    st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True),
    st.floats(-1000, 1000),
    st.sampled_from(Action),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.binary(max_size=64),
)
def test_what_was_signed_is_read_again(
    label: str, log_odds: float, action: Action, name: str, digest: bytes
) -> None:
    found = verify_verdict(
        SIGNING_KEY, signed(label, log_odds, action, name, digest=digest), digest
    )
    assert found is not None
    assert (found.label, found.action, found.id) == (label, action, name)
    assert found.log_odds == pytest.approx(
        min(max(log_odds, -32767 / 256), 32767 / 256), abs=1 / 512
    )


def test_folding_and_blanks_do_no_harm() -> None:
    value = signed()
    folded = b"\r\n\t" + value.replace(b"; ", b";\r\n  ").replace(b"s=", b"s= ") + b" \r\n"
    plain = verify_verdict(SIGNING_KEY, value, DIGEST)
    assert plain is not None
    assert verify_verdict(SIGNING_KEY, folded, DIGEST) == plain
    assert verify_verdict(SIGNING_KEY, value.replace(b" ", b""), DIGEST) is not None


@pytest.mark.parametrize("byte", range(len(signed())))
def test_no_byte_can_be_changed(byte: int) -> None:
    value = signed()
    for other in b"aZ09_-;= \xff\0":
        changed = value[:byte] + bytes((other,)) + value[byte + 1 :]
        if changed.translate(None, b" ") != value.translate(None, b" "):
            assert verify_verdict(SIGNING_KEY, changed, DIGEST) is None


def test_another_key_message_class_or_id_does_not_verify() -> None:
    value = signed()
    assert verify_verdict(SIGNING_KEY, value, DIGEST) == SignedVerdict(
        "spam", 6.5, Action.TAG, "01J-x.y_z"
    )
    assert verify_verdict(b"other" * 6, value, DIGEST) is None
    assert (
        verify_verdict(
            b"other" * 6, value.replace(key_id(SIGNING_KEY), key_id(b"other" * 6)), DIGEST
        )
        is None
    )
    assert verify_verdict(SIGNING_KEY, value, b"e" * 16) is None
    assert verify_verdict(SIGNING_KEY, value.replace(b"spam;", b"ham;"), DIGEST) is None
    assert verify_verdict(SIGNING_KEY, value.replace(b"01J", b"02J"), DIGEST) is None


def test_the_border_between_label_and_id_is_sealed() -> None:
    value = signed("spam", name="ab")
    assert (
        verify_verdict(SIGNING_KEY, value.replace(b"spam; id=ab", b"spama; id=b"), DIGEST) is None
    )


def test_the_same_verdict_looks_different_under_every_id() -> None:
    """Who could compare masked payloads of two mails could tell whether the second was judged more
    spammy.
    """
    masked = {signed(name=f"id{number}")[-20:-16] for number in range(50)}
    assert len(masked) == 50


def test_an_action_that_is_not_known_is_no_signature() -> None:
    names = {action: signed(action=action) for action in Action}
    assert {verify_verdict(SIGNING_KEY, value, DIGEST).action for value in names.values()} == set(
        Action
    )


@repeatable
@given(st.binary(max_size=200))
def test_rubbish_is_no_signature(value: bytes) -> None:
    assert verify_verdict(SIGNING_KEY, value, DIGEST) is None
    assert verify_verdict(SIGNING_KEY, signed() + value, DIGEST) in (
        None,
        verify_verdict(SIGNING_KEY, signed(), DIGEST),
    )


def test_a_very_long_value_is_no_signature() -> None:
    assert verify_verdict(SIGNING_KEY, signed() + b"x" * 10_000_000, DIGEST) is None


# ---- names of messages

TIMES = st.floats(0, 2**48 / 1000 - 1)
RANDOM = st.binary(min_size=4, max_size=4)


@given(TIMES, RANDOM)
def test_every_name_has_the_form_of_one(now: float, random: bytes) -> None:
    assert is_id(new_id(now, random))


@given(TIMES, TIMES, RANDOM, RANDOM)
def test_names_sort_by_time(first: float, second: float, one: bytes, other: bytes) -> None:
    if int(first * 1000) < int(second * 1000):
        assert new_id(first, one) < new_id(second, other)


@given(TIMES, RANDOM)
def test_names_tell_when_they_were_made(now: float, random: bytes) -> None:
    assert id_time(new_id(now, random)) == int(now * 1000) / 1000


def test_the_random_part_tells_names_of_one_moment_apart() -> None:
    assert new_id(1e9, b"\0\0\0\0") != new_id(1e9, b"\0\0\0\1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../../etc/passwd",
        "0" * 15,
        "0" * 17,
        "A" * 16,
        "w" * 16,
        "0" * 16 + "\n",
        "000000000000000/",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert not is_id(text)


def test_only_the_key_makes_a_probe_and_for_minutes_only() -> None:
    now = 1_800_000_000.0
    name = keys.make_probe_id(KEY, now, b"abcd")
    head = f"From: x\r\nMessage-ID: {name}\r\nSubject: y\r\n".encode()
    assert keys.is_probe(KEY, head, now + 60)
    assert keys.is_probe(KEY, head.replace(b"\r\n", b"\n"), now)
    assert not keys.is_probe(KEY, head, now + 3600)
    assert not keys.is_probe(KEY, head, now - 3600)
    assert not keys.is_probe(KEY[::-1], head, now)
    assert not keys.is_probe(KEY, head.replace(b"Message-ID", b"References"), now)
    place = head.index(b"<")
    for offset in range(1, len(name) - 1):
        changed = bytearray(head)
        changed[place + offset] ^= 1
        assert not keys.is_probe(KEY, bytes(changed), now), bytes(changed)
