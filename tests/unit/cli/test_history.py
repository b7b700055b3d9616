"""`explain ID`, `learn ID`, `forget ID`: messages that passed, named by their ids."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from spamguard.cli import main
from spamguard.engine.filter import Filter
from spamguard.keys import new_id
from spamguard.proxy.history import HISTORY_FILE, History
from spamguard.records import Word
from tests.unit.cli.conftest import lessons, new_mail
from tests.unit.proxy.history_rows import append, row

ID = new_id(1.7e9, b"abcd")
SPAM, HAM = new_mail("spam", seed=7)[0], new_mail("ham", seed=7)[0]


def remember(state, raw=SPAM, **values):
    """Append a row to the history, as the daemon does for a delivered message."""
    with Filter.open(state) as spam_filter:
        scan = spam_filter.scan(raw)
        fingerprint = spam_filter.ledger.fingerprint
    verdict = scan.verdict
    usual = {
        "label": verdict.label,
        "probability": verdict.probability,
        "log_odds": verdict.log_odds,
        "digest": scan.digest,
    }
    usual |= {"packed": scan.packed, "words": scan.words, "fingerprint": fingerprint, "id": ID}
    with History.open(state / HISTORY_FILE, 64 << 20, 30) as history:
        append(history, row(1, **usual | values))
    return scan


def test_control_characters_of_strangers_are_replaced(run, taught):
    remember(
        taught,
        subject="\x1b[31m",
        sender="\x9b1m",
        reply="\x1b]0;x\x07",
        words=(Word(5, "\x1b[31m", 1.0),),
    )
    assert "\x1b" not in run(taught, "explain", ID).out


def test_files_and_ids_together(run, taught, tmp_path):
    remember(taught)
    (tmp_path / "message.eml").write_bytes(HAM)
    done = run(taught, "explain", "--json", tmp_path / "message.eml", ID)
    assert [why["name"] for why in done.lines] == [ID, str(tmp_path / "message.eml")]


def test_a_message_that_was_not_scanned(run, taught):
    remember(taught, label="not-scanned", packed=b"", digest=b"", words=())
    done = run(taught, "explain", ID)
    assert (done.status, "then: not-scanned\n" in done.out, "by expert" in done.out) == (
        0,
        True,
        False,
    )
    (why,) = run(taught, "explain", "--json", ID).lines
    assert set(why) == {"name", "message", "then"}
    for command in (["learn", "--as", "ham"], ["forget"]):
        assert run(taught, *command, ID).failed(ID, "not scanned")


OTHER = new_id(1.7e9, b"othr")


def test_the_verdict_of_then_is_shown_if_there_is_none_of_now(run, taught):
    """After an upgrade of the extractor nothing at all was shown of older rows."""
    scan = remember(taught, extractor=99)
    remember(taught, id=OTHER, fingerprint="feedfacefeedface")
    done = run(taught, "explain", ID, OTHER)
    assert done.status == 0
    assert (
        done.out.count(f"then: {scan.verdict.label}: probability {scan.verdict.probability:.4f}")
        == 2
    )
    assert f"now: cannot be told. {ID}: was read by another version (extractor 99" in done.out
    assert f"now: cannot be told. {OTHER}: was read with key feedfacefeedface" in done.out
    first, second = run(taught, "explain", "--json", ID, OTHER).lines
    assert (set(first), first["then"]["label"], "extractor 99" in first["no_now"]) == (
        {"name", "message", "then", "no_now"},
        scan.verdict.label,
        True,
    )
    assert "feedface" in second["no_now"]


def test_several_ids_and_users(run, taught, counts):
    other_id = new_id(1.7e9, b"othr")
    remember(taught)
    remember(taught, HAM, id=other_id)
    both = (ID, other_id)
    done = run(taught, "learn", "--as", "ham", "--user", "anna", *both)
    assert done.out == "taught 2 messages as ham\n"
    assert "(2 not known)" in run(taught, "forget", *both).out  # another user's word
    assert run(taught, "forget", "--user", "anna", *both).out == "forgot 2 messages\n"
    assert lessons(taught) == counts


def test_an_id_needs_a_class(run, taught):
    remember(taught)
    assert run(taught, "learn", ID).failed(ID, "--as CLASS")
    assert run(taught, "learn", "--as", "hamm", ID).failed("did you mean 'ham'")


@pytest.mark.parametrize("command", [["learn", "--as", "ham"], ["forget"], ["explain"]])
def test_something_must_be_named(taught, capsys, command):
    with pytest.raises(SystemExit) as stop:
        main(["--state", str(taught), *command])
    assert stop.value.code == 2
    assert re.search(r"usage: spamguard (learn|forget|explain)[\s\S]*PATH", capsys.readouterr().err)


def test_history_lists_what_passed_newest_first(run, taught):
    scan = remember(taught)
    remember(taught, raw=HAM, id=new_id(1.7e9 + 60, b"bcde"), time=1.7e9 + 60, label="ham")
    lines = run(taught, "history").out.splitlines()
    assert [ID in line for line in lines] == [False, True]
    assert scan.digest.hex()[:12] in lines[1]


@pytest.mark.parametrize("form", ["{}", "message={}"])
def test_the_name_in_a_log_line_is_as_good_as_an_id(run, taught, form):
    remember(taught)
    remember(taught, id=OTHER, time=1.7e9 + 1)  # another copy, which came later
    scan = remember(taught, raw=HAM, id=new_id(1.7e9 + 60, b"bcde"))
    name = form.format(scan.digest.hex()[:12])
    (of_name,) = run(taught, "explain", "--json", name).lines
    assert of_name["name"] == new_id(1.7e9 + 60, b"bcde")
    assert run(taught, "learn", "--as", "ham", name).status == 0
    assert run(taught, "explain", form.format("0" * 12)).failed("no message with that id")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 3),
        (("--limit", "2"), 2),
        (("--limit", "0"), 0),
        (("--verdict", "ham"), 1),
        (("--verdict", "not-scanned"), 0),
        (("--since", "2023-11-15"), 2),
        (("--until", "2023-11-15"), 1),
        (("--since", "2023-11-15", "--until", "2023-11-16"), 1),
    ],
)
def test_what_history_looks_for(run, taught, words, expected):
    for day, label in ((14, "spam"), (15, "ham"), (16, "unsure")):
        when = datetime(2023, 11, day, 12).timestamp()
        remember(taught, id=new_id(when, b"abcd"), time=when, label=label)
    done = run(taught, "history", "--json", *words)
    assert (done.status, len(done.lines)) == (0, expected)
    assert ("there are older ones" in done.err) == ("--limit" in words)
