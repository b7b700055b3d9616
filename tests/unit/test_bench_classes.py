"""The benchmark of more classes than two: mail is sorted, what tells of a list is taken out,
measures are of what was said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_classes
from tests.bench.bench_classes import SPAMASSASSIN, Answer, by_kind, swindles, unmarked
from tests.unit.filters import mail

pytestmark = pytest.mark.slow

LISTED = (
    b"From: a@b.example\r\nList-Id: Fork <fork.example>\r\nSubject: [Fork] tea\r\n\r\nHello\r\n"
    + b"_" * 47
    + b"\r\nFork mailing list\r\n"
)


@pytest.mark.parametrize(
    ("raw", "label", "kind"),
    [
        (LISTED, "ham", "list"),
        (LISTED, "spam", "spam"),
        (b"From: rssfeeds@example.com\n\nnews\n", "ham", "feed"),
        (b"From: shop@example.com\n\nTo unsubscribe write to us.\n", "ham", "newsletter"),
        (b"From: anna@example.com\n\nHello\n", "ham", "ham"),
    ],
)
def test_kinds(raw: bytes, label: str, kind: str) -> None:
    assert by_kind(raw, label) == kind
    assert SPAMASSASSIN["by kind, ham never taught"](raw, label) == (
        "personal" if kind == "ham" else kind
    )
    assert SPAMASSASSIN["lists apart"](raw, label) == (kind if kind in ("list", "spam") else "ham")


def test_lists_and_swindles() -> None:
    assert SPAMASSASSIN["four lists apart"](LISTED, "ham") == "fork"
    assert SPAMASSASSIN["four lists apart"](LISTED, "spam") == "spam"
    assert swindles(b"\n\nA million for you", "spam") == "swindle"
    assert swindles(b"\n\nA million for you", "ham") == "ham"


def test_nothing_is_left_of_a_list() -> None:
    assert unmarked(LISTED) == b"From: a@b.example\nSubject:  tea\n\nHello\n"


def test_every_filter_tells_classes_apart_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_classes, "SIZES", (10,))
    monkeypatch.setattr(bench_classes, "DRAWS", 1)
    monkeypatch.setattr(bench_classes, "COLUMNS", 1 << 10)
    for number, (label, raw) in enumerate(mail(60)):
        (tmp_path / str(number)).write_bytes(
            raw + (b"\nunsubscribe here\n" if label == "ham" and number % 2 else b"")
        )
    (tmp_path / "index").write_text(
        "".join(f"{label} {number}\n" for number, (label, _) in enumerate(mail(60)))
    )
    some = bench_classes.sorted_by(
        SPAMASSASSIN["newsletters apart"], bench_classes.read(tmp_path / "index")
    )
    assert {one.label for one in some} == {"ham", "newsletter", "spam"}
    for taught in bench_classes.FILTERS.values():
        answers = taught(some[:45])(some[45:])
        assert [one.gold for one in answers] == [one.label for one in some[45:]]
        assert sum(answers[0].probabilities.values()) == pytest.approx(1.0)
    assert len(list(bench_classes.few(some))) == len(bench_classes.FILTERS)


def test_measures() -> None:
    answers = [
        Answer("ham", "ham", {"ham": 0.9, "spam": 0.1}, -2.0),
        Answer("ham", "swindle", {"ham": 0.4, "swindle": 0.6}, 1.0),
        Answer("spam", "unsure", {"ham": 0.5, "spam": 0.5}, 0.0),
        Answer("swindle", "swindle", {"ham": 0.1, "swindle": 0.9}, 3.0),
    ]
    right, labelled, unsure, _, area, *_, wrong, _ = bench_classes.measured(answers)
    assert (labelled, unsure, wrong) == (50, 25, 50)
    assert right in (50, 75)
    assert area == 25
