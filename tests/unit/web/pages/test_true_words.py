"""Pages say nothing that is not so where little is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spamguard.records import Clue
from tests.unit.web.pages.fixed import NAME, Fixed, judgement
from tests.unit.web.pages.test_views import get


def test_words_that_say_nothing_are_not_said_to_be_forgotten(tmp_path: Path) -> None:
    """As all are before the first lesson."""
    service = Fixed()
    service.reasons = replace(service.reasons, clues=[Clue("solar", 0.0, {"ham": 0, "spam": 0}), Clue("", 0.0, {"ham": 0, "spam": 0})])
    page = get(service, tmp_path, f"/history/{NAME}")[0].text
    assert "None of its words adds anything" in page
    assert "any more" not in page
    service.reasons = replace(service.reasons, clues=[Clue("", 0.5, {"ham": 0, "spam": 1})])
    assert "known by its text any more" in get(service, tmp_path, f"/history/{NAME}")[0].text


def test_what_is_not_kept_is_not_said_not_to_be(tmp_path: Path) -> None:
    """`history: {subjects: false, addresses: false}`: the message had a subject all the same, and came from somewhere."""
    service = Fixed([judgement(subject="", sender="", recipients=(), client="")])
    for page in get(service, tmp_path, "/history", f"/history/{NAME}"):
        told = page.text.partition("<main")[2]
        assert all(words in told for words in ("(no subject known)", "(no sender known)", "(nobody known)"))
        assert "this machine" not in told
