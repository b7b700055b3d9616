"""Scripts without blanks, look-alike letters, disguised words, letters set apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import deobfuscate, separate_spaceless
from tests.unit.mail.support import repeatable


@repeatable
@given(st.text(max_size=200))
def test_no_letter_gets_lost(text: str) -> None:
    words, runs = separate_spaceless(text)
    kept = words.decode() + runs
    assert {
        letter for letter in text if letter.isalnum() and not "\ud800" <= letter <= "\udfff"
    } <= set(kept)


@repeatable
@given(st.text("ab .-я中2", max_size=60))
def test_only_signs_between_letters_go(text: str) -> None:
    closed = deobfuscate(text.encode()).decode()
    assert [sign for sign in closed if sign.isalnum()] == [sign for sign in text if sign.isalnum()]
