"""Votes as events of a shared log: exact both ways, and nothing is believed."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.errors import LedgerError
from spamguard.ledger.events import (
    MAX_BODY_BYTES,
    SharedEvent,
    decode_event,
    encode_event,
)
from spamguard.ledger.votes import CLASS_VERSION, SENDER_VERSION, add_version, make_class_vote
from spamguard.records import Vote
from tests.contract.ledgers import fixed, foreign_vote, packed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NODES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60
)
votes = st.builds(
    Vote,
    digest=st.binary(min_size=1, max_size=40),
    user=TEXTS,
    clock=st.integers(1, 2**62 - 1),
    node=NODES,
    label=st.sampled_from(["spam", "ham", "ünïcode"]),
    packed=st.just(packed(1, 2)),
    scores=st.binary(max_size=8),
    origin=TEXTS,
    time=st.integers(0, 2**37),
    extractor=st.integers(-9, 127),
)


@fixed
@given(votes, st.booleans())
def test_an_event_gives_back_its_vote(vote, is_tombstone):
    if is_tombstone:
        vote = vote._replace(label=None, packed=b"")
    event = encode_event(vote)
    assert decode_event(event) == vote
    assert encode_event(decode_event(event)) == event
    assert event.content == sha256(event.body).digest()[:16]
    assert event.subject == sha256(vote.digest + b"\0" + vote.user.encode()).digest()[:16]
    assert (event.clock, event.node, event.time) == (*vote.version, vote.time)


def resealed(event: SharedEvent, body: bytes) -> SharedEvent:
    return event._replace(body=body, content=sha256(body).digest()[:16])


GOOD = encode_event(foreign_vote("spam", b"d", "anna", clock=3))


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (GOOD._replace(body=b""), "not the one that was pushed"),
        (GOOD._replace(body=b"\1" * (MAX_BODY_BYTES + 1)), "not the one that was pushed"),
        (GOOD._replace(body=GOOD.body + b"x"), "not the one that was pushed"),
        (GOOD._replace(content=b"\0" * 16), "not the one that was pushed"),
        (resealed(GOOD, GOOD.body + b"x"), "damaged"),
        (resealed(GOOD, GOOD.body[:-1]), "damaged"),
        (resealed(GOOD, GOOD.body[:20]), "damaged"),
        (resealed(GOOD, b"\2" + GOOD.body[1:]), "format 2.*update spamguard"),
        (resealed(GOOD, GOOD.body.replace(b"anna", b"ann\xff")), "damaged"),
        (GOOD._replace(subject=b"\0" * 16), "it is another event's"),
        (GOOD._replace(clock=4), "it is another event's"),
        (GOOD._replace(node="m"), "it is another event's"),
        (GOOD._replace(time=GOOD.time + 1), "it is another event's"),
        (encode_event(foreign_vote("spam")._replace(clock=2**62 + 1)), "clock"),
        (encode_event(foreign_vote("(class wanted)")), "is none"),
        (encode_event(foreign_vote("(word list)")), "is none"),
        (encode_event(foreign_vote("spam")._replace(packed=b"x")), "too short"),
        (encode_event(foreign_vote("spam")._replace(time=-1)), "time"),
        (encode_event(foreign_vote("spam", extractor=SENDER_VERSION)), "is none"),
        (encode_event(foreign_vote("spam", extractor=CLASS_VERSION)), "is none"),
    ],
)
def test_an_event_that_is_not_what_it_says_is_refused(event, problem):
    with pytest.raises(LedgerError, match=problem):
        decode_event(event)


@fixed
@given(st.binary(max_size=200))
def test_no_body_is_more_than_refused(body):
    with pytest.raises(LedgerError):
        decode_event(resealed(GOOD, b"\1" + body))


def class_vote(name="news", unwanted=True, **changes):
    return add_version(make_class_vote(name, unwanted, 5), 1, "n")._replace(**changes)


@pytest.mark.parametrize(
    "vote",
    [
        class_vote("ham", True),
        class_vote("spam", False),
        class_vote("Bad Name"),
        class_vote("unsure"),
        class_vote(digest=b"class:\xff"),
        class_vote(digest=b"klass:news"),
        class_vote(user="anna"),
        class_vote(label="spam"),
        class_vote(packed=packed(1)),
        class_vote(scores=b"\0\0"),
    ],
)
def test_votes_that_define_none_are_refused(vote):
    with pytest.raises(LedgerError, match="is none"):
        decode_event(encode_event(vote))
