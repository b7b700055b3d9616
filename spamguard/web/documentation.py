"""The documentation: its pages by topic, as `spamguard help TOPIC` prints and *Help* shows them.

The pages are the READMEs of the sources; an installation holds them in `share/spamguard`.
`render_page` makes HTML of one with markdown-it-py, which is loaded when the first page is shown.
Links between pages lead to other pages of *Help*, headings get the anchors that GitHub gives them,
and what is wide can be scrolled.

Raw HTML must never get through, nor a style, which the security policy of the page forbids.
"""

from __future__ import annotations

import posixpath
import re
import sysconfig
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from spamguard.errors import NotThereError, SpamguardError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PAGES = {
    "overview": "README.md",
    "mail-system": "config/README.md",
    "service": "systemd/README.md",
    "how-it-works": "spamguard/README.md",
    "measuring": "corpora/README.md",
    "contributing": "tests/README.md",
}
"""The pages of the documentation, by topic."""
_TOPICS = {file: topic for topic, file in PAGES.items()}
_COMMENT = re.compile(r"^ *<!--.*?-->\n", re.MULTILINE | re.DOTALL)  # marks of the tests


def read_shared_file(name: str) -> str:
    """Read a page or snippet: beside the package in its sources, else in the installation.

    SpamguardError: it is not there.
    """
    sources = Path(__file__).parents[2]
    shared = Path(sysconfig.get_path("data")) / "share" / "spamguard"
    file = (sources if (sources / "pyproject.toml").exists() else shared) / name
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise SpamguardError(f"{file} is not installed ({error.strerror})") from error


@lru_cache(2 * len(PAGES))
def render_page(topic: str, root: str) -> Markup:
    """Make HTML of a page. root: path of the application below its host.

    NotThereError: there is no such topic.
    """
    if topic not in PAGES:
        raise NotThereError("there is no such page of the documentation")
    directory, parser = posixpath.dirname(PAGES[topic]), _make_parser()
    tokens = parser.parse(_COMMENT.sub("", read_shared_file(PAGES[topic])))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrs["id"] = heading_anchor(following.content)
        elif token.attrs.pop("style", ""):  # the only style is that of columns of numbers
            token.attrs["class"] = "n"
        if token.children:
            token.children = list(_lead_to_pages(token.children, directory, root))
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704  it escapes


def heading_anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it.

    >>> heading_anchor("`judge`, and what follows")
    'judge-and-what-follows'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _make_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415  not before somebody reads a page

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    scrolled = 'tabindex="0" role="group" aria-label'
    rules = {
        "table_open": lambda *_: f'<div class="wide" {scrolled}="Table"><table>\n',
        "table_close": lambda *_: "</table></div>\n",
        **dict.fromkeys(
            ("fence", "code_block"),
            lambda _, tokens, at, *__: (
                f'<pre {scrolled}="Example"><code>{escape(tokens[at].content)}</code></pre>\n'
            ),
        ),
    }
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


def _lead_to_pages(children: Sequence[Token], directory: str, root: str) -> Iterator[Token]:
    """Let relative links lead to pages of *Help*; of a link to any other file the text stays.

    Pictures are left out: they show these web pages.
    """
    is_dropped = False
    for child in children:
        if child.type == "link_open":
            path, hash_sign, anchor = str(child.attrs["href"]).partition("#")
            topic = _TOPICS.get(posixpath.normpath(posixpath.join(directory, path)))
            is_dropped = bool(path) and topic is None and not path.startswith("https:")
            if path and topic:
                child.attrs["href"] = f"{root}/help/{topic}{hash_sign}{anchor}"
        if child.type != "image" and not (is_dropped and child.type.startswith("link_")):
            yield child
