"""The whole way from bytes to features."""

from __future__ import annotations

import binascii

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.mime import ParseLimits
from tests.unit.mail.support import KEY, header, messages, repeatable

MAIL = [raw for _, raw in generate(80, 21)]


def texts(raw: bytes, limits: ParseLimits | None = None) -> set[str]:
    return set(
        (FeatureExtractor(KEY, limits) if limits else FeatureExtractor(KEY))
        .token_texts(raw)
        .values()
    )


@pytest.mark.slow
@repeatable
@given(st.sampled_from(MAIL) | messages() | st.binary(max_size=500))
def test_texts_name_exactly_the_tokens(raw: bytes) -> None:
    extractor = FeatureExtractor(KEY)
    features = extractor.features(raw)
    assert sorted(extractor.token_texts(raw)) == features.tokens.tolist()


@repeatable
@given(st.sampled_from(MAIL) | messages())
def test_features_are_sorted_distinct_and_always_the_same(raw: bytes) -> None:
    first, second = FeatureExtractor(KEY).features(raw), FeatureExtractor(KEY).features(raw)
    assert first.tokens.dtype == np.uint32
    assert (np.diff(first.tokens.astype(np.int64)) > 0).all()
    assert all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("tokens", "traits", "numbers")
    )


@repeatable
@given(st.sampled_from(MAIL))
def test_line_ends_and_the_envelope_line_change_nothing(raw: bytes) -> None:
    extractor = FeatureExtractor(KEY)
    plain = extractor.features(raw)
    for other in (
        raw.replace(b"\n", b"\r\n"),
        b"From anna@example.com Mon Jan  1 10:00:00 2024\n" + raw,
    ):
        features = extractor.features(other)
        assert np.array_equal(features.tokens, plain.tokens)
        assert np.array_equal(features.traits, plain.traits)
        assert np.array_equal(features.numbers, plain.numbers)


def test_files_within_plain_text_are_attachments() -> None:
    lines = b"".join([binascii.b2a_uu(bytes(range(at, at + 45))) for at in range(100)])
    said = b"please look at this\n\nbegin 644 bill.pdf\n" + lines + b"#86)C\n`\nend\n\nthank you\n"
    extractor = FeatureExtractor(KEY)
    plain = extractor.features(
        header(b"Subject: bill", body=b"please look at this\n\n\n\nthank you\n")
    )
    features = extractor.features(header(b"Subject: bill", body=said))
    assert (
        features.tokens[features.tokens < 1 << 30].tolist()
        == plain.tokens[plain.tokens < 1 << 30].tolist()
    )
    assert {"attachment:bill", "attachment:pdf", "attachment:bill_pdf"} <= texts(
        header(b"Subject: bill", body=said)
    )
    assert "begin" in texts(header(body=b"begin 644 bill.pdf\nno such file follows\n"))


def test_interactive_pages_are_pages() -> None:
    body = (
        b"<html amp4email><style amp4email-boilerplate>body{visibility:hidden}</style>"
        b"<body><p class=secret>words</p>"
    )
    tokens = texts(header(b"From: anna@example.com", b"Content-Type: text/x-amp-html", body=body))
    assert "words" in tokens
    assert not tokens & {"visibility", "secret", "amp4email"}
