"""Limits of what one user may teach by moving mail."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.watched import MAIL

pytestmark = pytest.mark.usefixtures("one_day")


def test_the_remedy_can_be_given_to_a_shell(tmp_path, watch, caplog):
    one = watch(tmp_path / "it's here", user="Anna B", lessons_per_day=1)
    message, other = (deliver(one.box, raw) for raw in MAIL[:2])
    one.rest()
    move(message, one.box / ".Junk")
    move(other, one.box / ".Junk")
    one.rest()
    words = shlex.split(caplog.text.partition("all the same: ")[2].partition("\n")[0])
    assert words == [
        "spamguard",
        "--state",
        str(one.state),
        "learn",
        "--user",
        "Anna B",
        "--as",
        "spam",
        f"{one.box}/.Junk",
    ]
