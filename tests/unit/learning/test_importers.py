"""A word list taken in: a start that fades, counts as no mail, and goes without a trace."""

from dataclasses import replace

import numpy as np
import pytest

from spamguard.bayes.tables import counted_arrays
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.learning import importers, undo
from spamguard.learning.importers import ClassSizes, WordCounts
from spamguard.learning.undo import UNDO_ORIGIN
from spamguard.ledger import votes
from spamguard.ledger.votes import NewVote, WordListInfo
from spamguard.records import EXTRACTOR, Vote
from tests.unit.filters import held, mail, opened, python, teach

LIST = [
    ClassSizes(100, 100),
    *(
        WordCounts(b"", text, ham, spam)
        for text, ham, spam in (("viagra", 0, 60), ("meeting", 70, 2), ("the", 100, 100))
    ),
]
SPAM, HAM = b"Subject: x\n\nviagra viagra now\n", b"Subject: x\n\nmeeting tomorrow\n"


def bring(spam_filter, entries=LIST, name="old"):
    about, odds = importers.compute_word_odds(entries, "bogofilter (x)", spam_filter.key)
    return importers.import_word_list(spam_filter, name, about, odds)


@pytest.fixture
def fresh(tmp_path):
    with opened(tmp_path / "fresh") as spam_filter:
        yield spam_filter


def test_it_ranks_before_anything_is_taught(fresh):
    assert fresh.judge(SPAM).probability == fresh.judge(HAM).probability
    assert bring(fresh)
    assert fresh.judge(SPAM).probability > 0.55
    assert fresh.judge(HAM).probability < 0.45
    assert fresh.judge(SPAM).label == "unsure"
    explanation = fresh.explain(SPAM)
    assert explanation.clues[0].text == "viagra"
    assert explanation.clues[0].part > 0


def test_it_is_no_mail(fresh):
    before = dict(counted_arrays(fresh._store.tables))
    bring(fresh)
    after = dict(counted_arrays(fresh._store.tables))
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert dict(fresh.status().classes) == {"ham": 0, "spam": 0}
    assert fresh.ledger.users.count_lessons() == {}
    assert fresh.ledger.lesson_counts(EXTRACTOR) == {}
    assert fresh.ham_scores().confirmed == 0


def test_once_is_enough(fresh):
    teach(fresh, mail(2))
    assert bring(fresh)
    bits, events = held(fresh), fresh.ledger.last_seq()
    assert not bring(fresh)
    assert fresh.ledger.last_seq() == events
    assert held(fresh) == bits
    with pytest.raises(UsageError, match="another word list is called 'old'"):
        bring(fresh, [ClassSizes(1, 2), WordCounts(b"", "viagra", 0, 1)])
    assert bring(fresh, name="second")
    assert [word_list.name for word_list in fresh.ledger.word_lists()] == ["old", "second"]
    assert held(fresh) != bits


def test_taken_back_it_never_was(tmp_path):
    lessons = mail(40)
    with opened(tmp_path / "without") as without, opened(tmp_path / "with") as having:
        teach(without, lessons)
        without.settle()
        teach(having, lessons[:20])
        bring(having)
        teach(having, lessons[20:])
        having.settle()
        assert held(having) != held(without)
        importers.remove_word_list(having, "old", UNDO_ORIGIN)
        assert held(having) == held(without)
        assert having.ledger.word_lists() == []
        with pytest.raises(UsageError, match="no word list is called 'old'"):
            importers.remove_word_list(having, "old", UNDO_ORIGIN)
        assert bring(having)


@pytest.mark.slow
def test_the_same_bits_in_any_order_and_place(tmp_path):
    lessons = mail(40)
    with opened(tmp_path / "one") as first, opened(tmp_path / "other") as second:
        bring(first)
        teach(first, lessons)
        first.settle()
        teach(second, lessons[::-1])
        bring(second)
        assert held(first) == held(second)
        first._store.settle()  # as `rebuild` does
        assert held(first) == held(second)
        with opened(tmp_path / "third") as third:
            third.ledger.merge(first.ledger.all_votes())
            third.settle()
            assert held(third) == held(first)
    done = python(
        "with opened(Path(sys.argv[1])) as spam_filter:"
        " print(spam_filter.judge(b'Subject: x\\n\\nviagra\\n').log_odds)",
        str(tmp_path / "one"),
    )
    with opened(tmp_path / "other") as second:
        assert float(done.stdout) == second.judge(b"Subject: x\n\nviagra\n").log_odds


def test_folding_its_event_changes_nothing_until_settled(tmp_path):
    with opened(tmp_path / "a") as spam_filter, opened(tmp_path / "a") as beside:
        teach(spam_filter, mail(20))
        bits = held(spam_filter)
        about, odds = importers.compute_word_odds(LIST, "x", spam_filter.key)
        spam_filter.ledger.append(
            [votes.make_list_vote("old", about, odds.tokens, odds.log_odds, 0, EXTRACTOR)]
        )
        assert held(spam_filter) == held(beside) == bits
        # as after an interrupted import: now it is in force
        assert not importers.import_word_list(spam_filter, "old", about, odds)
        assert held(spam_filter) == held(beside) != bits


def test_undoing_the_lessons_of_the_site_keeps_word_lists(fresh):
    teach(fresh, mail(4))
    bring(fresh)
    chosen = undo.VoteSelection("")
    done = [
        vote
        for batch in undo.undo_votes(fresh, undo.affected_messages(fresh, chosen), chosen)
        for vote in batch
    ]
    assert len(done) == 4
    assert [word_list.name for word_list in fresh.ledger.word_lists()] == ["old"]


def test_own_lessons_overrule_it(fresh):
    bring(
        fresh,
        [ClassSizes(100, 100), WordCounts(b"", "meeting", 0, 90), WordCounts(b"", "viagra", 90, 0)],
    )
    assert fresh.judge(HAM).probability > 0.5
    for number in range(30):
        fresh.learn(b"Subject: x%d\n\nmeeting tomorrow\n" % number, "ham")
        fresh.learn(b"Subject: x%d\n\nviagra viagra now\n" % number, "spam")
    assert fresh.judge(HAM).label == "ham"
    assert fresh.judge(SPAM).label == "spam"


def test_words_without_counterpart_are_counted_and_left_out(fresh):
    words = [
        WordCounts(b"", "two words", 0, 9),
        WordCounts(None, "x", 0, 9),
        WordCounts(b"", "日本語", 0, 9),
        WordCounts(b"", "x" * 65, 0, 9),
        WordCounts(b"", "", 0, 9),
    ]
    about, odds = importers.compute_word_odds([*LIST, *words], "x", fresh.key)
    assert (about.words, about.used) == (8, 2)  # "the" says nothing
    assert len(odds.tokens) == 2


def test_words_that_are_one_here_are_counted_together(fresh):
    _, apart = importers.compute_word_odds(
        [ClassSizes(9, 9), WordCounts(b"", "Free", 1, 3), WordCounts(b"", "FREE", 0, 2)],
        "x",
        fresh.key,
    )
    _, whole = importers.compute_word_odds(
        [ClassSizes(9, 9), WordCounts(b"", "free", 1, 5)], "x", fresh.key
    )
    assert apart.tokens.tolist() == whole.tokens.tolist()
    assert apart.log_odds.tolist() == whole.log_odds.tolist()


def test_its_tokens_are_those_of_messages(fresh):
    features = fresh._reader.extractor.features(
        "From: Anna <anna@mail.example.com>\nSubject: Big Offer\n\nGrüße don't\n".encode()
    )
    in_body = [(b"", "Grüße"), (b"", "don't")]
    in_header = [
        (b"subject", "OFFER"),
        (b"address", "mail_example_com"),
        (b"from", "anna"),
        (b"names", "subject"),
    ]
    for section, text in in_body + in_header:
        _, odds = importers.compute_word_odds(
            [ClassSizes(9, 9), WordCounts(section, text, 0, 9)], "x", fresh.key
        )
        assert odds.tokens[0] in features.tokens, text


def test_the_most_telling_are_kept(fresh, monkeypatch):
    monkeypatch.setattr(votes, "MAX_WORDS", 10)
    entries = [
        ClassSizes(1000, 1000),
        *(WordCounts(b"", f"word{number}", 0, number) for number in range(1, 101)),
    ]
    about, odds = importers.compute_word_odds(entries, "x", fresh.key)
    assert about.used == len(odds.tokens) == 10
    _, best = importers.compute_word_odds([entries[0], *entries[-10:]], "x", fresh.key)
    assert odds.tokens.tolist() == best.tokens.tolist()


@pytest.mark.parametrize(
    "entries", [[], LIST[1:], [ClassSizes(0, 5), LIST[1]], [ClassSizes(5, 0), LIST[2]]]
)
def test_a_list_that_does_not_tell_both_sides(fresh, entries):
    with pytest.raises(SourceError, match="does not tell of both"):
        importers.compute_word_odds(entries, "x", fresh.key)


def test_counts_beyond_all_sense(fresh):
    _, odds = importers.compute_word_odds(
        [
            ClassSizes(1, 1 << 40),
            WordCounts(b"", "a", 1 << 40, 0),
            WordCounts(b"", "b", 0, 1 << 40),
        ],
        "x",
        fresh.key,
    )
    assert sorted(odds.log_odds.tolist()) == [-127, 127]


def test_a_damaged_list_is_refused_when_merged(tmp_path, fresh):
    bring(fresh)
    (vote,) = fresh.ledger.all_votes()
    with opened(tmp_path / "other") as other:
        for at in range(0, len(vote.packed), 7):
            flipped = vote.packed[:at] + bytes([vote.packed[at] ^ 1]) + vote.packed[at + 1 :]
            with pytest.raises(LedgerError, match=r"damaged|format"):
                other.ledger.merge([vote._replace(packed=flipped)])
            with pytest.raises(LedgerError, match="damaged"):
                other.ledger.merge([vote._replace(packed=vote.packed[:at])])
        assert other.ledger.last_seq() == 0


def test_tokens_of_another_extractor_say_nothing(fresh):
    teach(fresh, mail(2))
    fresh.settle()
    bits = held(fresh)
    about, odds = importers.compute_word_odds(LIST, "x", fresh.key)
    fresh.ledger.append(
        [votes.make_list_vote("old", about, odds.tokens, odds.log_odds, 0, EXTRACTOR + 1)]
    )
    fresh.settle()
    assert held(fresh) == bits
    assert [word_list.extractor for word_list in fresh.ledger.word_lists()] == [EXTRACTOR + 1]


def test_size_of_a_list_in_the_ledger():
    tokens = np.sort(
        np.random.default_rng(1).choice(1 << 30, votes.MAX_WORDS, replace=False)
    ).astype(np.uint32)
    odds = np.random.default_rng(1).integers(-127, 128, votes.MAX_WORDS).astype(np.int8)
    vote = votes.make_list_vote("x", WordListInfo("x", "", 1, 1, 1, 1), tokens, odds, 0, EXTRACTOR)
    assert len(vote.packed) < 140_000
    votes.check_list_vote(_from_elsewhere(vote))


ABOUT = WordListInfo("x", "", 1, 1, 1, 1)
FEW = (np.array([5, 9], np.uint32), np.array([3, -3], np.int8))


def _from_elsewhere(vote: NewVote) -> Vote:
    digest, user, label, packed, _, *rest = vote
    return Vote(digest, user, 1, "n", label, packed, b"", *rest)


@pytest.mark.parametrize(
    "vote",
    [
        votes.make_list_vote("x", replace(ABOUT, used="many"), *FEW, 0, EXTRACTOR),
        votes.make_list_vote("\x1b[31m", ABOUT, *FEW, 0, EXTRACTOR),
        votes.make_list_vote("x", ABOUT, *FEW, 1 << 62, EXTRACTOR),
        votes.make_list_vote("x", ABOUT, *FEW, -1, EXTRACTOR),
        votes.make_list_vote("x", ABOUT, *FEW, 0, EXTRACTOR)._replace(label="spam"),
        votes.make_list_vote("x", ABOUT, *FEW, 0, EXTRACTOR)._replace(user="anna"),
        votes.make_list_vote("x", ABOUT, *FEW, 0, EXTRACTOR)._replace(digest=b"d" * 32),
        votes.make_list_vote("x", ABOUT, *FEW, 0, EXTRACTOR)._replace(
            digest=b"d" * 32, extractor=EXTRACTOR
        ),
    ],
)
def test_a_list_from_elsewhere_that_readers_would_stumble_over_is_refused(fresh, vote):
    with pytest.raises(LedgerError):
        fresh.ledger.merge([_from_elsewhere(vote)])
    assert fresh.ledger.last_seq() == 0


def test_a_description_nested_without_end_is_refused(fresh, monkeypatch):
    monkeypatch.setattr(votes.json, "dumps", lambda _: "[" * 60_000)
    vote = votes.make_list_vote("x", ABOUT, *FEW, 0, EXTRACTOR)
    with pytest.raises(LedgerError, match="damaged"):
        fresh.ledger.merge([_from_elsewhere(vote)])
