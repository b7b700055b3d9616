"""Template filters: how pages write values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from spamguard.web import formatting

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@given(st.text(st.characters() | st.sampled_from(BIDI + "\x00\x1b\x7f\ud800\ufeff")))
def test_nothing_that_acts_comes_through(text: str) -> None:
    shown = str(formatting.make_visible(text))
    assert all(letter.isprintable() or letter in "\n\t\u200c\u200d" for letter in shown)
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gnp\u202eexe", "gnp⟨U+202E⟩exe"),
        ("\x1b[31m\x00\x7f", "␛[31m␀␡"),
        ("a\u00a0b\u3000c", "a b c"),
        ("line\nline\tend", "line\nline\tend"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\ud83d", "⟨U+D83D⟩"),
        ("<b>", "<b>"),
    ],
)
def test_letters_that_act_are_visible(text: str, shown: str) -> None:
    assert formatting.make_visible(text) == shown


def test_values_other_than_text_stay() -> None:
    assert formatting.make_visible(7) == 7
    assert formatting.make_visible(Markup("\u202e")) == "\u202e"


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0, "0 %"),
        (1e-9, "< 0.1 %"),
        (0.5, "50.0 %"),
        (0.98765, "98.8 %"),
        (0.99949, "99.9 %"),
        (0.9999999, "> 99.9 %"),
        (1, "100 %"),
        (1.0, "100 %"),
    ],
)
def test_percentages(share: float, shown: str) -> None:
    assert formatting.percent(share) == shown


def test_sizes_and_numbers() -> None:
    assert [formatting.size(one) for one in (0, 1, 1023, 5321, 3 << 20)] == [
        "0 bytes",
        "1 byte",
        "1,023 bytes",
        "5.2 kB",
        "3.0 MB",
    ]
    assert (formatting.number(12345), formatting.number(1234.56), formatting.signed(-1.25)) == (
        "12,345",
        "1,234.6",
        "\u22121.250",
    )
    assert (formatting.count_noun(1, "message"), formatting.count_noun(1200, "message")) == (
        "1 message",
        "1,200 messages",
    )


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1_790_000_000.5, 1e18])
def test_any_time_can_be_shown(seconds: float) -> None:
    assert "<time datetime=" in formatting.moment(seconds)
    assert formatting.day(seconds)
    assert formatting.clock(seconds, 3600)


def test_tones() -> None:
    classes = {"ham": False, "spam": True, "newsletter": False}
    shown = {
        label: formatting.tone(label, classes)
        for label in (*classes, "unsure", "not-scanned", "gone")
    }
    wanted = {
        "ham": "wanted",
        "spam": "unwanted",
        "newsletter": "wanted",
        "unsure": "unsure",
        "not-scanned": "none",
        "gone": "wanted",
    }
    assert shown == wanted
    assert formatting.tone("spam", {}) == "unwanted"
