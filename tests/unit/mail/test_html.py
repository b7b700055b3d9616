"""HTML: what a reader sees, what is hidden, and how the page is built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail import html
from tests.unit.mail.support import repeatable, seconds


@pytest.mark.parametrize(
    "tag",
    [
        "<div style='display:none'>",
        '<div style="display : none;">',
        "<span style=visibility:hidden>",
        "<span style='font-size:0'>",
        "<span style='font-size:1px'>",
        "<span style='font-size:0.0em'>",
        "<span style='opacity:0'>",
        "<div style='max-height:0px;overflow:hidden'>",
        "<div hidden>",
        "<font color=white>",
        "<font color='#FFFFFF'>".lower(),
        "<span style='color:#fefefe'>",
        "<span style='color: white'>",
        "<span style='color:transparent'>",
        "<div style='position:absolute; left:-9999px'>",
        "<div style='top : -500em;position:relative'>",
        "<p style='text-indent:-999px'>",
        "<span style='color:rgb(255, 255, 255)'>",
        "<span style='color:rgb(255 255  255 / 1)'>",
        "<span style='color:rgba(254,255,255,1); background-color: rgb(255,255,255)'>",
        "<span style='color:#fff; background-color: rgb(255, 255, 255)'>",
        "<div title='a hidden b' style='display:none'>",
        "<div title='display:none' style = display:none>",
        "<div a=1 hidden=''>",
        '<p class="a"hidden>',
        "<div style='display:/**/none'>",
        "<div style='display:n\\6fne'>",
        "<div style='d\\69 splay:none'>",
        "<div style='display&colon;&#110;one'>",
        "<div style='display:&#000000000110;one'>",
        "<div style='display:none;display:no-such'>",
        "<div style='display:none!important;display:block'>",
        "<span style='font:0px  abc'>",
        "<span style='font:0 abc'>",
        "<span style='font:0/0 a'>",
        "<span style='font: bold 1px/2px a'>",
        "<span style='font:12px a;font-size:0'>",
        "<div style='height:0px;font-size:9px;overflow:hidden'>",
        "<div style='overflow:hidden;width:0;height:0'>",
        "<div style='position:absolute;clip:rect(0 0 0 0)'>",
        "<div style='position:absolute;clip: rect(1px, 1px, 1px, 1px)'>",
        "<div style='transform:scale(0)'>",
        "<div style='transform:rotate(9deg) scale3d(0,0,0)'>",
        "<div style='visibility:collapse'>",
        "<span style='opacity:0.01'>",
        "<span style='color:rgba(9, 9, 9, 0)'>",
        "<span style='color:rgb(9 9 9 / 0%)'>",
        "<span style='color:#12345600'>",
        "<font color=ffffff>",
        "<font color='fff'>",
    ],
)
def test_hidden_text(tag: str) -> None:
    name = tag[1:].partition(" ")[0]
    page = html.parse_page(f"<p>seen</p>{tag}covered <b>too</b></{name}><p>also seen</p>")
    assert page.visible.split() == ["seen", "also", "seen"]
    assert page.hidden.split() == ["covered", "too"]


@pytest.mark.parametrize(
    "markup",
    [
        '<! a="> seen ">',
        '<?x a="> seen ">',
        '</ a="> seen ">',
        '<a b=="> seen ">',
        '<a ="> seen ">',
        '<a b=x="> seen ">',
        "<a <!-- > seen -->",
        '<a t="b" <!-- --> seen <b>',
        "<a t=<style> seen",
        "<a <style> seen",
        "<<!---->a seen",
        "<style-x> seen",
        "<title:x> seen",
        "<script\x0b> seen",
        '<style a="></style><!--">x</style> seen',
        '<style a"="></style><!--">x"></style> seen',
        "<style>x</style <!--> seen",
        "<svg><style/></svg> seen",
        "<svg><!--> seen",
        "<svg><style><p> seen",
        "<math><title/> seen",
        "<svg><![cdata[<!--]]></svg> seen",
        "<select><style></select> seen",
        "<svg></svg><style><!--</style> seen",
        "<svg/><style><b a='</style> seen",
        "<textarea><!-- seen --></textarea>",
        "<xmp><style> seen </style></xmp>",
        "<plaintext><style> seen",
        "<iframe><style></iframe> seen",
        "<noframes><!--</noframes> seen",
        "<br <p hidden> seen </p>",
        '<p "hidden> seen',
        "<p =hidden> seen",
        '<p style=display:none"> seen',
    ],
)
def test_no_trick_of_markup_hides_what_readers_see(markup: str) -> None:
    page = html.parse_page("<p>one</p>" + markup)
    assert "seen" in page.visible.split(), page


@pytest.mark.parametrize(
    "markup",
    [
        "<p hidden>x<p>seen",
        "<p hidden>x<h1>seen",
        "<p hidden>x<li>seen",
        "<p><td><span hidden>x<h1>seen",
        "<table hidden><tr><td>x</td></tr><table><td>seen",
        "<p hidden>x<table><tr><td>seen</table>",
        "<p hidden>x<section>seen</section>",
        "<h1 hidden>x<h2>seen",
        "<p><span hidden>x</p>seen",
        "<p><span hidden>x<p>seen",
        "<div><span hidden>x</div>seen",
        "<ul><li hidden>x<li>seen</ul>",
        "<ul><li hidden>x</ul>seen",
        "<dl><dt hidden>x<dd>seen</dl>",
        "<table><tr><td hidden>x<td>seen</table>",
        "<table hidden>seen<tr><td>x</table>",
        "<table><tr hidden>seen<td>x</table>",
        "<table><tr><td hidden>x<tr><td>seen</table>",
        "<table><tr><td><span hidden>x<td>seen</table>",
        "<table><tr><td hidden>x</table>seen",
        "<table><tr hidden><td>x<tbody><tr><td>seen</table>",
        "<a hidden>x<a>seen",
    ],
)
def test_hidden_elements_end_where_others_close_them(markup: str) -> None:
    page = html.parse_page(markup)
    assert (page.visible.split(), page.hidden.split()) == (["seen"], ["x"])


@pytest.mark.parametrize(
    "markup",
    [
        "<p hidden>a<b>b</b></p>",
        "<ul><li><ul hidden><li>a<li>b</ul></ul>",
        "<ul><li hidden>a<ul><li>b</ul></ul>",
        "<table><tr><td hidden>a<table><tr><td>b</table></table>",
        "<table><tr hidden><td>a<td>b</table>",
        "<table><tbody hidden><tr><td>a<tr><td>b</table>",
        "<p><div hidden><p>b</div>",
        "<p><div><span hidden><p>b</span></div>",
        "<div hidden>a</p><p>b</p></div>",
        "<div><font hidden>a</div>b",
        "<span hidden>a</div>b</span>",
        "<div></div><span hidden>a</div>b</span>",
    ],
)
def test_hidden_elements_do_not_end_before(markup: str) -> None:
    assert not html.parse_page(markup).visible.strip()


@pytest.mark.parametrize(
    "markup",
    [
        "<td style='font-size:0px;padding:9px'>"
        "<div style='color:red;font-size: 13px'>seen</div></td>",
        "<table><tr><td style='font-size:0px'>x<table><tr><td style='font-size:0;'>x"
        "<p style='font:bold 12pt Arial'>seen</p></table></td>",
        "<div style='font-size:0'><span style='font-size:1.2rem'>seen</span></div>",
        "<div style='font-size:0'><font color=red size=2>seen</font></div>",
        "<div style='font-size:0'><b style='font-size:medium'>seen</b></div>",
        "<font color=#ffffff><font color=blue>seen</font></font>",
        "<div style='color:white'>x<b style='color: #123'>seen</b></div>",
        "<div style='visibility:hidden'>x<b style='visibility:visible'>seen</b></div>",
        "<span style='font-size:0;text-indent:-999px'>x<b style='font-size:13px'>seen</b></span>",
    ],
)
def test_text_hidden_by_size_or_colour_is_visible_where_it_has_another(markup: str) -> None:
    assert html.parse_page(markup).visible.split() == ["seen"]


@repeatable
@given(st.text("<>/!-abps =\"'&#;x0:style", max_size=400))
def test_any_markup_is_read(markup: str) -> None:
    page = html.parse_page(markup)
    assert len(page.visible) <= 2 * len(markup)


@repeatable
@given(st.text("abc <>&;#\n", max_size=300))
def test_text_without_tags_is_all_visible(text: str) -> None:
    text = text.replace("<", "").replace("&", "")
    assert html.parse_page(text).visible == text


@pytest.mark.parametrize(
    ("rule", "tag"),
    [
        (".x{display:none}", "<div class=x>"),
        (".x{display:none}", "<p class='a x b'>"),
        ("p.y, div.x { color:red; font-size:0 }", '<div class="x">'),
        ("#x{left:-1000px;position:fixed}", "<div id=x>"),
        ("@media screen{.x{display:none}}", "<div class=x>"),
        ("@media (max-width:9px){.y{color:red}} .x{display:none}", "<div class=x>"),
        ("a{b{c}} .x{display:none", "<div class=x>"),
        ("@import url(y); .x{display:none}", "<div class=x>"),
        ("@media only screen{.x{display:none}}", "<div class=x>"),
        ("/* .y */ .x{display:none}", "<div class=x>"),
        (".x{display:block} .x{display:none}", "<div class=x>"),
        (".x{display:none!important} .x{display:block}", "<div class=x>"),
        (".x{display:none!important}", "<div class=x style='display:block'>"),
        ("xx{display:none}", "<xx>"),
        ("q, b{display:none}", "<b class=z>"),
        ("@import url('y?a@1;2;3'); .x{display:none}", "<div class=x>"),
        (
            "@import url(y?a@1;2;3) screen and (min-width:1px); @import 'z;z'; .x{display:none}",
            "<div class=x>",
        ),
        ("<!-- .x{display:none} -->", "<div class=x>"),
        (".y{color:red} --> <!-- .x{display:none}", "<div class=x>"),
    ],
)
def test_style_sheets_hide(rule: str, tag: str) -> None:
    page = html.parse_page(f"<style>{rule}</style>buy {tag}good")
    assert ("good" in page.hidden, "good" in page.visible) == (True, False)


@pytest.mark.parametrize(
    ("rule", "tag"),
    [
        (".x{display:none}", "<div class=xy>"),
        (".x{display:none}", "<div title=x>"),
        (".x{color:red}", "<div class=x>"),
        (".x:hover{display:none}", "<div class=x>"),
        (".x p{display:none}", "<div class=x>"),
        (
            "@media only screen and (max-width:600px){.y{color:red} .x{display:none}}",
            "<div class=x>",
        ),
        ("@media (min-width:1px){@media print{.x{display:none}}}", "<div class=x>"),
        (".x{margin-left:-1000px}", "<div class=x>"),
        (".x{left:-99px}", "<div class=x>"),
        ("@media print{.x{display:none}}", "<div class=x>"),
        ("@keyframes a{b{opacity:0}}", "<b>"),
        (".x{display:none} .x{display:block}", "<div class=x>"),
        (".x{display:none}", "<div class=x style='display:block'>"),
        (".nowhere .x{display:none}", "<div class=x>"),
        (
            ".x{display:none}"
            + "".join(f".y{number}{{display:none}}" for number in range(60))
            + ".x{display:block}",
            "<div class=x>",
        ),
        ("b{display:none}", "<br>"),
        ("b{display:none}", "<b style='display:inline'>"),
        ("@media (max-width: 670px) .y, .x {color:red .z display:none}", "<div class=x>"),
        (".x{display:none} body .x{display:block}", "<div class=x>"),
        ("p.x{display:none}", "<div class=x>"),
        (".y{} } .x{display:none}", "<div class=x>"),
        (".x{display:none} @media (min-width:9px){.x{display:block}}", "<div class=x>"),
        (".x{display:none} .y{content:'}'} body .x{display:block}", "<div class=x>"),
        ("y;.x{display:none}", "<div class=x>"),
        (".y{color:red;.x{display:none}}", "<div class=x>"),
        (".x{display:none} div.x{display:block}", "<div class=x>"),
        ("body .x{display:block} .x{display:none}", "<div class=x>"),
        (".x{display:none} [class]{display:block}", "<div class=x>"),
        (".x{display:none} div{display:block!important}", "<div class=x>"),
        (".x{visibility:hidden} p > .x{visibility:visible}", "<b class=x>"),
        (".x{display:block!important}", "<div class=x style='display:none'>"),
        ("*{display:block!important}", "<div style='display:none'>"),
        ("*{d\\69splay:block!important}", "<div style='display:none'>"),
        (".x{display:none} @media not print{.x{display:block}}", "<div class=x>"),
        (".x{display:none} @media (max-width:9999px){.x{display:block}}", "<div class=x>"),
        (
            ".x{visibility:hidden;color:white} div.x{visibility:visible} body{background:black}",
            "<div class=x>",
        ),
        (
            "".join(f".y .z{number}{{display:block}}" for number in range(60))
            + "div{display:block!important}",
            "<div style='display:none'>",
        ),
        ("div:not(.y){display:block!important}", "<div style='display:none'>"),
        ("p{font-size:12px!important}", "<p style='font-size:0'>"),
        (".x{display:none} div:nth-child(n){display:block}", "<div class=x>"),
        (".x{display:none} [title='.q']{display:block}", "<div class=x title='.q'>"),
        (".x{display:none} [title='a .b']{display:block}", "<div class=x title='a .b'>"),
        (".x{display:none} [title='::']{display:block}", "<div class=x title='::'>"),
        (".x{display:none} ." + "a" * 61 + "{display:block}", f"<div class='x {'a' * 61}'>"),
        (".x{display:none} .y{display:block}", "<div class='x y'>"),
        (".x{display:none} #y{display:block}", "<div class=x id='&#121;'>"),
        (".x{display:none} .x{&{display:block}}", "<div class=x>"),
        (".x{display:none} .x{@media all{display:block}}", "<div class=x>"),
        (".x{display:none} .x{display:block flow}", "<div class=x>"),
        ("@layer a{.x{display:none}} div{display:block}", "<div class=x>"),
        ("div{display:none} body div{display:block}", "<div>"),
        ("div{display:none} @media (min-width:9px){div{display:block}}", "<div>"),
        (".x{position:absolute;left:-999px} body .x{left:0;}", "<div class=x>"),
        (".x{position:absolute;left:-999px} [class]{position:static}", "<div class=x>"),
        (".x{height:0;overflow:hidden} body .x{overflow:visible}", "<div class=x>"),
        (".x{color:transparent} body .x{color:black}", "<div class=x>"),
        (".x{transform:scale(0)} body .x{transform:none}", "<div class=x>"),
        (
            ".x{display:none}"
            " @media only screen and (max-width:480px){.x{display:block!important}}",
            "<div class=x>",
        ),
        (
            "@media (max-width:30em){[class=x]{display:block!important;font-size:16px!important}}",
            "<b class=x style='display:none;font-size:0'>",
        ),
        (
            ".x{display:none} @media (max-width:200px), (min-width:1px){.x{display:block}}",
            "<div class=x>",
        ),
        (".x{display:none} @media print, screen{.x{display:block}}", "<div class=x>"),
        (
            ".x{display:none} @media not all and (max-width:200px){.x{display:block}}",
            "<div class=x>",
        ),
        (
            ".x{display:none} @media (max-width:200px) or (min-width:1px){.x{display:block}}",
            "<div class=x>",
        ),
        (".x{display:none} @supports (max-width:200px){.x{display:block}}", "<div class=x>"),
        (".x{display:none} @supports not (keyframes:y){.x{display:block}}", "<div class=x>"),
        (".x{display:none} @container (max-width:200px){.x{display:block}}", "<div class=x>"),
        (
            r"@media (min-width:9px){.a\:x{display:block!important}}",
            "<div class='a:x' style='display:none'>",
        ),
        (r".a\+x{display:block!important}", "<div style='display:none'>"),
        (".x{display:none} .y{display:none} .x.y{display:block}", "<div class='y x'>"),
        ("*[class='x']{display:block!important}", "<div class=x style='display:none'>"),
        ("*[class*='x']{display:block!important}", "<div class=xy style='display:none'>"),
        (".x<!--{display:none}", "<div class=x>"),
        (".y @import 'z'; .x{display:none}", "<div class=x>"),
        ("@import url(y) .x{display:none}", "<div class=x>"),
        ("@import url(y;z{} .x{display:none}", "<div class=x>"),
        (".y{background:url(z} .x{display:none}", "<div class=x>"),
        ("y;@media screen{.x{display:none}}", "<div class=x>"),
        ("} .x{display:none}", "<div class=x>"),
        ("p{font-size:14px}", "<div style='font-size:0'>x<p>"),
        (".x{font:bold 1rem a}", "<div style='font-size:0'>x<b class=x>"),
        (".y, .x{color:#333}", "<div style='color:transparent'><b class='z x'>"),
        ("@media (max-width:480px){b{visibility:visible}}", "<div style='visibility:hidden'>x<b>"),
        (".x{font-size:0} body .x{font-size:inherit}", "<div class=x>"),
    ],
)
def test_elements_that_a_style_sheet_shows_on_some_screen_are_visible(rule: str, tag: str) -> None:
    assert "good" in html.parse_page(f"<style>{rule}</style>buy {tag}good").visible


@pytest.mark.parametrize(
    ("rule", "tag"),
    [
        (".x{display:none!important} body .x{display:block}", "<div class=x>"),
        (".x{display:none} div{display:block}", "<div class=x>"),
        ("img{display:block!important}", "<div style='display:none'>"),
        (".x{display:none} .x:after{display:block}", "<div class=x>"),
        (".y{display:block!important}", "<div style='display:none'>"),
        ("p{display:block} div{display:none} body p{display:block}", "<div>"),
        (".x{display:none} body div, div:after{display:block}", "<div class=x>"),
        ("*[x-apple-data-detectors]{font-size:inherit!important}", "<p style='font-size:0'>"),
        (
            ".x{display:none} @media (max-width:9px){body .x{display:block!important}}",
            "<div class=x>",
        ),
        (
            ".x{display:none} @media print, (max-width:18em), (max-width:299.5px)"
            "{.x{display:block!important}}",
            "<div class=x>",
        ),
        (".x{display:none} @-webkit-keyframes y{.x{display:block}}", "<div class=x>"),
        (".x{display:none} .x.y{display:block}", "<div class=x>"),
        ("p{font-size:14px}", "<div style='font-size:0;display:none'><p>"),
        ("a{color:inherit;font-size:inherit}", "<div style='font-size:0;color:transparent'><a>"),
        ("p{font-size:1.2em}", "<div style='font-size:0'><p>"),
        ("p{font-size:14px}", "<div style='font-size:0'><pre>"),
        (
            "@media (max-width:480px){table[class='y']{display:block!important}}",
            "<div style='display:none'>",
        ),
        (
            r".y\:z{display:block!important} .w-\[9px\], .p-0\.5{display:flex!important}",
            "<div style='display:none'>",
        ),
        (
            "".join(f".y{number}{{display:block!important}}" for number in range(300)),
            "<div style='display:none'>",
        ),
    ],
)
def test_rules_for_other_elements_show_nothing(rule: str, tag: str) -> None:
    assert html.parse_page(f"<style>{rule}</style>buy {tag}good").visible.split() == ["buy"]


@pytest.mark.parametrize(
    ("attributes", "rules", "seen"),
    [
        ("media='(min-width:1px)'", ".x{display:block!important}", True),
        ("media='screen and (max-width:480px)'", "} .y{} .x{display:block!important", True),
        ("media='(min-width:1px)/**/'", ".x{display:block!important}", True),
        ("title=y", ".x{display:block!important}", True),
        ("media=all media=print", ".x{display:block!important}", True),
        ("media=print", ".x{display:block!important}", False),
        ("media='(max-width:9px)'", ".x{display:block!important}", False),
        ("type=y", ".x{display:block!important}", False),
        ("media='(min-width:1px)'", "} .y{display:block}", False),
    ],
)
def test_a_style_sheet_shows_where_some_screen_has_it_in_force(
    attributes: str, rules: str, seen: bool
) -> None:
    for before in ("", "<a b='>'>"):
        page = html.parse_page(
            f"{before}<style>.x{{display:none}}</style><style {attributes}>{rules}</style>"
            "<div class=x>good"
        )
        assert ("good" in page.visible) is seen


@pytest.mark.parametrize("media", ["print{} .x{display:none} @media print", "print"])
@pytest.mark.parametrize(
    "rules", [".x{display:none}", "} .x{display:none} {", "{} } .y{} .x{display:none}"]
)
def test_a_style_sheet_with_a_condition_hides_nothing(media: str, rules: str) -> None:
    assert (
        "good"
        in html.parse_page(f"<style media='{media}'>{rules}</style><div class=x>good").visible
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "<style>display:none" + "@media(" * 40_000,
        "<style>display:none " + ".a" * 60_000,
        "<style>" + ".a{display:none}" * 20_000,
        "<style>display:none " + "@media (" * 20_000 + "{" * 20_000 + "}" * 20_000,
        "<style>.a{display:none}</style>" + "<p class='a'>" * 20_000,
        "<style>.a{display:none}</style><p class=a>" + "class= " * 20_000,
        "<style>.a{display:none}" + ".a,b{display:none}" * 20_000,
        "<style>.a{display:none;" + "/*" * 100_000,
        "<style>.a{display:none;" + "(" * 100_000 + "'" * 100_000,
        "<style>.a{display:none;" + "color:rgba(0" + ", " * 100 + ";" * 2000,
        "<p hidden><style>" + "a .b{display:block}" * 12_000,
        "<p hidden><style>" + "a," * 120_000 + "b{display:block!important}",
        "<style>p{display:none}</style>" + "<p>" * 80_000,
        "<p hidden><style>a{display:block!important}" + "a .b > [c] " * 20_000 + "{display:block}",
        "<p style='" + "font:a a a a a a a a a 0 a;" * 10_000,
        "<p style='" + "\\6e" * 60_000,
        "<p style='" + "font:   " * 30_000,
        "<p style='display:none;" + "&#" + "9" * 60_000,
        "".join(f"<p style='display:none' a{number}>x</p>" for number in range(8000)),
        "<p hidden><style>" + "@import url(" * 20_000,
        "".join(f"<a href='&#104;ttp://a{number}.example'>" for number in range(8000)),
        "<a href='&#" + "href= " * 40_000,
        "<style>"
        + "".join(
            f".y{number}{{font-size:1px}} a .z{number}{{font-size:9px}}" for number in range(50)
        )
        + "</style>"
        + "<p class=y1>z" * 15_000,
        "<p hidden><style>" + ".y{} <!-- @import '" * 12_000,
        "<p hidden><style>" + ".y{}" + "<!--" * 60_000,
        "<p hidden><style>" + "".join(f".y{number}{{display:block}}" for number in range(12_000)),
        "<p hidden><style>" + ".y" * 100_000 + "{display:block}",
        "<p style='display:none'>x</p>" * 9000 + "style='display:none'" * 9000,
    ],
)
def test_hostile_style_sheets_take_no_longer(source: str) -> None:
    assert seconds(lambda: html.parse_page(source), 1) < 3


@given(st.text("/\"'= \t\n:s\\&#a;", max_size=12))
def test_an_odd_link_is_found_wherever_it_stands(before: str) -> None:
    """Whatever else stands in front, a link without a scheme is one."""
    link = "<a href='//example.org/x'>"
    assert (
        "https://example.org/x"
        in html.parse_page(f"<p title='{before.replace(chr(39), '')}'>{link}").links
    )
