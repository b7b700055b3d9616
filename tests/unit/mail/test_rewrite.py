"""Our fields on top, forged ones out, and every other byte as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.extract import Extractor
from spamguard.mail.identity import digest
from spamguard.mail.limits import DEFAULT_LIMITS
from spamguard.mail.rewrite import with_fields
from spamguard.mail.split import split
from tests.unit.mail.support import KEY, repeatable, seconds

OURS = b"X-Spamguard: spam"
LONG = b"A: " + b"x" * 10_000
MAIL = [raw for _, raw in generate(40, 9)]


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        (b"A: 1\n\nbody", b"X-Spamguard: spam\nA: 1\n\nbody"),
        (b"A: 1\r\n\r\nbody", b"X-Spamguard: spam\r\nA: 1\r\n\r\nbody"),
        (b"From a Mon\nA: 1\n\nbody", b"From a Mon\nX-Spamguard: spam\nA: 1\n\nbody"),
        (b"A: 1\nx-SPAMGUARD: ham\n\tfolded\nB: 2\n\nbody", b"X-Spamguard: spam\nA: 1\nB: 2\n\nbody"),
        (b"X-Spamguard: ham\nX-Spamguard : ham\nB: 2\n\nX-Spamguard: body", b"X-Spamguard: spam\nB: 2\n\nX-Spamguard: body"),
        (b"From a Mon\nX-Spamguard: ham\n\nbody", b"From a Mon\nX-Spamguard: spam\n\nbody"),
        (b" blank first\n\nbody", b"X-Spamguard: spam\n\n blank first\n\nbody"),
        (b"\nbody", b"X-Spamguard: spam\n\nbody"),
        (b"X-Spamguard: ham", b"X-Spamguard: spam\n"),
        (b"", b"X-Spamguard: spam\n"),
        (LONG + b"\r\n\r\nbody", b"X-Spamguard: spam\r\n" + LONG + b"\r\n\r\nbody"),
        (b"\r\n\nbody", b"X-Spamguard: spam\r\n\r\n\nbody"),
    ],
)
def test_fields_are_written(raw: bytes, written: bytes) -> None:
    assert with_fields(raw, [OURS], [b"X-Spamguard"]) == written


@repeatable
@given(st.binary(max_size=300))
def test_what_we_do_not_mean_to_change_stays(body: bytes) -> None:
    raw = b"A: 1\nB: \xff\0\r2\n\n" + body
    assert with_fields(raw, [OURS], [b"X-Spamguard"]) == OURS + b"\n" + raw
    assert with_fields(raw, [], [b"X-Spamguard"]) is raw


@repeatable
@given(st.sampled_from(MAIL), st.booleans())
def test_a_judged_message_keeps_its_features_and_identity(raw: bytes, carriage_returns: bool) -> None:
    raw = raw.replace(b"\n", b"\r\n") if carriage_returns else raw
    written = with_fields(raw, [OURS, b"X-Spamguard-Id: 1"], [b"X-Spamguard", b"X-Spamguard-Id"])
    extractor = Extractor(KEY)
    one, other = extractor.features(raw), extractor.features(written)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "traits", "numbers"))
    assert digest(raw, KEY) == digest(written, KEY)
    assert with_fields(written, [], [b"X-Spamguard", b"X-Spamguard-Id"]) == raw


@repeatable
@given(
    st.lists(
        st.sampled_from((b"A: 1", b"X-Spamguard: ham", b"x-spamguard:", b" folded", b"\tfolded", b"X-Spamguard : x", b"no field", b"")),
        max_size=8,
    )
)
def test_no_forged_field_survives_where_a_reader_sees_fields(lines: list[bytes]) -> None:
    written = with_fields(b"\n".join(lines), [OURS], [b"X-Spamguard"])
    values = [value for name, value in split(written, DEFAULT_LIMITS).fields if name == b"x-spamguard"]
    assert values == [b"spam"]


def test_a_message_of_any_construction_is_rewritten_in_linear_time() -> None:
    for raw in (b"a" * (10 << 20), b"A: b\n" * (2 << 20), b"X-Spamguard: x\n" * (1 << 19), b"A: b\n" + b" c\n" * (3 << 20)):
        assert seconds(lambda: with_fields(raw, [OURS], [b"X-Spamguard"]), 1) < 3  # noqa: B023
