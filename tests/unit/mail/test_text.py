"""Scripts without blanks, look-alike letters, disguised words, letters set apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import deobfuscate, fold, separate_spaceless
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


DISGUISED = [
    *("ⓟⓐⓡⓒⓔⓛ", "ⓅⒶⓇⒸⒺⓁ", "⒫⒜⒭⒞⒠⒧", "🅿🅰🆁🅲🅴🅻", "🄿🄰🅁🄲🄴🄻", "🅟🅐🅡🅒🅔🅛", "🇵🇦🇷🇨🇪🇱"),
    *("ᴘᴀʀᴄᴇʟ", "ᵖᵃʳᶜᵉˡ", "ₚₐᵣcₑₗ", "𝐩𝐚𝐫𝐜𝐞𝐥", "𝓅𝒶𝓇𝒸ℯ𝓁", "𝕡𝕒𝕣𝕔𝕖𝕝", "ｐａｒｃｅｌ"),
    *("parϲel", "pArСel", "рarcel", "ραrcel", "Ρarcel", "parcеⅼ", "pɑrcel", "ᏢᎪᎡᏟᎬl", "ꓑꓮꓣꓚꓰL"),
    *("p\u0336a\u0336rcel", "par\u200bcel", "par\u00adcel", "p\u0430\u200br\u2060cel"),
    *(
        "\u202elecrap\u202c",
        "\u202e\u202dparcel\u202c\u202c",
        "\u2067parcel\u2069",
        "\u202dparcel\u202c",
    ),
]
HONEST = "Мир, счастье! Орех; ελλάδα σας ռուս ᏣᎳᎩ façade naïve 中文 ภาษา „Größe“ – 42… a · b"


@pytest.mark.parametrize("written", DISGUISED)
def test_a_word_in_other_letters_is_the_word(written: str) -> None:
    assert fold(written).split() == fold(written.lower(), lower=True).split() == ["parcel"]


def test_honest_words_stay_in_their_script() -> None:
    known = fold(HONEST).translate(dict.fromkeys(b",;!", ""))
    assert known.split() == (
        "мир счастье орех ελλάδα σας ռուս ᏣᎳᎩ façade naïve 中文 ภาษา größe 42 a b".lower().split()
    )


@pytest.mark.parametrize("sign", [" ", "\n", ".", "-"])
def test_letters_set_apart_are_closed_up(sign: str) -> None:
    assert deobfuscate(f"a {sign.join('parcel')}, b".encode()) in (b"a parcel, b", b"aparcel, b")


@repeatable
@given(st.text(max_size=60))
def test_folding_takes_any_text(text: str) -> None:
    assert not set("\u202e\u200b“") & set(fold(text))
