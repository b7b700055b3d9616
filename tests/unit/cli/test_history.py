"""`explain ID`, `learn --id`, `forget --id`: messages that passed, named by their ids."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime

import pytest

from spamguard.cli import main
from spamguard.delivery.quarantine import DIRECTORY, Quarantine
from spamguard.engine.filter import Filter
from spamguard.keys import new_id
from spamguard.proxy.history import HISTORY_FILE, History
from spamguard.records import Word
from spamguard.smtp.envelope import Client, Envelope, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.unit.cli.conftest import lessons, new_mail
from tests.unit.cli.test_explain import tables
from tests.unit.proxy.history_rows import row

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
        history.append([row(1, **usual | values)])
    return scan


def test_then_and_now(run, taught):
    scan = remember(taught)
    done = run(taught, "explain", ID)
    assert done.status == 0
    then, _, now = done.out.partition("\nnow\n")
    assert f"then: {scan.verdict.label}: probability {scan.verdict.probability:.4f}" in then
    assert "tag; answered: 250 2.0.0 Ok" in then
    assert 'from <a1@example.org> at 192.0.2.1 to b@example.org, ü@example.org\n"Grüße 1"' in then
    assert f"{scan.words[0].part:+9.3f}  {scan.words[0].text}" in then
    _, (by_expert, first), (by_feature, second) = tables(now)
    assert (
        sum(by_expert) == first == second == sum(by_feature) == round(scan.verdict.log_odds * 1000)
    )


@pytest.mark.parametrize(
    ("author", "expected"),
    [
        (
            "Sunny Roofs <hello@roofs.example>",
            "Sunny Roofs <hello@roofs.example>, envelope sender <a1@example.org>",
        ),
        ("Sunny Roofs <A1@example.org>", "Sunny Roofs <A1@example.org>"),
        ("a1@example.org", "<a1@example.org>"),
    ],
)
def test_the_author_is_shown_beside_the_sender(run, taught, author, expected):
    remember(taught, author=author)
    assert f"from {expected} at 192.0.2.1 to b@example.org, " in run(taught, "explain", ID).out
    (why,) = run(taught, "explain", "--json", ID).lines
    assert (why["then"]["author"], why["then"]["from"]) == (author, "a1@example.org")


def test_the_verdict_of_now_equals_that_of_the_message_itself(run, taught, tmp_path):
    scan = remember(taught)
    (tmp_path / "message.eml").write_bytes(SPAM)
    run(taught, "learn", "--as", "spam", tmp_path / "message.eml")
    (of_file,) = run(taught, "explain", "--json", tmp_path / "message.eml").lines
    (of_id,) = run(taught, "explain", "--json", "--words", "5", ID).lines
    then = of_id.pop("then")
    assert (of_id["name"], of_id["experts"], of_id["traits"]) == (
        ID,
        of_file["experts"],
        of_file["traits"],
    )
    assert then["log_odds"] == scan.verdict.log_odds != of_id["log_odds"] == of_file["log_odds"]
    assert (then["label"], then["action"], then["next_hop"]) == (
        scan.verdict.label,
        "tag",
        "250 2.0.0 Ok",
    )
    assert then["words"][0]["text"] == scan.words[0].text
    parts = sum(word["part"] for word in of_id["words"]) + of_id["other_words"]
    assert parts + sum(of_id["traits"].values()) + sum(of_id["numbers"].values()) + of_id[
        "biases"
    ] + of_id["prior"] == pytest.approx(of_id["sum"], abs=1e-9)


def test_only_recorded_words_are_shown(run, taught):
    scan = remember(taught, words=())
    (why,) = run(taught, "explain", "--json", ID).lines
    assert [word["text"] for word in why["words"] if word["text"]] == []
    assert sum(word["tokens"] for word in why["words"]) > 1
    remember(taught, id=new_id(1.7e9, b"zzzz"), words=scan.words[:2])
    (why,) = run(taught, "explain", "--json", new_id(1.7e9, b"zzzz")).lines
    texts = {word["text"] for word in why["words"] if word["text"]}
    assert texts == {word.text for word in scan.words[:2]}


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


def test_a_file_whose_name_looks_like_an_id_is_a_file(run, taught, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ID).write_bytes(HAM)
    assert "then:" not in run(taught, "explain", ID).out


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
        assert run(taught, *command, "--id", ID).failed(ID, "not scanned")


@pytest.mark.parametrize(
    "command", [["explain"], ["learn", "--as", "ham", "--id"], ["forget", "--id"]]
)
def test_an_unknown_id(run, taught, command):
    assert run(taught, *command, ID).failed(ID, "no history there")
    remember(taught)
    assert run(taught, *command, new_id(1, b"none")).failed(
        new_id(1, b"none"), "no message with that id"
    )


@pytest.mark.parametrize("command", [["learn", "--as", "ham", "--id"], ["forget", "--id"]])
def test_a_text_that_is_no_id(run, taught, command):
    remember(taught)
    assert run(taught, *command, "../x\x1b").failed(r"../x\x1b", "no message with that id")


OTHER = new_id(1.7e9, b"othr")


def test_features_of_another_extractor_are_refused(run, taught):
    remember(taught, extractor=99)
    assert run(taught, "learn", "--as", "ham", "--id", ID).failed(
        ID, "extractor 99", "name its file"
    )
    remember(taught, id=OTHER, fingerprint="feedfacefeedface")
    for command in (["learn", "--as", "ham"], ["forget"]):
        assert run(taught, *command, "--id", OTHER).failed(OTHER, "key feedfacefeedface")


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


def test_teaching_by_id_is_teaching_the_message(run, taught, counts, tmp_path):
    remember(taught)
    done = run(taught, "learn", "--as", "ham", "--id", ID)
    assert (done.status, done.out) == (0, "taught 1 message as ham\n")
    assert lessons(taught) == {"ham": counts["ham"] + 1, "spam": counts["spam"]}
    (tmp_path / "message.eml").write_bytes(SPAM)
    assert run(taught, "learn", "--json", "--as", "ham", tmp_path / "message.eml").json[
        "known"
    ] == {"ham": 1}
    assert run(taught, "forget", tmp_path / "message.eml").out == "forgot 1 message\n"
    assert lessons(taught) == counts


def test_several_ids_and_users(run, taught, counts):
    other_id = new_id(1.7e9, b"othr")
    remember(taught)
    remember(taught, HAM, id=other_id)
    done = run(
        taught, "learn", "--json", "--as", "ham", "--user", "anna", "--id", ID, "--id", other_id
    )
    assert done.json["taught"] == {"ham": 2}
    assert (
        run(taught, "forget", "--json", "--id", ID, "--id", other_id).json["unknown"] == 2
    )  # another user's word
    assert (
        run(taught, "forget", "--json", "--user", "anna", "--id", ID, "--id", other_id).json[
            "forgotten"
        ]
        == 2
    )
    assert lessons(taught) == counts


def test_an_id_needs_a_class(run, taught):
    remember(taught)
    assert run(taught, "learn", "--id", ID).failed(ID, "--as CLASS")
    assert run(taught, "learn", "--as", "hamm", "--id", ID).failed("did you mean 'ham'")


@pytest.mark.parametrize("command", [["learn", "--as", "ham"], ["forget"]])
@pytest.mark.parametrize("names", [[], ["--id", ID, "x.eml"]])
def test_either_paths_or_ids(taught, capsys, command, names):
    with pytest.raises(SystemExit) as stop:
        main(["--state", str(taught), *command, *names])
    assert stop.value.code == 2
    assert re.search(r"usage: spamguard (learn|forget)[\s\S]*PATH", capsys.readouterr().err)


def test_a_slip_in_an_id_makes_no_filter(run, tmp_path):
    assert run(tmp_path / "none", "learn", "--as", "ham", "--id", ID).failed(
        "no history there", "--state"
    )
    assert not (tmp_path / "none").exists()


def test_now_for_a_user(run, taught, tmp_path):
    remember(taught)
    path = tmp_path / "message.eml"
    path.write_bytes(SPAM)
    for user in ("anna", "ben", "cleo"):
        run(taught, "learn", "--as", "ham" if user == "anna" else "spam", "--user", user, path)
    (of_id,) = run(taught, "explain", "--json", "--user", "anna", ID).lines
    (of_file,) = run(taught, "explain", "--json", "--user", "anna", path).lines
    assert of_id["experts"]["personal"] == of_file["experts"]["personal"]
    assert of_id["experts"]["personal"]["share"] < -1


def test_history_lists_what_passed_newest_first(run, taught):
    scan = remember(taught)
    remember(taught, raw=HAM, id=new_id(1.7e9 + 60, b"bcde"), time=1.7e9 + 60, label="ham")
    lines = run(taught, "history").out.splitlines()
    assert [ID in line for line in lines] == [False, True]
    assert scan.digest.hex()[:12] in lines[1]


def test_the_name_of_a_message_joins_history_explain_and_lessons(run, taught, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(SPAM)
    scan = remember(taught)
    name = scan.digest.hex()[:12]  # as in the log lines of lessons
    (listed,) = run(taught, "history", "--json").lines
    (of_id,) = run(taught, "explain", "--json", ID).lines
    (of_file,) = run(taught, "explain", "--json", path).lines
    assert listed["id"] == of_id["name"] == ID
    assert listed["message"] == of_id["message"] == of_id["then"]["message"] == name
    assert of_file["message"] == name
    assert f"message={name}" in run(taught, "explain", path).out
    assert f"message={name}" in run(taught, "explain", ID).out


@pytest.mark.parametrize("form", ["{}", "message={}"])
def test_the_name_in_a_log_line_is_as_good_as_an_id(run, taught, form):
    remember(taught)
    remember(taught, id=OTHER, time=1.7e9 + 1)  # another copy, which came later
    scan = remember(taught, raw=HAM, id=new_id(1.7e9 + 60, b"bcde"))
    name = form.format(scan.digest.hex()[:12])
    (of_name,) = run(taught, "explain", "--json", name).lines
    assert of_name["name"] == new_id(1.7e9 + 60, b"bcde")
    assert run(taught, "learn", "--as", "ham", "--id", name).status == 0
    assert run(taught, "explain", form.format("0" * 12)).failed("no message with that id")


def hold(state, raw, name=ID):
    """Put a message into the quarantine, under the id of its verdict."""
    with closing(Spool(state)) as spool:
        spool.write(raw)
        envelope = Envelope(Sender("a@example.com"), (Recipient("b@example.org"),), Client(""))
        Quarantine(state / DIRECTORY).store(
            name, SpoolView(b"", spool, 0), envelope, "spam", 1.7e9, "smtp://127.0.0.1:10025"
        )


def test_a_held_message_is_read_again(run, taught):
    remember(taught, words=())
    (unnamed,) = run(taught, "explain", "--json", "--words", "1000", ID).lines
    hold(taught, SPAM)
    (named,) = run(taught, "explain", "--json", "--words", "1000", ID).lines
    assert {word["text"] for word in unnamed["words"]} == {""}
    assert all(word["text"] for word in named["words"])
    assert named["sum"] == unnamed["sum"]
    remember(taught, id=OTHER, extractor=99, words=())
    hold(taught, SPAM, OTHER)
    (other,) = run(taught, "explain", "--json", OTHER).lines
    assert (other["sum"], "no_now" in other) == (named["sum"], False)


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


def test_a_verdict_that_there_is_not_is_an_error(run, taught):
    remember(taught)
    assert run(taught, "history", "--verdict", "spm").failed("'spm'", "spam", "not-scanned")


def test_the_newest_rows_come_first(run, taught):
    for number in range(5):
        remember(taught, id=new_id(1.7e9 + number, b"abcd"), time=1.7e9 + number)
    ids = [row["id"] for row in run(taught, "history", "--json").lines]
    assert ids == [new_id(1.7e9 + number, b"abcd") for number in reversed(range(5))]


def test_history_where_there_is_none(run, taught):
    assert run(taught, "history").failed("no history there")


def test_control_characters_in_the_list_are_replaced(run, taught):
    remember(taught, subject="\x1b[31m\u202e", sender="\x9b1m", author="\x1b]0;x\x07")
    out = run(taught, "history").out
    assert all(letter.isprintable() or letter == "\n" for letter in out)
