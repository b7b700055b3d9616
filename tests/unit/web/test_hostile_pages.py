"""Whatever senders write, pages contain no element, attribute or address but ours, and no control
characters.
"""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import httpx

from spamguard.records import Clue, Explanation, Verdict
from spamguard.web.auth import Person
from spamguard.web.models import (
    Class,
    HeldMessage,
    JudgementDetails,
    LessonReceipt,
    Model,
    RecipientReply,
    ReleaseResult,
    User,
    WordPart,
)
from tests.unit.web.fixed import (
    NAME,
    NOW,
    Fixed,
    asking,
    explanation,
    judgement,
)
from tests.unit.web.test_views import MAIL, PAGES

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></title></style></svg><svg onload=alert(1)>",
    "\u202egnp.exe\u2066\u2069\u200f",
    "\x00\x1b[31m\x7f\r\n\ud800\ufeff",
    "&lt;b&gt;&#60;script&#62;",
    "//evil.example/x",
]
WORDS = " ".join(EVIL)
KNOWN = {
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "ul", "li",
    "div", "form", "input", "button", "main", "span", "h1", "h2", "p", "strong", "ol", "bdi", "i",
    "time", "details", "summary", "label", "select", "option", "table", "caption", "thead", "tbody",
    "tfoot", "tr", "th", "td", "dl", "dt", "dd", "code", "pre", "svg", "rect", "line", "text",
    "polyline", "circle", "defs", "pattern", "desc", "fieldset", "legend", "textarea", "section",
    "em", "h3", "kbd",
}  # fmt: skip


class Hostile(Fixed):
    """Everything that a stranger can have written is as bad as it gets."""

    def __init__(self) -> None:
        people = (WORDS, *EVIL)
        one = judgement(
            subject=WORDS, sender=WORDS, author=f"{WORDS} <{WORDS}>", recipients=people,
            client=WORDS, listener=WORDS, reply=WORDS, action=WORDS, label=WORDS, taught=WORDS,
            words=[WordPart(text, 1.0) for text in EVIL], personal={WORDS: WORDS},
        )  # fmt: skip
        held = HeldMessage(
            NAME, NOW, WORDS, WORDS, people, people, WORDS, 99, WORDS, released=False,
            probability=0.5,
        )  # fmt: skip
        super().__init__([one, replace(one, own=WORDS)], [held], header=WORDS)

    async def why(self, person: Person, name: str) -> tuple[JudgementDetails, Explanation]:
        return await self.judgement(person, name), self.explained()

    async def model(self, person: Person) -> Model:
        model = await super().model(person)
        return replace(
            model,
            users=[User(WORDS, {WORDS: 3}, NOW)],
            classes={WORDS: Class(3, unwanted=False)},
        )

    async def learn_passed(self, person: Person, name: str, label: str) -> LessonReceipt:
        return LessonReceipt(WORDS, WORDS, True, WORDS, Verdict(WORDS, 0.5, 0.0, {}))

    async def release(self, person: Person, name: str) -> ReleaseResult:
        return ReleaseResult(
            name, [RecipientReply(text, WORDS) for text in EVIL], released=False, taught=True
        )

    @staticmethod
    def explained() -> Explanation:
        clues = [Clue(text, 1.0, {WORDS: 2}) for text in EVIL]
        verdict = Verdict(WORDS, 0.5, 0.0, {WORDS: 0.5, "spam": 0.5})
        return replace(
            explanation(verdict),
            clues=clues,
            favoured=WORDS,
            against=WORDS,
            traits={WORDS: 1.0},
            shares={WORDS: 1.0},
        )


class Walk(HTMLParser):
    """Looks at every element of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in KNOWN, tag
        self.inside = tag
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style"
            if name in ("href", "src", "action", "formaction", "data-live"):
                assert value is not None
                assert value.startswith(("/", "#")), (tag, value)
                assert not value.startswith(("//", "/\\")), (tag, value)
            if name == "fill":
                assert value is not None
                assert value.startswith("url(#")

    def handle_data(self, data: str) -> None:
        assert self.inside not in ("script", "style") or not data.strip()

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def check(page: httpx.Response) -> None:
    acting = [letter for letter in page.text if not letter.isprintable() and letter not in "\n\t"]
    assert acting == []
    walk = Walk()
    walk.feed(page.text)
    walk.close()


def test_every_page_is_harmless(tmp_path: Path) -> None:
    pages: list[httpx.Response] = []

    async def work(client: httpx.AsyncClient) -> None:
        client.follow_redirects = True
        pages.extend([await client.get(path) for path in PAGES])
        for name in ("subject", "label", "taught", "since"):
            pages.append(await client.get("/history", params={name: WORDS.replace("\ud800", "")}))
        pages.append(await client.get("/login", params={"link": WORDS.replace("\ud800", "")}))
        pages.append(await client.post("/history", data={"class": f"spam {NAME}"}))
        pages.append(await client.post("/quarantine", data={NAME: NAME, "do": "release"}))
        pages.append(
            await client.post("/teach", data={"class": "spam"}, files={"file": ("<b>", MAIL)})
        )

    asking(work, Hostile(), tmp_path, person=Person(WORDS, operator=True))
    shown = [page for page in pages if "alert(1)" in page.text]
    assert len(shown) == len(pages)  # they do show it: the test looks at what it means to look at
    for page in pages:
        check(page)
