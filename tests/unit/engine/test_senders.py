"""A word about a sender, or about everybody at its domain: it counts where the sender is
authenticated, as strongly as was asked, for those who said it; forged mail gains nothing, and
nothing else changes by a bit.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.learning.lessons import LessonOutcome, LessonService
from spamguard.ledger.senders import make_sender_vote
from tests.unit.filters import READER, mail, opened, teach

SERVER = "mx.example.org"
ANNA, BEN = "anna", "ben"
SHOP = "news@shop.example"
DOMAIN = "shop.example"
OWN = "anna@home.example"
LESSONS = mail(120)
SPAM = [raw for label, raw in mail(80, 2) if label == "spam"]
FORGERIES = (  # {0}: the address, {1}: its domain
    b"From: {0}\r\n",
    b"From: {0}\r\nAuthentication-Results: mx.example.org; dmarc=pass header.from={1}\r\n",
    b"Received: from a by mx.example.org; Sat, 28 Nov 2026 06:00:00 +0000\r\n"
    b"Authentication-Results: mx.example.org; dmarc=pass header.from={1}\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.example.org; dmarc=fail header.from={1}\r\n"
    b"Authentication-Results: mx.example.org; dmarc=pass header.from={1}\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.example.org; dmarc=pass header.from=evil.example\r\n"
    b'From: "{0}" <x@evil.example>\r\n',
    b"Authentication-Results: mx.example.org; dmarc=pass header.from=evil.example\r\n"
    b"From: {0}, x@evil.example\r\n",
    b"Authentication-Results: mx.example.org; dmarc=pass header.from=evil.example\r\n"
    b"From: x@evil.example\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.example.org; dmarc=pass header.from=evil.example\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.example.org; dmarc=fail (dmarc=pass header.from={1})"
    b" header.from={1}\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.evil.example; dmarc=pass header.from={1}\r\n"
    b"Authentication-Results: mx.example.org; dmarc=pass header.from={1}\r\nFrom: {0}\r\n",
    b"Authentication-Results: mx.example.org; dkim=pass header.d=evil.example header.i=@{1}\r\n"
    b"From: {0}\r\n",
)
RECEIVED = b"Received: from b by mx.example.org; Sat, 28 Nov 2026 06:00:01 +0000\r\n"
GENUINE = b"Authentication-Results: mx.example.org; dmarc=pass header.from={1}\r\nFrom: {0}\r\n"


def by(head: bytes, raw: bytes, address: str) -> bytes:
    """A message with this head instead of its own From."""
    domain = address.partition("@")[2].encode()
    kept = b"\n".join(line for line in raw.split(b"\n") if not line.startswith(b"From:"))
    return head.replace(b"{0}", address.encode()).replace(b"{1}", domain) + kept


def say(spam_filter: Filter, address: str, nats: int | None, user: str = "") -> LessonOutcome:
    digest = spam_filter.senders.digest(address)
    vote = make_sender_vote(digest, user, nats, "cli", int(time.time()))
    return LessonService(spam_filter).submit_vote(vote)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory; not to be changed."""
    state = tmp_path_factory.mktemp("senders") / "state"
    with opened(state) as spam_filter:
        teach(spam_filter, LESSONS)
        spam_filter.settle()
    return state


@pytest.fixture
def spam_filter(settled: Path, tmp_path: Path) -> Iterator[Filter]:
    shutil.copytree(settled, tmp_path / "state")
    with opened(tmp_path / "state", authserv_ids=[SERVER.upper()]) as spam_filter:
        yield spam_filter


@pytest.mark.slow
def test_forged_mail_gains_nothing(spam_filter: Filter) -> None:
    forged = []
    spam = [raw for label, raw in mail(1400, 2) if label == "spam"]
    for number, raw in enumerate(spam[:500]):
        head = FORGERIES[number % len(FORGERIES)]
        head = head if head.startswith(b"Auth") else RECEIVED + head
        forged.append(by(head, raw, (OWN, SHOP)[number % 2]))
    before = list(spam_filter.judge_all(forged, user=ANNA))
    for address in (OWN, SHOP, "home.example", DOMAIN):
        for user in ("", ANNA):
            assert say(spam_filter, address, -12, user) is LessonOutcome.LEARNT
    after = list(spam_filter.judge_all(forged, user=ANNA))
    gained = [old for old, new in zip(before, after, strict=True) if old != new]
    assert (len(forged), len(gained)) == (500, 0)
    scans = [spam_filter.scan(raw, users=[ANNA]) for raw in forged[:50]]
    assert [scan.verdict for scan in scans] == before[:50]
    assert not any(scan.personal for scan in scans)


def test_no_server_is_believed_unless_it_is_named(tmp_path: Path, spam_filter: Filter) -> None:
    say(spam_filter, SHOP, -12)
    raw = by(GENUINE, SPAM[0], SHOP)
    believed = spam_filter.judge(raw)
    with opened(tmp_path / "state") as other:
        assert other.judge(raw).log_odds == pytest.approx(believed.log_odds + 12)
        assert other.scan(raw).sender == b""


@pytest.mark.parametrize("own_votes", [False, True])
@pytest.mark.parametrize(("nats", "name"), [(-6, SHOP), (12, SHOP), (-6, DOMAIN)])
def test_the_explanation_shows_the_word_and_still_sums(
    spam_filter: Filter, own_votes: bool, nats: int, name: str
) -> None:
    from spamguard.engine.explain_text import describe_verdict, list_features, sum_groups

    raw = by(GENUINE, SPAM[0], SHOP)
    if own_votes:
        teach(spam_filter, [("ham", SPAM[0])], ANNA)
    spam_filter.define_class("phishing", unwanted=True)
    without = spam_filter.explain(raw, user=ANNA)
    say(spam_filter, name, nats, ANNA)
    why = spam_filter.explain(raw, user=ANNA)
    assert why.verdict == spam_filter.judge(raw, user=ANNA)
    assert why.log_odds == pytest.approx(without.log_odds + nats)
    assert why.log_odds == pytest.approx(why.verdict.log_odds)
    assert why.shares["sender"] == why.scores["sender"] == why.sender == nats
    assert ("personal" in why.shares) == own_votes
    assert why.prior + sum(why.shares.values()) == pytest.approx(why.log_odds)
    features = list_features(why)
    assert sum(feature.part for feature in features) == pytest.approx(why.log_odds)
    groups = sum_groups(features)
    assert sum(group.part for group in groups) == pytest.approx(why.log_odds)
    assert [group.part for group in groups if group.name == "said"] == [nats]
    whom = "its sender" if name == SHOP else "everybody at its sender's domain"
    side = "wanted" if nats < 0 else "unwanted"
    assert f"; {whom} was called {side}" in describe_verdict(why, features)
    assert f"mail of {whom} is {side}" in [feature.name for feature in features]
    assert without.sender == 0
    assert "sender" not in without.shares


@pytest.mark.parametrize("name", [SHOP, DOMAIN])
def test_words_survive_compaction_and_merging(
    tmp_path: Path, spam_filter: Filter, name: str
) -> None:
    raw = by(GENUINE, SPAM[0], SHOP)
    say(spam_filter, name, -6, ANNA)
    say(spam_filter, name, -12, ANNA)
    spam_filter.settle()
    assert spam_filter.explain(raw, user=ANNA).sender == -12
    with opened(tmp_path / "other", authserv_ids=[SERVER]) as other:
        other.ledger.merge(spam_filter.ledger.all_votes())
        other.settle()
        assert other.judge(raw, user=ANNA) == spam_filter.judge(raw, user=ANNA)
        assert other.judge(raw) == spam_filter.judge(raw)


def test_a_word_about_the_address_goes_before_one_about_its_domain(spam_filter: Filter) -> None:
    address, domain = "news@mail.shop.co.uk", "shop.co.uk"
    raw = by(GENUINE, SPAM[0], address)
    plain = spam_filter.judge(raw).log_odds
    strength = iter(range(1, 9))

    def counts(user: str) -> int:
        scan = spam_filter.scan(raw, users=[user])
        verdict = spam_filter.judge(raw, user=user)
        assert scan.personal.get(user, scan.verdict) == verdict
        return round(verdict.log_odds - plain)

    said = [(domain, ""), (address, ""), (domain, ANNA), (address, ANNA)]
    for name, user in said:
        nats = next(strength)
        assert say(spam_filter, name, nats, user) is LessonOutcome.LEARNT
        assert (counts(ANNA), counts(BEN)) == (nats, min(nats, 2))
    for left, (name, user) in zip((3, 2, 1, 0), reversed(said), strict=True):
        assert say(spam_filter, name, None, user) is LessonOutcome.LEARNT
        assert (counts(ANNA), counts(BEN)) == (left, min(left, 2))


@pytest.mark.parametrize(
    ("address", "covered"),
    [
        ("news@shop.co.uk", True),
        ("boss@SHOP.co.UK", True),
        ("x@a.b.c.shop.co.uk", True),
        ("x@other.co.uk", False),
        ("x@bookshop.co.uk", False),
        ("x@co.uk", False),
        ("x@shop.co.uk.evil.example", False),
        ("shop.co.uk@evil.example", False),
    ],
)
def test_a_word_about_a_domain_is_about_every_address_there_and_below(
    spam_filter: Filter, address: str, covered: bool
) -> None:
    raw = by(GENUINE.replace(b"={1}", b"=" + address.partition("@")[2].encode()), SPAM[0], address)
    plain = spam_filter.judge(raw)
    say(spam_filter, "shop.co.uk", -6)
    assert spam_filter.scan(raw).sender
    assert spam_filter.judge(raw).log_odds == pytest.approx(plain.log_odds - 6 * covered)


def test_rows_of_the_history_without_a_domain_still_find_the_word_about_the_address(
    spam_filter: Filter,
) -> None:
    raw = by(GENUINE, SPAM[0], SHOP)
    scan, features = spam_filter.scan(raw), READER.read_example(raw).features
    say(spam_filter, SHOP, -6)
    say(spam_filter, DOMAIN, 6)
    old_row = spam_filter.senders.digest(SHOP)
    assert scan.sender == old_row + spam_filter.senders.digest(DOMAIN)
    assert spam_filter.judge_features(features, sender=old_row) == spam_filter.judge(raw)


def test_the_quota_of_lessons_holds_for_words(spam_filter: Filter) -> None:
    service, now = LessonService(spam_filter), int(time.time())
    digests = [spam_filter.senders.digest(f"{name}@a.example") for name in "abc"]
    outcomes = [
        service.submit_vote(make_sender_vote(digest, ANNA, -6, "web", now), 2) for digest in digests
    ]
    assert outcomes == [LessonOutcome.LEARNT, LessonOutcome.LEARNT, LessonOutcome.OVER_QUOTA]
    taken_back = make_sender_vote(digests[0], ANNA, None, "web", now)
    assert service.submit_vote(taken_back) is LessonOutcome.LEARNT
