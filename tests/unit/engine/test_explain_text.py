"""Explanations as people read them."""

from __future__ import annotations

from dataclasses import replace

from spamguard.engine import explain_text
from spamguard.records import Clue, Explanation, Verdict


def why(*clues: Clue, flip: int | None = 1, to_threshold: float = -1.5) -> Explanation:
    verdict = Verdict("spam", 0.99, 4.6, {"spam": 0.99, "ham": 0.01})
    return Explanation(
        verdict, "spam", "ham", 4.6, 0.1, 0.0, {}, {}, clues, {}, {}, to_threshold, flip
    )


def test_rounded_parts_add_up() -> None:
    parts = [1 / 3, 1 / 3, 1 / 3, 0.0004]
    assert sum(explain_text.round_parts(parts, sum(parts))) == round(
        sum(parts) * explain_text.STEPS_PER_NAT
    )


def test_what_would_flip_it() -> None:
    assert explain_text.describe_flip(why()).endswith(
        "fall by 1.500: without its strongest word for spam they would"
    )
    assert explain_text.describe_flip(why(flip=3, to_threshold=2)).endswith(
        "rise by 2.000: without its 3 strongest words against spam they would"
    )
    assert explain_text.describe_flip(why(flip=None)).endswith(
        "its words alone do not keep it from that"
    )
    assert explain_text.describe_flip(replace(why(), few=True)).startswith(
        "no words would change it"
    )
    cautious = explain_text.describe_flip(replace(why(), spam_from=8.25))
    assert cautious.startswith(
        "little good mail is known yet, so this message is called spam from +8.250 on; "
        "for another label"
    )


def test_of_what_the_log_odds_are() -> None:
    assert explain_text.describe_odds(why()) == "spam against ham"
    three = replace(
        why(), verdict=Verdict("spam", 0.99, 4.6, {"spam": 0.99, "ham": 0.005, "news": 0.005})
    )
    assert (
        explain_text.describe_odds(three)
        == "unwanted mail against wanted, most likely spam against ham"
    )
