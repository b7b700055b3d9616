"""How values look on a page: texts and numbers, charts, explanations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from spamguard.records import Clue
from spamguard.web import formatting
from spamguard.web.models import Hour, WordPart
from tests.unit.web.fixed import SPAM, explanation, judgement

# ---- texts and numbers

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
        ("\x1b[31m\x00\x7f", "⟨U+001B⟩[31m⟨U+0000⟩⟨U+007F⟩"),
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


def test_numbers() -> None:
    assert (formatting.number(12345), formatting.signed(-1.25)) == ("12,345", "\u22121.250")
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


# ---- charts

TONES = {"ham": "wanted", "spam": "unwanted", "unsure": "unsure"}


@given(st.floats(0, 1e12))
def test_an_axis_ends_above_everything(most: float) -> None:
    end = formatting.axis_top(most)
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
    drawn = formatting.mail_chart(hours, TONES)
    end = formatting.axis_top(max((sum(hour.values()) for hour in mail), default=0))
    area = sum(mark.height for mark in drawn.marks)
    assert area == pytest.approx(
        (formatting.BOTTOM - formatting.TOP) * sum(sum(hour.values()) for hour in mail) / end
    )
    for mark in drawn.marks:
        assert formatting.LEFT <= mark.x <= mark.x + mark.width <= formatting.RIGHT + 1e-6
        assert formatting.TOP - 1e-6 <= mark.y <= mark.y + mark.height <= formatting.BOTTOM + 1e-6
    assert len(drawn.across) <= 7


@pytest.mark.parametrize(
    ("hours", "days"), [(72, ["01 Jan", "02 Jan", "03 Jan"]), (168, ["02 Jan", "04 Jan", "06 Jan"])]
)
def test_no_day_stands_there_twice(hours: int, days: list[str]) -> None:
    across = formatting.mail_chart(
        [Hour(3600 * number, {"ham": 1}, 0, 0) for number in range(hours)], TONES
    ).across
    assert [
        formatting.clock(tick.seconds, across[-1].seconds - across[0].seconds) for tick in across
    ] == days


@pytest.mark.parametrize(
    ("hours", "first", "number"),
    [(24, 10, 14), (24, 0, 24), (24, 23, 6), (24, None, 24), (168, 100, 72), (168, 150, 18)],
)
def test_charts_begin_where_data_does(hours: int, first: int | None, number: int) -> None:
    for mail, lessons in (({"ham": 1}, 0), ({"ham": 0}, 1)):
        all_hours = [
            Hour(3600 * at, *((mail, lessons) if at == first else ({"ham": 0}, 0)), 0)
            for at in range(hours)
        ]
        assert list(formatting.hours_with_data(all_hours)) == all_hours[hours - number :]
    assert list(formatting.hours_with_data([])) == []


@given(st.integers(1, 168))
def test_no_label_stands_there_twice(number: int) -> None:
    """Whatever hour the data begin in."""
    hours = [Hour(3600 * at, {"ham": int(at >= 168 - number)}, 0, 0) for at in range(168)]
    across = formatting.mail_chart(formatting.hours_with_data(hours), TONES).across
    span = across[-1].seconds - across[0].seconds
    labels = [formatting.clock(tick.seconds, span) for tick in across]
    assert len(set(labels)) == len(labels) >= 2


def test_corrections_are_part_of_lessons() -> None:
    drawn = formatting.lessons_chart([Hour(0, {}, 4, 1)])
    assert [(mark.tone, round(mark.height)) for mark in drawn.marks] == [
        ("wanted", 108),
        ("unwanted", 36),
    ]


def test_bars_go_each_way() -> None:
    assert formatting.part_bar(2, 4) == formatting.Bar(50, 1, 25, 8, "unwanted")
    assert formatting.part_bar(-4, 4) == formatting.Bar(0, 1, 50, 8, "wanted")
    assert formatting.part_bar(0, 0).width == 0.5


# ---- explanations


def long_explanation(number: int):
    parts = [2.0 / (1 + position) for position in range(number)]
    return replace(
        explanation(),
        log_odds=sum(parts),
        prior=0.0,
        biases=0.0,
        traits={},
        numbers={},
        clues=[Clue(f"w{position}", part, {}) for position, part in enumerate(parts)],
    )


def test_groups_and_features_add_up() -> None:
    explained = formatting.build_explanation(explanation(), None)
    for rows in (explained.groups, explained.features):
        assert sum(row.part for row in rows) == pytest.approx(
            round(explained.why.log_odds, 3), abs=1e-9
        )


@pytest.mark.parametrize("number", [1, 25, 26, 400])
def test_every_page_adds_up_and_every_feature_is_on_one(number: int) -> None:
    why = long_explanation(number)
    pages = formatting.build_explanation(why, None).pages
    names = []
    for page in range(1, pages + 1):
        explained = formatting.build_explanation(why, None, page)
        total = sum(row.part for row in explained.features)
        assert total == pytest.approx(round(explained.why.log_odds, 3), abs=1e-9)
        names += [row.name for row in explained.features if row.name != "all other features"]
    assert names == [f"w{position}" for position in range(number)]


def test_the_first_page_leaves_out_a_third_at_most() -> None:
    rows = formatting.build_explanation(long_explanation(400), None).features
    others = sum(row.part for row in rows if row.name == "all other features")
    assert 0 < others <= sum(row.part for row in rows) / 3 + 0.001


@pytest.mark.parametrize("page", [-1, 0, 10**6])
def test_a_page_that_is_not_there_is_the_nearest(page: int) -> None:
    explained = formatting.build_explanation(long_explanation(400), None, page)
    assert explained.page == (1 if page < 1 else explained.pages)


def test_the_question_of_an_explanation() -> None:
    assert formatting.build_explanation(explanation(), None).question == "spam against ham"
    several = replace(SPAM, probabilities={"ham": 0.001, "news": 0.0003, "spam": 0.9987})
    assert (
        formatting.build_explanation(explanation(several), None).question
        == "unwanted mail against wanted, most likely spam against ham"
    )


def test_the_part_of_a_word_at_the_time() -> None:
    explained = formatting.build_explanation(
        explanation(), judgement(words=[WordPart("solar", 2.5)])
    )
    then = {row.name: row.then for row in explained.features}
    assert (then["solar"], then["meeting"]) == (2.5, None)


def test_sums_of_several_features_have_no_bar() -> None:
    why = long_explanation(400)
    unkept = [Clue("", 1.0, {}, "pairs"), Clue("", 1.0, {}, "pairs")]
    why = replace(why, clues=[*why.clues, *unkept], log_odds=why.log_odds + 2)
    rows = {row.name: row for row in formatting.build_explanation(why, None).features}
    assert rows["all other features"].bar is None


def test_parts_that_round_to_nothing_are_left_out() -> None:
    why = replace(
        explanation(),
        clues=[Clue("a", 6.5579, {}), Clue("b", 0.0001, {})],
        traits={},
        numbers={},
        biases=0.0,
    )
    names = [row.name for row in formatting.build_explanation(why, None).features]
    assert names == ["a", "prior"]
