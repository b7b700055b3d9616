"""Scripts without blanks, look-alike letters, disguised words, letters set apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import deobfuscate, separate_spaceless, to_single_script
from tests.unit.mail.support import repeatable, seconds


@pytest.mark.parametrize(
    ("text", "words", "runs"),
    [
        ("buy it", "buy it", ""),
        ("grün", "grün", ""),
        ("今日は天気", " 今 日   天 気 ", "は"),
        ("สวัสดี hello", "  hello", "สวัสดี"),
        ("대출을 hello", "대출을 hello", "대출을"),
        ("こん x てん", "  x  ", "こん\0てん"),
        ("\U00020000𠀁", " \U00020000 𠀁 ", ""),
        ("\U0001f525sale\U0001f389\U0001f389", " \U0001f525 sale \U0001f389 \U0001f389 ", ""),
    ],
)
def test_words_and_runs(text: str, words: str, runs: str) -> None:
    assert separate_spaceless(text) == (words.encode(), runs)


@repeatable
@given(st.text(max_size=200))
def test_no_letter_gets_lost(text: str) -> None:
    words, runs = separate_spaceless(text)
    kept = words.decode() + runs
    assert {
        letter for letter in text if letter.isalnum() and not "\ud800" <= letter <= "\udfff"
    } <= set(kept)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v\u0456\u0430gra", "viagra"),
        ("\u0441\u0430s\u0456no", "casino"),
        ("кредит paypal", "кредит paypal"),
        ("p\u03b1\u03c5p\u03b1l", "paupal"),
        ("iphone\u0436", "iphone\u0436"),  # none that looks like a Latin letter
    ],
)
def test_words_of_two_scripts_are_latin(text: str, read: str) -> None:
    assert to_single_script(text) == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v i a g r a", "viagra"),
        ("buy v.i.a.g.r.a. now", "buy viagra. now"),
        ("c-i-a-l-i-s!", "cialis!"),
        ("v_i_a_g_r_a", "viagra"),
        ("к р е д и т", "кредит"),
        ("u s a", "u s a"),
        ("a b.c d", "a b.c d"),
        ("a  b  c  d", "a  b  c  d"),
        ("this is a b c de", "this is a b c de"),
        ("plan a b c d and", "plan abcd and"),
        (" 中 文 字 符 ", " 中 文 字 符 "),
        ("1 2 3 4 5", "1 2 3 4 5"),
        ("", ""),
        ("v1agra", "viagra"),
        ("buy c1al1s, m0ney v1agra v1agra!", "buy cialis, money viagra viagra!"),
        ("p0rn. vi@gra. mon$ter", "porn. viagra. monster"),
        (
            "win32api anna@example.com a3f4e5b6 h2o 4you top10",
            "win32api anna@example.com a3f4e5b6 h2o 4you top10",
        ),
        ("grün v1agra п0рно", "grün viagra п0рно"),
        ("a0a" + "b" * 30, "a0a" + "b" * 30),
    ],
)
def test_letters_set_apart_are_closed_up(text: str, read: str) -> None:
    assert deobfuscate(text.encode()).decode() == read


@repeatable
@given(st.text("ab .-я中2", max_size=60))
def test_only_signs_between_letters_go(text: str) -> None:
    closed = deobfuscate(text.encode()).decode()
    assert [sign for sign in closed if sign.isalnum()] == [sign for sign in text if sign.isalnum()]


@pytest.mark.parametrize(
    "piece",
    [
        "a ",
        "a b c-",
        "a.b ",
        "a b c d",
        "a b c d -",
        "aя",
        "a я",
        "中",
        "a_b c ",
        "a0a",
        "a0a ",
        "a0a0" + "b" * 30,
    ],
)
def test_hostile_text_takes_no_longer(piece: str) -> None:
    text = piece * 50_000
    assert seconds(lambda: deobfuscate(separate_spaceless(to_single_script(text))[0]), 1) < 3
