"""HTML: what a reader sees, what is hidden, and how long that takes to find out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail import html
from tests.unit.mail.support import repeatable, seconds


@pytest.mark.parametrize(
    "tag",
    [
        "<div style='display : none;'>",
        "<span style=visibility:hidden>",
        "<div style='visibility:collapse'>",
        "<span style='font-size:0'>",
        "<span style='font-size:1px'>",
        "<span style='font:0/0 a'>",
        "<span style='font: bold 1px/2px a'>",
        "<span style='opacity:0.01'>",
        "<div style='max-height:0px;overflow:hidden'>",
        "<div hidden>",
        '<p class="a"hidden>',
        "<font color='#ffffff'>",
        "<font color=fff>",
        "<span style='color:#fefefe'>",
        "<span style='color:rgba(254,255,255,1); background-color: rgb(255 255 255 / 1)'>",
        "<span style='color:transparent'>",
        "<span style='color:#12345600'>",
        "<span style='color:rgb(9 9 9 / 0%)'>",
        "<div style='background:#369;color:#336699'>",
        "<td bgcolor=navy style='color:rgb(0, 0, 128)'>",
        "<div style='position:absolute; left:-9999px'>",
        "<p style='text-indent:-999px'>",
        "<p style='margin-left:-9999px'>",
        "<div style='position:absolute;clip: rect(1px, 1px, 1px, 1px)'>",
        "<div style='clip-path:inset(100%)'>",
        "<div style='transform:rotate(9deg) scale3d(0,0,0)'>",
        "<div title='a hidden b' style='display:none'>",
        "<div title='x > y' style='display:none'>",
        "<div style='display:/**/none'>",
        "<div style='display:n\\6fne'>",
        "<div style='display&colon;&#000000000110;one'>",
    ],
)
def test_hidden_text(tag: str) -> None:
    name = tag[1:].partition(" ")[0]
    page = html.parse_page(f"<p>seen</p>{tag}covered <b>too</b></{name}><p>also seen</p>")
    assert page.visible.split() == ["seen", "also", "seen"]
    assert page.hidden.split() == ["covered", "too"]


@pytest.mark.parametrize(
    ("rule", "inside"),
    [
        (".x{display:none}", "<div class='a x b'>x</div>"),
        ("p.y, div.x { color:red; font-size:0 }", "<div class=x>x</div>"),
        ("div.x.y{display:none}", "<div class='y x'>x</div>"),
        ("#x{left:-1000px;position:fixed}", "<div id=x>x</div>"),
        ("@import url(y); @media only screen{.x{display:none}}", "<div class=x>x</div>"),
        ("@media (max-width:9px){.y{color:red}} .x{display:none}", "<div class=x>x</div>"),
        ("<!-- /* .y */ .x{display:none} -->", "<div class=x>x</div>"),
        ("q, b{display:none}", "<b class=z>x</b>"),
        (".q p{display:none}", "<div class=q><i><p>x</p></i></div>"),
        ("#q > p{display:none}", "<div id=q><p>x</p></div>"),
        ("[class]{display:none}", "<div class=z>x</div>"),
        ("p[class*='x']{display:none}", "<p class=axb>x</p>"),
        (".x{color:#eee;background:#eee}", "<div class=x>x</div>"),
        ("body{background:black} .x{color:#000}", "<body><div class=x>x</div>"),
    ],
)
def test_style_sheets_hide(rule: str, inside: str) -> None:
    page = html.parse_page(f"<style>{rule}</style>{inside}<font color=red>seen</font>")
    assert (page.visible.split(), page.hidden.split()) == (["seen"], ["x"])


@pytest.mark.parametrize(
    "source",
    [
        "<style>.x{display:none}</style><div title=x>seen",
        "<style>.x:hover{display:none}</style><div class=x>seen",
        "<style>.y .x{display:none}</style><div class=y></div><div class=x>seen",
        "<style>@media (max-width:600px){.y{color:red} .x{display:none}}</style><div class=x>seen",
        "<style media=print>.x{display:none}</style><div class=x>seen",
        "<style>.x{margin:-1000px}</style><div class=x>seen",
        "<style>.x{display:none}</style><div class=x style='display:block'>seen",
        "<b hidden></b><td bgcolor=navy><font color=white>seen</font>",
        "<div style='background:url(x)'><font color=white>seen</font>",
        "<body bgcolor=white text=white>x<font color=red>seen</font>x",
        "<div style='font-size:0'>x<b style='font-size:13px'>seen</b>x</div>",
        "<font color=#ffffff>x<font color=blue>seen</font></font>",
        "<p hidden>x<p>seen",
        "<p hidden>x<table><tr><td>seen",
        "<ul><li hidden>x<ul><li>x</ul><li>seen</ul>",
        "<table><tr><td hidden>x<table><tr><td>x</table><td>seen",
        "<table><tr hidden><td>x<tr><td>seen",
        "<div><span hidden>x</div>seen",
        "<br hidden>seen<input type=hidden>",
        "<!-->seen<!---->",
        "<title:x> seen",
        "<img alt='x>y'>seen",
        "<img alt='>seen",
    ],
)
def test_what_readers_see_is_visible(source: str) -> None:
    assert html.parse_page(source).visible.split() == ["seen"]


def test_letters_in_table_cells_are_a_word() -> None:
    cells = "".join(f"<td>{letter}</td>" for letter in "voucher")
    assert html.parse_page(f"<table><tr>{cells}</tr></table>").visible.split() == ["voucher"]


@repeatable
@given(st.text("<>/!-abps =\"'&#;x0:style{}@", max_size=400))
def test_any_markup_is_read(markup: str) -> None:
    page = html.parse_page(markup)
    assert len(page.visible) <= 2 * len(markup)


@repeatable
@given(st.text("abc <>&;#\n", max_size=300))
def test_text_without_tags_is_all_visible(text: str) -> None:
    text = text.replace("<", "").replace("&", "")
    assert html.parse_page(text).visible == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "<style>display:none" + "@media(" * 40_000,
        "<style>display:none" + "@" * 90_000 + "}" + "@" * 90_000,
        "<style>display:none " + ".a" * 60_000,
        "<style>" + ".a{display:none}" * 20_000,
        "<style>" + ".a .b > [c]{display:none}" * 10_000,
        "<style>a{display:none}" + " " * 200_000 + "a{" + "a " * 90_000 + "{}",
        "<style>display:none " + "@media (" * 20_000 + "{" * 20_000 + "}" * 20_000,
        "<style>.a{display:none}</style>" + "<p class='a'>" * 20_000,
        "<style>.a{display:none}</style><p class=a>" + "class= " * 20_000,
        "<style>.a{display:none;" + "/*" * 100_000,
        "<style>.a{display:none;" + "color:rgba(0" + ", " * 100 + ";" * 2000,
        "<p style='" + "font:a a a a a a a a a 0 a;" * 10_000,
        "<p style='" + "\\6e" * 60_000,
        "<p style='" + "font:   " * 30_000,
        "<p style='display:none;" + "&#" + "9" * 60_000,
        "".join(f"<p style='display:none' a{number}>x</p>" for number in range(8000)),
        "".join(f"<p style='color:#ff{number:04}'>x</p>" for number in range(8000)),
        "<div hidden>" * 30_000 + "</p>" * 30_000,
        "".join(f"<a href='&#104;ttp://a{number}.example'>" for number in range(8000)),
        "<a href='&#" + "href= " * 40_000,
        "<a b='" * 40_000,
    ],
)
def test_hostile_pages_take_no_longer(source: str) -> None:
    assert seconds(lambda: html.parse_page(source), 1) < 1


@given(st.text("/\"'= \t\n:s\\&#a;", max_size=12))
def test_an_odd_link_is_found_wherever_it_stands(before: str) -> None:
    """Whatever else stands in front, a link without a scheme is one."""
    link = "<a href='//example.org/x'>"
    assert (
        "https://example.org/x"
        in html.parse_page(f"<p title='{before.replace(chr(39), '')}'>{link}").links
    )
