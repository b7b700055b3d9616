"""The pages of the documentation as HTML: whole, harmless, and linked with one another."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import pytest

from spamguard.errors import NotThereError
from spamguard.web import documentation
from spamguard.web.documentation import PAGES, heading_anchor, read_shared_file, render_page
from tests.unit.web.fixed import Fixed
from tests.unit.web.test_views import get

_HREF = re.compile(r'<a href="([^"]*)"')


@pytest.mark.parametrize("topic", PAGES)
def test_a_page_has_all_headings_examples_and_tables(topic: str) -> None:
    source, html = read_shared_file(PAGES[topic]), render_page(topic, "")
    for title in re.findall(r"^##+ (.*)$", source, re.M):
        assert f' id="{heading_anchor(title)}">' in html
    assert html.count("<h1") == 1
    assert html.count("<pre ") >= source.count("```") / 2
    assert html.count("<table") == html.count('<div class="wide"')
    assert ("<table" in html) == ("|---" in source)


@pytest.mark.parametrize("root", ["", "/spam"])
@pytest.mark.parametrize("topic", PAGES)
def test_links_lead_to_pages_and_their_headings(topic: str, root: str) -> None:
    links = _HREF.findall(render_page(topic, root))
    assert links or "](" not in read_shared_file(PAGES[topic]).replace("](RESULTS.md", "")
    for link in links:
        path, _, anchor = urljoin(f"{root}/help/{topic}", link).partition("#")
        if not path.startswith("https:"):
            assert path.startswith(f"{root}/help/")
            target = render_page(path.removeprefix(f"{root}/help/"), root)
            assert not anchor or f' id="{anchor}"' in target, link


def test_nothing_that_the_security_policy_forbids_gets_through() -> None:
    for topic in PAGES:
        html = render_page(topic, "")
        assert "&lt;!--" not in html
        assert not re.search(r"<(?:script|style|iframe)|\sstyle=|\son\w+=", html)


def test_raw_html_is_shown_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "README.md").write_text(
        "# A & `<b>`\n\n<!-- tested: x -->\n```sh\n<script>\n```\n\n<script>alert(1)</script>\n\n"
        "![picture](x.png) [other](LICENSE) [evil](javascript:alert(1)) <b>bold</b>\n\n"
        "| n |\n|--:|\n| 1 |\n"
    )
    monkeypatch.setattr(documentation, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    render_page.cache_clear()
    html = render_page("overview", "")
    render_page.cache_clear()
    assert not re.search(r"<(?:script|b>)|<!--|href|style=|<img", html)
    assert '<h1 id="a--b">' in html
    assert "other [evil]" in html
    assert '<td class="n">1</td>' in html


def test_who_is_logged_in_can_read_them(tmp_path: Path) -> None:
    service = Fixed()
    first, topic, none = get(service, tmp_path, "/help", "/help/service", "/help/nonsense")
    assert (first.status_code, topic.status_code, none.status_code) == (200, 200, 404)
    assert 'href="/help/mail-system"' in first.text
    assert ' aria-current="page">Help</a>' in topic.text
    assert "<h1" in topic.text
    assert get(service, tmp_path, "/help", person=None)[0].status_code == 401


def test_there_is_no_such_topic() -> None:
    with pytest.raises(NotThereError):
        render_page("../../etc/passwd", "")
