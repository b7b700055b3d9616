"""How spammy good mail looked before it was taught: which scores count, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard import Filter
from spamguard.bayes import experts
from spamguard.bayes.sides import sides_of
from spamguard.model import firstscores, goodmail
from spamguard.policy import GoodMail
from tests.unit.filters import mail, opened, teach

MAIL = mail(90)
SIDES = sides_of(["ham", "spam"], {"spam"})


def measured(one: Filter) -> GoodMail:
    one.settle()
    return one.good_mail()


def test_good_mail_is_measured_by_scores_from_before_it_was_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodmail, "FEWEST_OF_EACH", 5)
    with opened(tmp_path) as one:
        teach(one, MAIL[:30])
        one.settle()
        before = one.good_mail().confirmed
        later = [(label, raw) for label, raw in MAIL[30:60] if label == "ham"]
        now = [one.judge(raw).log_odds for _, raw in later]
        one.learn_ready([one._preparer.ready(raw) for _, raw in later], "ham")
        goodmail.measure(one.ledger, one._store.tables, one.unwanted)  # with the fusion that judged them
        found = one.good_mail()
        assert found.confirmed == before + len(later)
        trust = experts.confidence(one._store.tables.messages, SIDES) / _trust_before(len(later), one)
        kept = {round(value, 2) for value in found.highest}
        assert {round(value * trust, 2) for value in now} <= {round(value + step / 100, 2) for value in kept for step in (-1, 0, 1)}
        assert list(found.highest) == sorted(found.highest, reverse=True)


def _trust_before(more: int, one: Filter) -> float:
    messages = one._store.tables.messages.copy()
    messages[0] -= more
    return experts.confidence(messages, SIDES)


def test_only_good_mail_counts_and_only_when_both_sides_were_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodmail, "FEWEST_OF_EACH", 5)
    ham, spam = ([pair for pair in MAIL if pair[0] == label] for label in ("ham", "spam"))
    with opened(tmp_path) as one:
        teach(one, ham[:20])
        assert measured(one) == GoodMail()
        teach(one, spam[:5])
        assert measured(one) == GoodMail()
        teach(one, ham[20:24])
        assert measured(one).confirmed == 4
        teach(one, spam[5:8])
        assert measured(one).confirmed == 4
        one.define_class("news", unwanted=False)
        teach(one, [("news", ham[30][1])])
        assert measured(one).confirmed == 5  # the four have scores of two classes, the fifth of as many: all count
        teach(one, [("news", ham[31][1])])
        assert measured(one).confirmed == 6
        assert len(one.good_mail().highest) == 6


def test_scores_of_many_classes_are_fused_to_the_log_odds_of_the_verdict(taught: Filter) -> None:
    messages = [raw for _, raw in MAIL[60:]]
    scores = taught.first_scores([taught._preparer.ready(raw) for raw in messages])
    assert taught.as_fused_now(scores) == pytest.approx([taught.judge(raw).log_odds for raw in messages])


def test_scores_of_a_time_with_fewer_classes_count(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:40])
        messages = [raw for _, raw in MAIL[60:]]
        scores = one.first_scores([one._preparer.ready(raw) for raw in messages])
        before = one.as_fused_now(scores)
        one.define_class("promo", unwanted=True)
        teach(one, [("promo", MAIL[40][1])])
        assert one.as_fused_now([b"", b"\0" * 5, *scores]) == pytest.approx(before, rel=0.1)  # one lesson more, with somewhat other trust


def test_of_scores_of_other_classes_what_was_said_of_unwanted_mail_counts(tmp_path: Path) -> None:
    """A class was given up, another one made: what looked like the one never looked like the other."""
    messages = [raw for _, raw in MAIL[60:]]
    with opened(tmp_path) as one:
        teach(one, MAIL[:40])
        one.define_class("promo", unwanted=True)
        one.define_class("news", unwanted=False)
        promo = [raw for _, raw in MAIL[40:50]]
        teach(one, [("promo", raw) for raw in promo])
        scores = one.first_scores([one._preparer.ready(raw) for raw in messages])
        one.forget_ready([one._preparer.digest(raw) for raw in promo])
        teach(one, [("news", promo[0])])
        assert one._store.tables.classes == ["ham", "spam", "news"]
        size = 2 * len(experts.EXPERTS)
        assert one.as_fused_now(scores).tolist() == one.as_fused_now([row[2 * size : 3 * size] for row in scores]).tolist()


def test_scores_of_more_classes_from_before_they_had_a_mark_are_those_of_spam() -> None:
    rows = [bytes([number]) * 2 * len(experts.EXPERTS) for number in range(3)]
    assert firstscores.of_unwanted(rows[1] + rows[2]) == rows[1]
    assert firstscores.of_unwanted(b"".join(rows) + b"mark") == rows[2]
    assert firstscores.of_unwanted(b"") == firstscores.of_unwanted(b"mark") == firstscores.of_unwanted(rows[0][:-1]) == b""
