"""`explain`: the printed parts sum to the printed score."""

from __future__ import annotations

import re

import pytest

from tests.unit.cli.conftest import new_mail

PART = re.compile(r" +([+-]\d+\.\d{3})  (.*?)(?:  |$)")


@pytest.fixture(params=["ham", "spam"])
def message(request, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(new_mail(request.param)[0])
    return path


def tables(report):
    """The (parts, sum) of each table of a report, in thousandths."""
    sums, parts = [], []
    for line in report.splitlines():
        if match := PART.match(line):
            steps = round(float(match[1]) * 1000)
            if match[2] == "sum":
                sums.append((parts, steps))
                parts = []
            else:
                parts.append(steps)
    return sums


def test_what_is_printed_adds_up(run, taught, message):
    done = run(taught, "explain", message)
    assert done.status == 0
    (by_group, whole), (by_expert, first), (by_feature, second) = tables(done.out)
    assert (sum(by_group), sum(by_expert), sum(by_feature)) == (whole, first, second)
    assert whole == first
    assert len(by_group) > 3
    log_odds = float(re.search(r"log-odds ([+-][\d.]+)\n", done.out)[1])
    assert first == second == round(log_odds * 1000)
    assert len(by_expert) > 5
    assert len(by_feature) > 20


def test_json_adds_up(run, taught, message):
    (why,) = run(taught, "explain", "--json", "--words", "7", message).lines
    assert why["prior"] + sum(
        expert["share"] for expert in why["experts"].values()
    ) == pytest.approx(why["sum"], abs=1e-9)
    words = sum(word["part"] for word in why["words"]) + why["other_words"]
    features = (
        words
        + sum(why["traits"].values())
        + sum(why["numbers"].values())
        + why["biases"]
        + why["prior"]
    )
    assert features == pytest.approx(why["sum"], abs=1e-9)
    assert why["sum"] == pytest.approx(why["log_odds"], abs=1e-9)
    assert sum(group["part"] for group in why["groups"]) == pytest.approx(why["sum"], abs=1e-9)
    assert why["sentence"].startswith(why["label"].capitalize() + ": ")
    assert set(why["words"][0]) == {
        "text", "part", "messages", "name", "kind", "group", "tokens",
    }  # fmt: skip
    assert set(why["words"][0]["messages"]) == {"ham", "spam"}


def test_the_number_of_words_each_way(run, taught, message):
    (why,) = run(taught, "explain", "--json", "--words", "3", message).lines
    parts = [word["part"] for word in why["words"]]
    assert sum(part > 0 for part in parts) <= 3
    assert sum(part < 0 for part in parts) <= 3
    assert parts == sorted(parts, key=lambda part: -abs(part))


def test_all_other_words_hold_a_third_at_most(run, taught, message):
    (why,) = run(taught, "explain", "--json", message).lines
    assert abs(why["other_words"]) <= abs(why["sum"]) / 3


def test_no_words_at_all(run, taught, message):
    *_, (parts, whole) = tables(run(taught, "explain", "--words", "0", message).out)
    assert sum(parts) == whole


def test_a_negative_number_of_words(run, taught, message):
    with pytest.raises(SystemExit) as stop:
        run(taught, "explain", "--words", "-1", message)
    assert stop.value.code == 2


def test_a_filter_that_knows_nothing(run, state, message):
    done = run(state, "explain", message)
    assert done.status == 0
    assert "unsure" in done.out


def test_only_of_the_default_profile(run, taught, message):
    assert run(taught, "--profile", "bernoulli", "explain", message).failed("--profile")


def test_a_third_class(run, taught, message, corpus):
    run(taught, "learn", "--as", "newsletter", corpus / "data" / "00001", corpus / "data" / "00002")
    done = run(taught, "explain", message)
    _, (by_expert, first), (by_feature, second) = tables(done.out)
    assert (sum(by_expert), sum(by_feature)) == (first, second)
    assert "newsletter" in done.out


def test_control_characters_in_words_are_replaced(run, taught, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(b"Subject: \x1b[31m \x9b31m\n\nx\x1b]0;title\x07 \xe2\x80\xae\n")
    out = run(taught, "explain", "--words", "100", path).out
    assert out.isascii() or all(letter.isprintable() or letter == "\n" for letter in out)
    assert "\x1b" not in out


def test_votes_on_the_message_are_shown(run, taught, new_spam):
    """Once only the history knew the votes on a message, and only if the message had passed."""
    assert "taught as" not in run(taught, "explain", new_spam).out
    run(taught, "learn", "--as", "spam", new_spam)
    run(taught, "learn", "--as", "ham", "--user", "anna", new_spam)
    text = run(taught, "explain", new_spam).out
    assert re.search(
        (
            r"taught as spam by \(the site\): cli, 20\d\d-\d\d-\d\d \d\d:\d\d\ntaught as "
            r"ham by anna: cli, "
        ),
        text,
    )
    (why,) = run(taught, "explain", "--json", new_spam).lines
    assert [(vote["user"], vote["class"], vote["origin"]) for vote in why["taught"]] == [
        ("", "spam", "cli"),
        ("anna", "ham", "cli"),
    ]
    run(taught, "forget", new_spam)
    assert [
        vote["user"] for vote in run(taught, "explain", "--json", new_spam).lines[0]["taught"]
    ] == ["anna"]


def test_for_a_user_there_is_one_more_part(run, taught, clear, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(clear["ham"])
    for user in ("anna", "ben", "cleo"):
        run(taught, "learn", "--as", "spam" if user == "anna" else "ham", "--user", user, path)
    done = run(taught, "explain", "--user", "anna", path)
    _, (by_expert, first), (by_feature, second) = tables(done.out)
    assert sum(by_expert) == first == second == sum(by_feature) > 0
    assert re.search(r" \+\d+\.\d+  personal +\++\n", done.out)
    assert "  personal " not in run(taught, "explain", path).out
