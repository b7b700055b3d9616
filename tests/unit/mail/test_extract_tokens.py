"""Token hashes: equal to a slow reference written from the definition, and keyed."""

from __future__ import annotations

import re
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.extract import TokenHasher, TokenRun, narrow_hashes
from tests.unit.mail.support import KEY, repeatable

WORD = 2**64 - 1
TOKEN = re.compile(rb"[a-zA-Z0-9'$_\-!%\x80-\xff]+")


class Reference:
    """The hash of one token, one byte at a time, in Python's own integers."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        material = blake2b(b"multipliers", key=key, digest_size=64).digest()
        self.m = [int.from_bytes(material[at : at + 8], "little") | 1 for at in range(0, 64, 8)]

    def seed(self, section: bytes) -> int:
        return int.from_bytes(
            blake2b(b"section:" + section, key=self.key, digest_size=8).digest(), "little"
        )

    def token(self, token: bytes, section: bytes) -> int:
        first, second, last, length, *_, final = self.m
        value = folded(((number(token[:8]) ^ self.seed(section)) * first) & WORD)
        if len(token) > 8:
            value = folded(((value ^ number(token[8:16])) * second) & WORD)
            value ^= number(token[-8:]) ^ (len(token) * length & WORD)
            value = folded((value * last) & WORD)
        return folded((value * final) & WORD)

    def pair(self, left: int, right: int, gap: int) -> int:
        return (
            folded((left * self.m[4] + right * self.m[5] + gap * self.m[6]) & WORD) * self.m[7]
            & WORD
        )


def texts_of(run: TokenRun) -> list[str]:
    return list(map(run.token_text, range(len(run.hashes))))


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def folded(value: int) -> int:
    return value ^ (value >> 32)


section_lists = st.lists(
    st.tuples(st.sampled_from((b"", b"subject", b"from", b"x")), st.binary(max_size=80)),
    min_size=1,
    max_size=5,
)
texts = st.lists(st.text("ab$-! \n\xe4", max_size=60).map(str.encode), min_size=1, max_size=4)


@repeatable
@given(section_lists)
def test_hashes_equal_the_reference(sections: list[tuple[bytes, bytes]]) -> None:
    reference = Reference(KEY)
    run = TokenHasher(KEY).hash_tokens(sections)
    expected = [
        reference.token(token, name) for name, text in sections for token in TOKEN.findall(text)
    ]
    assert run.hashes.tolist() == expected
    counts = [len(TOKEN.findall(text)) for _, text in sections]
    assert np.diff(run.borders, prepend=0).tolist() == counts


@repeatable
@given(texts)
def test_pairs_equal_the_reference(parts: list[bytes]) -> None:
    hasher, reference = TokenHasher(KEY), Reference(KEY)
    hashes = hasher.hash_tokens([(b"", b" ".join(parts))]).hashes
    single = hashes.tolist()
    for gap in (0, 1, 3):
        expected = [
            reference.pair(left, right, gap)
            for left, right in zip(single, single[gap + 1 :], strict=False)
        ]
        assert hasher.hash_pairs(hashes[: -gap - 1], hashes[gap + 1 :], gap).tolist() == expected


def windows(text: bytes) -> list[bytes]:
    """Five characters at a time of a text whose blanks are put together, fewer where they take more
    than eight bytes.
    """
    text = b" ".join(text.split())[:2000]
    heads = [at for at, byte in enumerate(text) if byte & 0xC0 != 0x80]
    borders = [*heads, len(text)]
    pieces = []
    for at, start in enumerate(heads[:-4]):
        fitting = [end for end in borders[at + 1 : at + 6] if end - start <= 8]
        pieces.append(text[start : max(fitting)] if fitting else text[start : start + 8])
    return pieces


_characters = st.text("ab \n\u00e4\u0436\u0e01\u4eca\U0001f600", max_size=40).map(str.encode)


@repeatable
@given(_characters | st.binary(max_size=60))
def test_grams_equal_the_reference(text: bytes) -> None:
    hasher, reference = TokenHasher(KEY), Reference(KEY)
    kept = [letters for letters in windows(text) if reference.token(letters, b"letters") % 4 == 0]
    run = hasher.hash_grams(text)
    assert run.hashes.tolist() == [reference.token(letters, b"letters") for letters in kept]
    assert texts_of(run) == [
        "letters:" + letters.replace(b" ", b"_").decode("utf-8", "replace") for letters in kept
    ]


def test_grams_are_made_of_the_start_of_a_text_and_one_in_four_is_kept() -> None:
    words = b" ".join(b"%05d" % (number * 7919 % 100_000) for number in range(2000))
    hasher = TokenHasher(KEY)
    start = hasher.hash_grams(words[:2000])
    assert hasher.hash_grams(words).hashes.tolist() == start.hashes.tolist()
    assert 400 < len(start.hashes) < 600
    assert (
        hasher.hash_grams(b" \n" * 5000 + words.replace(b" ", b"\r\n\t  ")).hashes.tolist()
        == start.hashes.tolist()
    )
    assert set(texts_of(TokenHasher(b"another").hash_grams(words))) != set(texts_of(start))


def test_thirty_bits_are_counted() -> None:
    hashes = TokenHasher(KEY).hash_tokens([(b"", b"one two three")]).hashes
    assert narrow_hashes(hashes).tolist() == [value >> 34 for value in hashes.tolist()]


def test_another_key_gives_unrelated_hashes() -> None:
    sections = [(b"", b" ".join(str(number).encode() for number in range(2000)))]
    first, second = (
        narrow_hashes(TokenHasher(key).hash_tokens(sections).hashes) for key in (b"one", b"other")
    )
    assert not set(first.tolist()) & set(second.tolist())
    agreeing_bits = np.bitwise_count(~(first ^ second) & np.uint32(2**30 - 1)).mean()
    assert 14.8 < agreeing_bits < 15.2


def test_the_same_word_in_two_sections_is_two_tokens() -> None:
    run = TokenHasher(KEY).hash_tokens(
        [(b"", b"offer"), (b"subject", b"offer"), (b"from", b"offer")]
    )
    assert len(set(run.hashes.tolist())) == 3


def test_tokens_of_up_to_24_bytes_are_exact() -> None:
    hasher = TokenHasher(KEY)
    for length in range(1, 25):
        changed = {
            hashed(hasher, b"a" * at + b"b" + b"a" * (length - at - 1)) for at in range(length)
        }
        assert len(changed | {hashed(hasher, b"a" * length)}) == length + 1
    assert len({hashed(hasher, b"a" * length) for length in range(1, 200)}) == 199


def hashed(hasher: TokenHasher, token: bytes) -> int:
    return int(hasher.hash_tokens([(b"", token)]).hashes[0])


def test_hashes_of_many_tokens_rarely_meet() -> None:
    words = b" ".join(b"w%d" % number for number in range(100_000))
    distinct = len(np.unique(narrow_hashes(TokenHasher(KEY).hash_tokens([(b"", words)]).hashes)))
    assert 100_000 - distinct < 30  # by chance 100,000² / 2³¹ ≈ 5


@pytest.mark.parametrize("text", [b"", b" ", b"\n\n", b"...", b"\0"])
def test_no_text_no_tokens(text: bytes) -> None:
    assert TokenHasher(KEY).hash_tokens([(b"", text)]).hashes.tolist() == []


def test_names_show_section_and_token() -> None:
    run = TokenHasher(KEY).hash_tokens(
        [(b"", b"one"), (b"", b""), (b"subject", "zwei drüben".encode())]
    )
    assert texts_of(run) == ["one", "subject:zwei", "subject:drüben"]


def test_scripts_without_spaces_become_pairs_of_characters() -> None:
    hasher = TokenHasher(KEY)
    run = hasher.hash_bigrams(b"", "今日は\0天気\0東")
    assert texts_of(run) == ["今日", "日は", "天気"]
    assert run.pairs_with_next.tolist() == [True, False, False]
    assert hasher.hash_bigrams(b"", "日は").hashes.tolist() == run.hashes.tolist()[1:2]
    assert hasher.hash_bigrams(b"subject", "日は").hashes.tolist() != run.hashes.tolist()[1:2]
    assert texts_of(hasher.hash_bigrams(b"subject", "日は")) == ["subject:日は"]
