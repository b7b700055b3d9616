"""Our fields on top, forged ones out, and every other byte as it was."""

from __future__ import annotations

import re
from functools import partial

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
        (
            b"A: 1\nx-SPAMGUARD: ham\n\tfolded\nB: 2\n\nbody",
            b"X-Spamguard: spam\nA: 1\nB: 2\n\nbody",
        ),
        (
            b"X-Spamguard: ham\nX-Spamguard : ham\nB: 2\n\nX-Spamguard: body",
            b"X-Spamguard: spam\nB: 2\n\nX-Spamguard: body",
        ),
        (b"From a Mon\nX-Spamguard: ham\n\nbody", b"From a Mon\nX-Spamguard: spam\n\nbody"),
        (b" blank first\n\nbody", b"X-Spamguard: spam\n\n blank first\n\nbody"),
        (b"\nbody", b"X-Spamguard: spam\n\nbody"),
        (b"X-Spamguard: ham", b"X-Spamguard: spam\n"),
        (b"", b"X-Spamguard: spam\n"),
        (LONG + b"\r\n\r\nbody", b"X-Spamguard: spam\r\n" + LONG + b"\r\n\r\nbody"),
        (b"\r\n\nbody", b"X-Spamguard: spam\r\n\r\n\nbody"),
        (
            b"no field\nX-Spamguard: ham\nB: 2\n\nX-Spamguard: body",
            b"X-Spamguard: spam\nno field\nB: 2\n\nX-Spamguard: body",
        ),
        (b"A: 1\n \nX-Spamguard: ham\n\nbody", b"X-Spamguard: spam\nA: 1\n \n\nbody"),
        (b" all\nX-Spamguard: is body\n\n", b"X-Spamguard: spam\n\n all\nX-Spamguard: is body\n\n"),
        (b"From a Mon\n all body", b"From a Mon\nX-Spamguard: spam\n\n all body"),
        (b"A: 1\nX-Spamguard: ham\r\nB: 2\n\nbody", b"X-Spamguard: spam\nA: 1\nB: 2\n\nbody"),
    ],
)
def test_fields_are_written(raw: bytes, written: bytes) -> None:
    assert add_fields(raw, [OURS], [b"X-Spamguard"]) == written


@repeatable
@given(st.binary(max_size=300))
def test_other_bytes_stay_as_they_are(body: bytes) -> None:
    raw = b"A: 1\nB: \xff\0\r2\n\n" + body
    assert add_fields(raw, [OURS], [b"X-Spamguard"]) == OURS + b"\n" + raw
    assert add_fields(raw, [], [b"X-Spamguard"]) is raw


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
        for name, value in parse_message(written, DEFAULT_LIMITS).fields
        if name == b"x-spamguard"
    ]
    assert values == [b"spam"]


@pytest.mark.slow
def test_a_message_of_any_construction_is_rewritten_in_linear_time() -> None:
    for raw in (
        b"a" * (10 << 20),
        b"A: b\n" * (2 << 20),
        b"X-Spamguard: x\n" * (1 << 19),
        b"A: b\n" + b" c\n" * (3 << 20),
    ):
        assert seconds(lambda raw=raw: add_fields(raw, [OURS], [b"X-Spamguard"]), 1) < 3
    for raw in (
        b"\r" * (4 << 20),
        b"X-Spamguard: x\r" * (1 << 18),
        b"X-Spamguard:" + b"\r\r\n " * (1 << 18),
        b"X-Spamguard" * (1 << 18) + b"\r",
    ):
        names = [b"X-Spam*", b"X-Bogosity"]
        assert seconds(lambda raw=raw, names=names: add_fields(raw, [OURS], names), 1) < 3
    for raw in (
        b":\r\n" * (1 << 18),
        b" " * (1 << 20),
        b"\r\n " * (1 << 18),
        b"Subject:" + b" \r\n " * (1 << 18),
        b"Subject:" * (1 << 17),
    ):
        header = b"A: 1\r\n" + raw
        rewriting = partial(rewrite_header, header, [OURS], [b"X-Spam*"], b"[SPAM]")
        assert seconds(rewriting, 1) < 3


FORGED = [b"x-spam-*", b"X-Spamguard", b"X-BOGOSITY"]


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        (b"X-Spam-Flag", True),
        (b"x-sPAM-", True),
        (b"X-Spam-Level\t", True),
        (b"X-Spam-Status  ", True),
        (b"x-bogosity", True),
        (b"X-Spam", False),
        (b"X-Spammer", False),
        (b"X-Bogosity-2", False),
        (b"Not-X-Spam-Flag", False),
        (b"X-Spam-Flag is no field, see", True),
        (b"X_Spam-Flag", False),
    ],
)
def test_names_of_forged_fields(name: bytes, goes: bool) -> None:
    goes = goes and b"," not in name  # blanks inside a name: nobody reads that as a field
    raw = (
        b"A: 1\r\n"
        + name
        + b": YES,\r\n\t more\r\n  and more\r\nB: 2\r\n"
        + name
        + b":\r\n\r\nbody"
    )
    rewritten = add_fields(raw, [], FORGED)
    assert rewritten == (b"A: 1\r\nB: 2\r\n\r\nbody" if goes else raw)


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        (b"Subject: hi\rX-Spam-Flag: NO\r\nTo: a\r\n\r\n", b"Subject: hi\r\nTo: a\r\n\r\n"),
        (
            b"Subject: hi\rX-Spam-Flag: NO\rX-Bogosity: x\r\nTo: a\r\n\r\n",
            b"Subject: hi\r\nTo: a\r\n\r\n",
        ),
        (b"Subject: hi\rX-Spam-Flag: NO\r folded\rTo: a\r\n\r\n", b"Subject: hi\rTo: a\r\n\r\n"),
        (b"A: 1\r\nX-Spam-Flag: NO\rTo: a\r\n\r\n", b"A: 1\r\nTo: a\r\n\r\n"),
        (b"A: 1\nX-Spam-Flag: NO\rX-Bogosity: x\rTo: a\n\n", b"A: 1\nTo: a\n\n"),
        (b"X-Spam-Flag\r: NO\r\nTo: a\r\n\r\n", b"To: a\r\n\r\n"),
        (b"X-Spam-Flag: NO\r\r\nTo: a\r\r\n\r\r\nbody", b"To: a\r\r\n\r\r\nbody"),
        (b"X-Spam-Flag: NO\r\r\n folded\r\nTo: a\r\n\r\n", b"To: a\r\n\r\n"),
        (
            b"A: 1\r\rX-Spam-Flag: NO\r\n\r\nX-Spam-Flag: \rX-Spam-Flag: body",
            b"A: 1\r\r\n\r\nX-Spam-Flag: \rX-Spam-Flag: body",
        ),
        (b"\rX-Spam-Flag: NO\r", b"\r"),
        (
            b"A: 1\r\nX-Spam-Flag\rX-Bogosity: x\r: NO\r\nTo: a\r\n\r\n",
            b"A: 1\r\nX-Spam-Flag\r\nTo: a\r\n\r\n",
        ),
        (b"A: \r1\r\n\r\nbody", b"A: \r1\r\n\r\nbody"),
    ],
)
def test_programs_that_end_lines_at_a_bare_cr_see_no_forged_field(
    raw: bytes, written: bytes
) -> None:
    assert add_fields(raw, [], FORGED) == written
    assert add_fields(raw, [OURS], FORGED).partition(b"\n")[2] == written


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


def test_a_header_section_without_end() -> None:
    assert rewrite_header(b"A: 1\r\nX-Spamguard: x\r\n", [OURS], FORGED) == (
        OURS + b"\r\nA: 1\r\n",
        22,
    )
    assert rewrite_header(b"A: 1\r\nB: 2", [OURS], FORGED) == (OURS + b"\r\nA: 1\r\nB: 2", 10)


@pytest.mark.parametrize(
    ("raw", "head", "replaced"),
    [
        (b"A: 1\r\n\r\nbody", OURS + b"\r\nA: 1\r\n", 6),
        (b"\r\nbody", OURS + b"\r\n", 0),
        (b"\r\n", OURS + b"\r\n", 0),
        (b" blank", OURS + b"\r\n\r\n", 0),
        (b"From a b\r\nA: 1\r\n\r\n", b"From a b\r\n" + OURS + b"\r\nA: 1\r\n", 16),
        (b"From a b\r\n blank\r\n", b"From a b\r\n" + OURS + b"\r\n\r\n", 10),
    ],
)
def test_the_new_head_of_a_message(raw: bytes, head: bytes, replaced: int) -> None:
    assert rewrite_header(raw, [OURS], FORGED) == (head, replaced)


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        (b"Subject: hi\r\n\r\n", b"Subject: [SPAM] hi\r\n"),
        (b"SUBJECT :\t hi\r\n\r\n", b"SUBJECT :\t [SPAM] hi\r\n"),
        (b"Subject:hi\r\n\r\n", b"Subject:[SPAM] hi\r\n"),
        (b"Subject:\r\n hi\r\n\r\n", b"Subject:\r\n [SPAM] hi\r\n"),
        (b"Subject:\r\n\r\n", b"Subject:[SPAM] \r\n"),
        (b"Subject: [SPAM] hi\r\n\r\n", b"Subject: [SPAM] hi\r\n"),
        (b"Subject: =?utf-8?q?h=C3=AD?=\r\n\r\n", b"Subject: [SPAM] =?utf-8?q?h=C3=AD?=\r\n"),
        (
            b"A: 1\r\nSubject: a\r\nSubject: b\r\n\r\n",
            b"A: 1\r\nSubject: [SPAM] a\r\nSubject: b\r\n",
        ),
        (b"A: 1\r\n\r\nSubject: body\r\n", b"Subject: [SPAM]\r\nA: 1\r\n"),
        (b"\r\n", b"Subject: [SPAM]\r\n"),
        (b" all body\r\n", b"Subject: [SPAM]\r\n\r\n"),
        (b" all body", b"Subject: [SPAM]\r\n\r\n"),
        (
            b"A: Subject: 1\r\nX-Subject: 2\r\n\r\n",
            b"Subject: [SPAM]\r\nA: Subject: 1\r\nX-Subject: 2\r\n",
        ),
    ],
)
def test_a_subject_prefix(raw: bytes, written: bytes) -> None:
    for prefix in (b"[SPAM]", b"[SPAM] "):
        head, replaced = rewrite_header(raw, [], [], prefix)
        assert head == (b"" if b"[SPAM]" in raw else b"X-Spamguard-Prefix: [SPAM]\r\n") + written
        once = head + raw[replaced:]
        again, replaced = rewrite_header(once, [], [], prefix)
        assert again + once[replaced:] == once


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"Subject: [SPAM] mine\r\n\r\n",
        b"X-Spamguard-Prefix: [X]\r\nSubject: other\r\n\r\n",
        b"X-Spamguard-Prefix:\r\n",
    ],
)
def test_a_subject_that_nobody_has_changed_stays(raw: bytes) -> None:
    assert remove_subject_prefix(raw) is raw


def test_a_prefix_that_is_there_already_is_the_senders() -> None:
    raw = b"Subject: [SPAM] mine\r\n\r\n"
    head, replaced = rewrite_header(raw, [], [], b"[SPAM]")
    assert remove_subject_prefix(head + raw[replaced:]) == raw
