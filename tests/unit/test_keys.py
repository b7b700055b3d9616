"""The key, signed verdicts and the names of messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import keys
from spamguard.config.options import Action
from spamguard.errors import LedgerError
from spamguard.keys import (
    id_time,
    new_id,
    sign_verdict,
    verify_verdict,
)
from spamguard.records import Verdict
from tests.support.disks import needs_disks, small_disk
from tests.unit.bayes.support import repeatable

KEY = bytes(range(32))


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


def test_the_border_between_label_and_id_is_sealed() -> None:
    value = signed("spam", name="ab")
    assert (
        verify_verdict(SIGNING_KEY, value.replace(b"spam; id=ab", b"spama; id=b"), DIGEST) is None
    )


@repeatable
@given(st.binary(max_size=200))
def test_rubbish_is_no_signature(value: bytes) -> None:
    assert verify_verdict(SIGNING_KEY, value, DIGEST) is None
    assert verify_verdict(SIGNING_KEY, signed() + value, DIGEST) in (
        None,
        verify_verdict(SIGNING_KEY, signed(), DIGEST),
    )


# ---- names of messages

TIMES = st.floats(0, 2**48 / 1000 - 1)
RANDOM = st.binary(min_size=4, max_size=4)


@given(TIMES, TIMES, RANDOM, RANDOM)
def test_names_sort_by_time(first: float, second: float, one: bytes, other: bytes) -> None:
    if int(first * 1000) < int(second * 1000):
        assert new_id(first, one) < new_id(second, other)


@given(TIMES, RANDOM)
def test_names_tell_when_they_were_made(now: float, random: bytes) -> None:
    assert id_time(new_id(now, random)) == int(now * 1000) / 1000


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
