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


def test_no_words_at_all(run, taught, message):
    *_, (parts, whole) = tables(run(taught, "explain", "--words", "0", message).out)
    assert sum(parts) == whole


def test_only_of_the_default_profile(run, taught, message):
    assert run(taught, "--profile", "bernoulli", "explain", message).failed("--profile")


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


def test_what_would_change_the_label(run, taught, clear, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(clear["spam"])
    flip = run(taught, "explain", "--json", path).json["flip"]
    assert (flip["speaking_for"], flip["label"]) == ("spam", "unsure")
    line = rf"^Without its ({flip['words']} )?strongest words? for spam it would be unsure\.$"
    assert re.search(line, run(taught, "explain", path).out, re.MULTILINE)
