"""Explanations as people read them: figures, the sentence, the groups, what is shown first."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spamguard.engine import explain_text
from spamguard.engine.explain_text import GROUPS, KINDS
from spamguard.engine.filter import Filter
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import TOKEN_SETS, Clue, Explanation, Verdict


def test_rounded_parts_add_up() -> None:
    parts = [1 / 3, 1 / 3, 1 / 3, 0.0004]
    assert sum(explain_text.round_parts(parts, sum(parts))) == round(
        sum(parts) * explain_text.STEPS_PER_NAT
    )


def test_of_what_the_log_odds_are() -> None:
    assert explain_text.describe_odds(explanation()) == "spam against ham"
    three = Verdict("spam", 0.99, 4.6, {"spam": 0.99, "ham": 0.005, "news": 0.005})
    assert (
        explain_text.describe_odds(explanation(verdict=three))
        == "unwanted mail against wanted, most likely spam against ham"
    )


SPAM = Verdict("spam", 0.99, 4.6, {"spam": 0.99, "ham": 0.01})
UNSURE = Verdict("unsure", 0.5, 0.4, {"spam": 0.6, "ham": 0.4})


def explanation(*clues: Clue, verdict: Verdict = SPAM, few: bool = False) -> Explanation:
    total = sum(clue.part for clue in clues)
    return Explanation(
        verdict, "spam", "ham", total, 0.0, 0.0, {}, {}, clues, {}, {}, -1.5, 1, few=few
    )


def choose(explanation: Explanation, max_words: int | None = None) -> explain_text.ShownFeatures:
    features = explain_text.list_features(explanation)
    return explain_text.choose_features(features, explanation.log_odds, max_words)


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


def test_tokens_without_text_are_one_feature_the_last() -> None:
    clues = [Clue("", 1.0, {}, token_set) for token_set in TOKEN_SETS for _ in range(2)]
    features = explain_text.list_features(explanation(*clues, Clue("money", 0.25, {})))
    assert [(feature.part, feature.tokens) for feature in (features[0], features[-1])] == [
        (0.25, 1),
        (8.0, 8),
    ]
    assert [(group.name, group.part) for group in explain_text.sum_groups(features)] == [
        ("words", 0.25),
        ("unkept", 8.0),
        ("start", 0.0),
    ]


def test_groups_and_features_of_real_messages_add_up(tmp_path) -> None:
    spam = b"Subject: cheap pills\nReceived: from a by b\n\n<a href=http://x.example/>buy</a> now\n"
    ham = b"Subject: meeting\nReceived: from c by d\n\nsee you at http://y.example/ tomorrow\n"
    with Filter.open(tmp_path / "state") as spam_filter:
        for number in range(8):
            spam_filter.learn(spam + b"%d\n" % number, "spam")
            spam_filter.learn(ham + b"%d\n" % number, "ham")
        for raw in (spam, ham):
            explanation = spam_filter.explain(raw)
            features = explain_text.list_features(explanation)
            groups = explain_text.sum_groups(features)
            for parts in (features, groups):
                assert sum(item.part for item in parts) == pytest.approx(explanation.log_odds)
            assert {group.name for group in groups} >= {"words", "sender", "links", "letters"}
            assert {feature.name for feature in features if not feature.tokens} == {
                *TRAITS,
                *NUMBERS,
                "prior",
                "biases of the experts",
            }


def test_what_is_left_out_at_first_is_a_third_at_most() -> None:
    clues = [Clue(f"w{number}", 1 / (1 + number), {}) for number in range(500)]
    shown = choose(explanation(*clues))
    assert 0 < shown.other_words <= sum(clue.part for clue in clues) / 3


def test_a_number_of_words_each_way() -> None:
    clues = [Clue("a", 3.0, {}), Clue("b", -2.0, {}), Clue("c", 1.0, {}), Clue("d", -0.5, {})]
    shown = choose(explanation(*clues), 1)
    assert [word.text for word in shown.words] == ["a", "b"]
    assert (shown.other_words, shown.n_others) == (pytest.approx(0.5), 2)


def test_the_sentence_names_the_strong_groups_each_way() -> None:
    clues = [
        Clue("money", 3.0, {}),
        Clue("host:x", 2.0, {"spam": 3, "ham": 0}, "clues"),
        Clue("letters:aaaaa", 0.1, {}, "grams"),
        Clue("received:x", -1.0, {}, "clues"),
    ]
    assert describe(explanation(*clues)) == (
        "Spam: the words of its text (“money”) and its links (“x”) are those of spam taught here; "
        "its sender and servers are those of ham."
    )


def test_the_sentence_names_the_strongest_words_that_people_know() -> None:
    clues = [
        Clue("letters:_mone", 9.0, {}, "grams"),
        Clue("cheap pills", 3.0, {}, "pairs"),
        Clue("pills", 2.9, {}),
        Clue("x" * 200, 2.8, {}),
        Clue("meeting", -2.7, {}),
        Clue("subject:win\x1b[2J", 2.6, {}, "clues"),
        Clue("now", 2.5, {}),
        Clue("here", 2.4, {}),
    ]
    assert re.findall("“(.*?)”", describe(explanation(*clues))) == [
        "cheap pills",
        "win\ufffd[2J",
        "now",
    ]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"spam": 9, "ham": 0}, "in its language is spam"),
        ({"spam": 0, "ham": 9}, "in its language is ham"),
        ({"spam": 9, "ham": 1}, ""),
        ({"spam": 3, "ham": 0}, ""),
        ({}, ""),
    ],
)
def test_a_language_of_one_class_is_told(counts: dict[str, int], told: str) -> None:
    words = [Clue(f"w{number}", 0.1, counts) for number in range(14)]
    both = [Clue(f"b{number}", 0.1, {"spam": 7, "ham": 7}) for number in range(6)]
    sentence = describe(explanation(*words, *both))
    assert told in sentence
    assert ("language" in sentence) == bool(told)
    assert "language" not in describe(explanation(*words[:5]))


def test_caution_is_told_where_it_decides() -> None:
    cautious = replace(explanation(Clue("money", 5.0, {}), verdict=UNSURE), cautious=True)
    assert "enough for spam once 500 ham have been taught" in describe(cautious)


def test_the_sentence_of_an_unsure_verdict() -> None:
    clue = Clue("money", 0.4, {})
    assert describe(explanation(clue, verdict=UNSURE)) == (
        "Unsure: the words of its text (“money”) are those of spam taught here; "
        "that does not decide it."
    )
    assert describe(explanation(verdict=UNSURE, few=True)) == (
        "Unsure: it has hardly anything in common with the mail taught here; "
        "too little is taught yet."
    )


def test_every_kind_has_a_group() -> None:
    assert {kind.group for kind in KINDS.values()} == set(GROUPS)
