"""Seeded damage to mail: any bytes have features, texts of their tokens, and a digest."""

from __future__ import annotations

from random import Random

import pytest

from corpora.synthetic import generate
from spamguard.mail.content import TRAITS
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.message import message_digest
from tests.unit.mail.support import KEY

MAIL = [raw for _, raw in generate(200, 77)]
CASES = 400  # of each seed
SNIPPETS = (
    b"\r", b"\n", b"\r\n", b"\0", b"\n\n", b"=", b"=?utf-8?b?", b"?=", b"--", b"<", b"<!--",
    b"<script>", b"&#", b"\xff", b"\xc3", b"\x1b$B", b"+A", b'"', b"boundary=",
    b"Content-Type: multipart/mixed; boundary=x\n", b"Content-Type: message/rfc822\n\n",
    b"Content-Transfer-Encoding: base64\n", b"charset=utf-16", b"; name*0*=",
    b"style='display:none'", b"From ", b":", b" ",
)  # fmt: skip


def flip(rng: Random, raw: bytearray) -> None:
    for _ in range(rng.randint(1, 30)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)


def truncate(rng: Random, raw: bytearray) -> None:
    del raw[rng.randrange(1, len(raw) + 1) :]


def cut(rng: Random, raw: bytearray) -> None:
    start = rng.randrange(len(raw))
    del raw[start : start + rng.randint(1, 200)]


def splice(rng: Random, raw: bytearray) -> None:
    other = rng.choice(MAIL)
    start, at = rng.randrange(len(other)), rng.randrange(len(raw))
    raw[at:at] = other[start : start + rng.randint(1, 2000)]


def snippets(rng: Random, raw: bytearray) -> None:
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(raw))
        raw[at:at] = rng.choice(SNIPPETS) * rng.choice((1, 1, 1, 50))


def repeat_fields(rng: Random, raw: bytearray) -> None:
    lines = bytes(raw).partition(b"\n\n")[0].split(b"\n")
    raw[0:0] = b"\n".join(rng.choices(lines, k=rng.randint(1, 20))) + b"\n"


MUTATIONS = (flip, truncate, cut, splice, snippets, repeat_fields)


def damaged(rng: Random) -> bytes:
    raw = bytearray(rng.choice(MAIL))
    for mutate in rng.choices(MUTATIONS, k=rng.randint(1, 4)):
        mutate(rng, raw)
        raw = raw or bytearray(b"\n")
    return bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_damaged_mail_is_read(seed: int) -> None:
    rng = Random(seed)
    extractor = FeatureExtractor(KEY)
    sizes = [len(values) for values in TRAITS.values()]
    for _ in range(CASES):
        raw = damaged(rng)
        features = extractor.features(raw)
        assert sorted(extractor.token_texts(raw)) == features.tokens.tolist()
        assert all(code < size for code, size in zip(features.traits.tolist(), sizes, strict=True))
        assert 0 <= features.numbers.min() <= features.numbers.max() <= 255
        assert len(message_digest(raw, KEY)) == 16
