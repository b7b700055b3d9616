"""How values look on a page: texts and numbers, charts, explanations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.web import pages
from spamguard.web.models import Hour

# ---- texts and numbers

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@given(st.text(st.characters() | st.sampled_from(BIDI + "\x00\x1b\x7f\ud800\ufeff")))
def test_nothing_that_acts_comes_through(text: str) -> None:
    shown = str(pages.make_visible(text))
    assert all(letter.isprintable() or letter in "\n\t\u200c\u200d" for letter in shown)
    shown.encode()


# ---- charts

TONES = {"ham": "wanted", "spam": "unwanted", "unsure": "unsure"}


@given(st.floats(0, 1e12))
def test_an_axis_ends_above_everything(most: float) -> None:
    end = pages.axis_top(most)
    assert end >= most
    assert end % 2 == 0
    assert end <= max(2, 2.5 * most)


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*TONES, "other"]), st.integers(0, 10**6)), max_size=200
    )
)
def test_bars_stay_within_and_are_as_high_as_their_number(mail: list[dict[str, int]]) -> None:
    hours = [Hour(1e9 + 3600 * number, one, 0, 0) for number, one in enumerate(mail)]
    drawn = pages.mail_chart(hours, TONES)
    end = pages.axis_top(max((sum(hour.values()) for hour in mail), default=0))
    area = sum(mark.height for mark in drawn.marks)
    assert area == pytest.approx(
        (pages.BOTTOM - pages.TOP) * sum(sum(hour.values()) for hour in mail) / end
    )
    for mark in drawn.marks:
        assert pages.LEFT <= mark.x <= mark.x + mark.width <= pages.RIGHT + 1e-6
        assert pages.TOP - 1e-6 <= mark.y <= mark.y + mark.height <= pages.BOTTOM + 1e-6
    assert len(drawn.across) <= 7


@given(st.integers(1, 168))
def test_no_label_stands_there_twice(number: int) -> None:
    """Whatever hour the data begin in."""
    hours = [Hour(3600 * at, {"ham": int(at >= 168 - number)}, 0, 0) for at in range(168)]
    across = pages.mail_chart(pages.hours_with_data(hours), TONES).across
    span = across[-1].seconds - across[0].seconds
    labels = [pages.clock(tick.seconds, span) for tick in across]
    assert len(set(labels)) == len(labels) >= 2
