"""How values look on a page: texts and numbers, charts, explanations."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.web import pages
from spamguard.web.models import Hour
from spamguard.web.views import TODAY_SPANS

# ---- texts and numbers

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@given(st.text(st.characters() | st.sampled_from(BIDI + "\x00\x1b\x7f\ud800\ufeff")))
def test_nothing_that_acts_comes_through(text: str) -> None:
    shown = str(pages.make_visible(text))
    assert all(letter.isprintable() or letter in "\n\t\u200c\u200d" for letter in shown)
    shown.encode()


# ---- charts

TONES = {"ham": "wanted", "spam": "unwanted", "unsure": "unsure"}


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*TONES, "other"]), st.integers(1, 10**6)),
        min_size=1,
        max_size=200,
    )
)
def test_bars_stay_within_and_are_as_high_as_their_number(mail: list[dict[str, int]]) -> None:
    hours = [Hour(1e9 + 3600 * number, one, 0) for number, one in enumerate(mail)]
    chart, _ = pages.draw_hours(hours, TONES)
    drawn = pages.templates().from_string(
        "{% import 'macros.html' as show with context %}"
        "{% call show.chart(chart, 'mail', '') %}{% endcall %}"
    )
    svg = ElementTree.fromstring(drawn.render(chart=chart, root="", notice=None))
    bars = [bar for bar in svg.iter("rect") if "x" in bar.attrib]
    assert len(bars) == sum(map(len, mail))
    for bar in bars:
        x, y, width, height = (float(bar.attrib[name]) for name in ("x", "y", "width", "height"))
        assert pages.LEFT <= x <= x + width <= pages.RIGHT
        assert pages.TOP - 0.2 <= y <= y + height <= pages.BOTTOM + 0.2
    heights = sum(float(bar.attrib["height"]) for bar in bars)
    messages = sum(sum(one.values()) for one in mail)
    expected = (pages.BOTTOM - pages.TOP) * messages / chart.top
    assert heights == pytest.approx(expected, abs=0.06 * len(bars))
    assert len(chart.labelled) <= 7


@pytest.mark.parametrize("number", TODAY_SPANS)
@given(begin=st.integers(0, 23))
def test_no_label_stands_there_twice(number: int, begin: int) -> None:
    """Whatever hour the data begin in."""
    hours = [Hour(3600 * (begin + at), {}, 0) for at in range(number)]
    chart, _ = pages.draw_hours(hours, TONES)
    at = [chart.starts[label] for label in chart.labelled]
    labels = [pages.clock(start, at[-1] - at[0]) for start in at]
    assert len(set(labels)) == len(labels) >= 2
