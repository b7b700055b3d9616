"""Our fields on top, forged ones out, and every other byte as it was."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.message import (
    add_fields,
    message_digest,
    remove_subject_prefix,
    rewrite_header,
)
from spamguard.mail.mime import DEFAULT_LIMITS, parse_message
from tests.unit.mail.support import KEY, repeatable

OURS = b"X-Spamguard: spam"
MAIL = [raw for _, raw in generate(40, 9)]


@repeatable
@given(st.binary(max_size=300))
def test_other_bytes_stay_as_they_are(body: bytes) -> None:
    raw = b"A: 1\nB: \xff\0\r2\n\n" + body
    assert add_fields(raw, [OURS], [b"X-Spamguard"]) == OURS + b"\n" + raw
    assert add_fields(raw, [], [b"X-Spamguard"]) == raw


@repeatable
@given(st.sampled_from(MAIL), st.booleans())
def test_a_judged_message_keeps_its_features_and_identity(
    raw: bytes, carriage_returns: bool
) -> None:
    raw = raw.replace(b"\n", b"\r\n") if carriage_returns else raw
    written = add_fields(raw, [OURS, b"X-Spamguard-Id: 1"], [b"X-Spamguard", b"X-Spamguard-Id"])
    extractor = FeatureExtractor(KEY)
    first, second = extractor.features(raw), extractor.features(written)
    assert all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("tokens", "traits", "numbers")
    )
    assert message_digest(raw, KEY) == message_digest(written, KEY)
    assert add_fields(written, [], [b"X-Spamguard", b"X-Spamguard-Id"]) == raw


@repeatable
@given(
    st.lists(
        st.sampled_from(
            (
                b"A: 1",
                b"X-Spamguard: ham",
                b"x-spamguard:",
                b" folded",
                b"\tfolded",
                b"X-Spamguard : x",
                b"no field",
                b"",
            )
        ),
        max_size=8,
    )
)
def test_no_forged_field_survives_where_a_reader_sees_fields(lines: list[bytes]) -> None:
    written = add_fields(b"\n".join(lines), [OURS], [b"X-Spamguard"])
    values = [
        value
        for name, value in parse_message(written, DEFAULT_LIMITS).root.fields
        if name == b"x-spamguard"
    ]
    assert values == [b"spam"]


FORGED = [b"x-spam-*", b"X-Spamguard", b"X-BOGOSITY"]


def header_lines(raw: bytes) -> list[bytes]:
    """Up to the first empty line of a reader to whom only LF ends a line, cut up as one sees them
    to whom CR does so too.
    """
    end = re.search(rb"(?:\A|\n)\r?\n", raw)
    return re.split(rb"\r*\n|\r", raw[: end.start()] if end else raw)


def honest_lines(raw: bytes) -> list[bytes]:
    """Those of no forged field."""
    kept, forged = [], False
    for line in header_lines(raw):
        forged = bool(re.match(rb"(?i)x-spam-[^\s:]*[ \t]*:|x-bogosity[ \t]*:", line)) or (
            forged and line[:1] in (b" ", b"\t")
        )
        kept += [] if forged else [line]
    return kept


pieces = st.sampled_from(
    (
        b"A: 1",
        b"X-Spam-Flag: NO",
        b"x-bogosity :",
        b" folded",
        b"\tfolded",
        b"no field",
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n",
        b"\r\r\n",
    )
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=1500, database=None)
@given(st.lists(pieces, max_size=12).map(b"".join).filter(lambda raw: raw[:1] not in (b" ", b"\t")))
@example(b"X-Spam-Flag: NO\r\r\n folded")
def test_only_forged_fields_go_with_any_line_ends(raw: bytes) -> None:
    written = add_fields(raw, [], FORGED)
    assert [line for line in header_lines(written) if line] == [
        line for line in honest_lines(raw) if line
    ]
    assert not re.search(
        rb"(?i)(?:\A|[\r\n])(?:x-spam-|x-bogosity)", b"\n".join(header_lines(written))
    )


heads = st.lists(
    st.sampled_from(
        (b"A: 1", b"X-Spam-Flag: NO", b"x-bogosity :", b" folded", b"no field", b"From a b", b"")
    ),
    max_size=8,
).map(lambda lines: b"".join([line + b"\r\n" for line in lines]))


@repeatable
@given(heads, st.binary(max_size=50))
@example(b"", b"")
def test_the_head_of_a_message_is_enough(raw: bytes, body: bytes) -> None:
    whole = rewrite_header(raw, [OURS], FORGED)
    line_end = b"" if raw else b"\r"
    assert whole[0] + raw[whole[1] :] == (
        add_fields(raw, [OURS], FORGED) if raw else OURS + line_end + b"\n"
    )
    assert rewrite_header(raw + b"\r\n" + body, [OURS], FORGED) == rewrite_header(
        raw + b"\r\n", [OURS], FORGED
    )


def test_a_prefix_that_is_there_already_is_the_senders() -> None:
    raw = b"Subject: [SPAM] mine\r\n\r\n"
    head, replaced = rewrite_header(raw, [], [], b"[SPAM]")
    assert remove_subject_prefix(head + raw[replaced:]) == raw
