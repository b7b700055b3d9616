"""Groups of recipients get copies of their own, each with its own fields and reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.config.options import Action, Position, Rule
from spamguard.keys import RANDOM_BYTES, SignedVerdict, is_id, new_id
from spamguard.records import Verdict
from spamguard.smtp.envelope import Reply
from spamguard.users import MAX_RECIPIENTS, UserResolver
from tests.unit.proxy.transactions import (
    DIGEST,
    HAM,
    KEY,
    NO,
    OK,
    RAW,
    SPAM,
    Case,
    FakeHop,
    FakeJudge,
    at,
    before_queue,
    scan,
)

ANNA, BEN, CARL = "anna@example.net", "ben@example.net", "carl@example.net"
LATER = Reply.from_text(451, "4.4.2 later")
UNSURE = Verdict("unsure", 0.5, 0.0, {"spam": 0.5, "ham": 0.5})


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """For all it is ham, for anna spam."""
    scan_result = replace(scan(HAM), personal={"anna": SPAM})
    return Case(
        tmp_path,
        FakeHop(answers_each=True),
        FakeJudge(scan_result),
        people=UserResolver((("sales@example.net", "anna"),)),
    )


def told(content: bytes) -> SignedVerdict:
    """What a copy that was handed on says."""
    (field,) = [line for line in content.split(b"\r\n") if line.startswith(b"X-Spamguard: ")]
    verified = keys.verify_verdict(KEY, field.partition(b": ")[2], DIGEST)
    assert verified is not None
    return verified


def body(content: bytes) -> bytes:
    return content.partition(b"\r\n\r\n")[2]


def transactions(case: Case) -> list[list[str]]:
    """The recipients that were named in each transaction, in order."""
    found: list[list[str]] = []
    for line in case.hop.said:
        if line.startswith("mail"):
            found.append([])
        elif line.startswith("rcpt"):
            found[-1].append(line.removeprefix("rcpt "))
    return found


def test_each_group_gets_its_own_verdict_in_its_own_transaction(case: Case) -> None:
    assert case.send(recipients=(ANNA, BEN, "sales+x@example.net", CARL)) == [OK] * 4
    assert transactions(case) == [
        [ANNA, BEN, "sales+x@example.net", CARL],
        [BEN, CARL],
        [ANNA, "sales+x@example.net"],
    ]
    assert case.hop.said.count("send") == 2
    ham, spam = case.hop.contents
    assert not ham.startswith(b"X-Spam-Flag")
    assert spam.startswith(b"X-Spam-Flag: YES\r\n")
    assert [(told(raw).label, told(raw).id) for raw in (ham, spam)] == [
        (record.label, record.id) for record in case.entries
    ]
    assert body(ham) == body(spam) == body(RAW)


def test_recipients_with_the_shared_verdict_get_the_usual_copy(case: Case) -> None:
    case.judge.found = replace(
        scan(HAM), personal={"anna": replace(HAM, probability=0.02, log_odds=-3.9)}
    )
    assert case.send(recipients=(ANNA, BEN)) == [OK, OK]
    assert case.hop.said == ["mail a@example.org", f"rcpt {ANNA}", f"rcpt {BEN}", "send"]
    assert told(case.hop.contents[0]).log_odds == pytest.approx(HAM.log_odds, abs=0.01)
    (entry,) = case.entries
    assert "personal=" not in str(entry)


def test_one_recipient_needs_no_second_transaction(case: Case) -> None:
    assert case.send(recipients=(ANNA,)) == [OK]
    assert case.hop.said == ["mail a@example.org", f"rcpt {ANNA}", "send"]
    assert told(case.hop.contents[0]).label == "spam"
    assert "verdict=spam probability=0.999000 personal=anna:spam action=tag" in str(case.entries[0])


def test_no_user_is_resolved_unless_configured(case: Case) -> None:
    case.send(recipients=(ANNA, BEN))
    assert case.judge.users == (ANNA, "anna", BEN, "ben")
    case.people = None
    case.hop.said.clear()
    case.send(recipients=(ANNA, BEN))
    assert case.judge.users == ()
    assert case.hop.said.count("send") == 1


def test_where_there_is_one_answer_for_all_the_mildest_verdict_decides(case: Case) -> None:
    case.hop.answers_each = False
    case.listener = before_queue(rules=(Rule("spam", Action.REJECT),))
    assert case.send(recipients=(ANNA, BEN)) == [OK]
    assert told(case.hop.contents[0]).label == "ham"
    assert "verdict=ham" in str(case.entries[0])
    assert "personal=anna:spam" in str(case.entries[0])
    assert case.send(recipients=(ANNA,))[0].code == 550
    case.judge.found = replace(scan(SPAM), personal={"anna": UNSURE})
    assert case.send(recipients=(BEN, ANNA)) == [OK]
    assert told(case.hop.contents[1]).label == "unsure"


# ---- answers


def test_every_answer_goes_to_whom_it_is_about(case: Case) -> None:
    case.hop.answers |= {f"rcpt {BEN}": [OK, NO], "send": [LATER, OK]}
    assert case.send(recipients=(CARL, ANNA, BEN)) == [LATER, OK, NO]
    assert [
        str(entry).partition(" reply=")[2].partition(" judging")[0] for entry in case.entries
    ] == [
        '"451 4.4.2 later; 550 5.1.1 nobody here"',
        '"250 2.0.0 taken"',
    ]


def test_a_copy_that_the_next_hop_does_not_take_costs_no_other(case: Case) -> None:
    case.hop.answers["mail a@example.org"] = [OK, OK, LATER]
    assert case.send(recipients=(ANNA, BEN)) == [LATER, OK]
    assert case.hop.said.count("send") == 1
    case.hop.said.clear()
    case.hop.answers = {f"rcpt {ANNA}": [OK, NO]}
    assert case.send(recipients=(ANNA, BEN)) == [NO, OK]
    assert case.hop.said.count("send") == 1


def test_a_fault_with_one_copy_does_not_take_back_the_answer_to_another(case: Case) -> None:
    case.hop.answers["mail a@example.org"] = [OK, OK]  # and an IndexError
    assert [reply.code for reply in case.send(recipients=(ANNA, BEN))] == [451, 250]


def test_a_fault_before_anything_was_handed_on_makes_one_message_of_it(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [KEY]
    case.key = keys.pop  # there is none for the second copy
    assert case.send(recipients=(ANNA, BEN)) == [OK, OK]
    assert transactions(case) == [[ANNA, BEN]]
    assert case.hop.contents[0].startswith(b"X-Spamguard: not-scanned; reason=error\r\n")
    (entry,) = case.entries
    assert "reason=error" in str(entry)
    assert entry.row("f").label == "not-scanned"


def test_a_message_that_could_not_be_tagged_has_no_personal_verdicts(case: Case) -> None:
    case.key = [].pop
    assert case.send(recipients=(ANNA,)) == [OK]
    assert case.entries[0].row("f").personal == {}


@pytest.mark.parametrize(("action", "code"), [(Action.REJECT, 550), (Action.DEFER, 451)])
def test_a_refusal_is_only_for_those_it_is_meant_for(case: Case, action: Action, code: int) -> None:
    case.listener = before_queue(rules=(Rule("spam", action, 0.9),))
    assert [reply.code for reply in case.send(recipients=(ANNA, BEN))] == [code, 250]
    assert transactions(case) == [[ANNA, BEN], [BEN]]
    assert [entry.action for entry in case.entries] == [Action.TAG, action]


def test_held_for_one_and_redirected_for_another(case: Case) -> None:
    case.judge.found = replace(
        scan(SPAM), personal={"anna": UNSURE, "ben": replace(HAM, probability=0.05)}
    )
    case.listener = before_queue(
        rules=(
            Rule("spam", Action.QUARANTINE),
            Rule("unsure", Action.REDIRECT, to="held@example.net"),
        )
    )
    replies = case.send(recipients=(ANNA, BEN, CARL))
    assert replies[:2] == [OK, OK]
    assert transactions(case) == [[ANNA, BEN, CARL], ["held@example.net"], [BEN]]
    (held,) = case.quarantine.entries()
    assert [recipient.address for recipient in held.envelope.recipients] == [CARL]
    assert held.id.encode() in replies[2].lines[0]
    assert held.id == case.entries[0].id


def test_copies_that_are_held_have_names_of_their_own(case: Case) -> None:
    case.judge.found = replace(scan(SPAM), personal={"anna": UNSURE})
    case.listener = before_queue(
        rules=(Rule("spam", Action.QUARANTINE), Rule("unsure", Action.QUARANTINE))
    )
    assert [reply.code for reply in case.send(recipients=(ANNA, BEN))] == [250, 250]
    assert case.hop.contents == []
    held = {entry.id: entry for entry in case.quarantine.entries()}
    whole, copy = case.entries
    assert held.keys() == {whole.id, copy.id}
    assert (held[whole.id].reason, held[copy.id].reason) == ("spam", "unsure")
    assert [recipient.address for recipient in held[copy.id].envelope.recipients] == [ANNA]
    content = case.quarantine.open(copy.id)
    assert told(b"".join(content.chunks())).id == copy.id
    content.spool.close()


# ---- what is told about it


def test_every_copy_has_its_line_and_its_row(case: Case) -> None:
    case.send(recipients=(ANNA, BEN, CARL))
    whole, copy = case.entries
    assert is_id(copy.id)
    assert copy.id[:9] == whole.id[:9] == new_id(whole.time, bytes(RANDOM_BYTES))[:9]
    assert "copy-of" not in str(whole)
    assert f"id={copy.id} copy-of={whole.id} " in str(copy)
    assert f"to=<{BEN}>,<{CARL}> " in str(whole)
    assert f"to=<{ANNA}> " in str(copy)
    assert "personal=anna:spam" in str(copy)
    assert "personal" not in str(whole)
    first, second = whole.row("f"), copy.row("f")
    assert (first.recipients, first.label, first.personal) == ((BEN, CARL), "ham", {})
    assert (second.recipients, second.label, second.probability, second.personal) == (
        (ANNA,),
        "spam",
        0.999,
        {"anna": "spam"},
    )
    assert first.packed == second.packed


def test_many_personal_verdicts_are_shortened_in_the_log(case: Case) -> None:
    users = [f"user{number}" for number in range(MAX_RECIPIENTS)]
    case.judge.found = replace(scan(HAM), personal=dict.fromkeys(users, SPAM))
    recipients: Sequence[str] = [f"{user}@example.net" for user in users] * 3
    assert case.send(recipients=recipients) == [OK] * len(recipients)
    assert list(map(len, transactions(case))) == [
        3 * MAX_RECIPIENTS,
        2 * MAX_RECIPIENTS,
        MAX_RECIPIENTS,
    ]
    line = str(case.entries[1])
    assert f"user4:spam,+{MAX_RECIPIENTS - 5}" in line
    assert len(line) < 1000


def test_copies_of_a_standalone_server_name_no_other_recipient(case: Case) -> None:
    case.listener = at(Position.STANDALONE)
    case.send(recipients=(ANNA, BEN))
    for content in case.hop.contents:
        assert b"Received: from client.example" in content
        assert case.entries[0].id.encode() in content.partition(b"Received:")[2]
        assert b"example.net" not in content.partition(b"\r\nFrom:")[0].replace(
            b"mx.example.net", b""
        )
