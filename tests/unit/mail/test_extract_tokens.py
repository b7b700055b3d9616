"""Token hashes: equal to a slow reference written from the definition, and keyed."""

from __future__ import annotations

import re
from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.extract import TokenHasher, TokenRun
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
