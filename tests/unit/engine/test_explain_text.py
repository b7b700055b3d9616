"""Explanations as people read them: figures, the sentence, the groups, what is shown first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spamguard.engine import explain_text, policy
from spamguard.engine.explain_text import GROUPS, KINDS
from spamguard.records import Clue, Explanation, Verdict

SPAM = Verdict("spam", 0.99, 4.6, {"spam": 0.99, "ham": 0.01})
UNSURE = Verdict("unsure", 0.5, 0.4, {"spam": 0.6, "ham": 0.4})


def explanation(*clues: Clue, verdict: Verdict = SPAM, few: bool = False) -> Explanation:
    total = sum(clue.part for clue in clues)
    return Explanation(verdict, "spam", "ham", total, 0.0, 0.0, {}, {}, clues, {}, {}, few=few)


def describe(explanation: Explanation) -> str:
    return explain_text.describe_verdict(explanation, explain_text.list_features(explanation))


@pytest.mark.parametrize(
    ("clue", "kind", "group", "name"),
    [
        (Clue("money", 1, {}), "word", "words", "money"),
        (Clue("much money", 1, {}, "pairs"), "pair", "words", "much money"),
        (Clue("subject:cheap … pills", 1, {}, "grams"), "subject", "words", "cheap … pills"),
        (Clue("letters:e:_1!", 1, {}, "grams"), "letters", "letters", "e:_1!"),
        (Clue("address:anna-at-example_org", 1, {}, "clues"), "address", "sender",
         "anna@example.org"),
        (Clue("received:esmtp", 1, {}, "clues"), "server", "sender", "esmtp"),
        (Clue("names:list-id", 1, {}, "clues"), "header field", "sender", "list-id is there"),
        (Clue("x-mailer:acme", 1, {}, "clues"), "header field", "sender", "x-mailer: acme"),
        (Clue("letters:acme", 1, {}, "clues"), "header field", "sender", "letters: acme"),
        (Clue("clue:sender_not_passed_on", 1, {}, "clues"), "relation", "sender",
         "no server of the sender's domain passed it on"),
        (Clue("host:shop_example_org", 1, {}, "clues"), "link host", "links", "shop.example.org"),
        (Clue("clue:links_elsewhere", 1, {}, "clues"), "link trait", "links",
         "links lead to other domains than the sender's"),
        (Clue("tags:font", 1, {}, "clues"), "markup", "layout", "font"),
        (Clue("hidden:money", 1, {}, "clues"), "hidden word", "layout", "money"),
        (Clue("part content-type:text", 1, {}, "clues"), "structure", "layout",
         "part content-type: text"),
    ],
)  # fmt: skip
def test_kind_group_and_name_of_a_token(clue: Clue, kind: str, group: str, name: str) -> None:
    assert explain_text.describe_clue(clue) == (kind, name)
    assert KINDS[kind].group == group


def test_caution_is_told_where_it_decides() -> None:
    cautious = replace(explanation(Clue("money", 5.0, {}), verdict=UNSURE), cautious=True)
    assert "enough for spam once 500 good messages are known" in describe(cautious)


@pytest.mark.parametrize(
    ("verdict", "spam_from", "parts", "sentence"),
    [
        (SPAM, 0.9, (2.5, -9.0, 1.0), "Without its strongest word for spam it would be unsure."),
        (SPAM, 0.9, (1.5, -9.0, 1.0), "Without its 2 strongest words for spam it would be unsure."),
        (UNSURE, 0.9, (-1.0, -1.0), "Without its 2 strongest words for ham it would be spam."),
        (UNSURE, 0.999, (3.0, -1.0), "Without its strongest word for spam it would be ham."),
        (SPAM, 0.9, (1.0, -9.0, 1.0), ""),
    ],
)
def test_what_would_change_a_label(
    verdict: Verdict, spam_from: float, parts: tuple[float, ...], sentence: str
) -> None:
    flip = policy.find_flip(verdict, ("spam", "ham"), parts, spam_from)
    why = replace(explanation(verdict=verdict), flip=flip)
    assert explain_text.describe_flip(why) == sentence


def test_every_kind_has_a_group() -> None:
    assert {kind.group for kind in KINDS.values()} == set(GROUPS)
