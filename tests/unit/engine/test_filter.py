"""Judging and explaining with a filter in a directory, and directories that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from spamguard.engine.filter import Filter
from spamguard.errors import UnknownClassError
from tests.unit.filters import mail, opened, python

MAIL = mail(90)
HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))


@pytest.fixture
def spam_filter(tmp_path: Path) -> Iterator[Filter]:
    with opened(tmp_path / "state") as spam_filter:
        yield spam_filter


# Judging


@pytest.mark.parametrize("profile", ["default", "multinomial"])
def test_a_message_is_bytes_and_a_user_is_text(tmp_path: Path, profile: str) -> None:
    with opened(tmp_path, profile=profile) as spam_filter:
        text: Any = HAM[0].decode("latin-1")
        for use in (
            spam_filter.judge,
            spam_filter.scan,
            spam_filter.forget,
            lambda raw: spam_filter.learn(raw, "ham"),
            lambda raw: list(spam_filter.judge_all([raw])),
        ):
            with pytest.raises(TypeError, match="a message is bytes, as it came, and this is str"):
                use(text)
        for user in (None, b"anna", 7):
            odd: Any = user
            with pytest.raises(TypeError, match="the name of a user is a str"):
                spam_filter.learn(HAM[0], "ham", user=odd)
            with pytest.raises(TypeError, match="the name of a user is a str"):
                spam_filter.forget(HAM[0], user=odd)
        assert spam_filter.status().events == 0
    with opened(tmp_path) as spam_filter, pytest.raises(TypeError, match="and this is str"):
        spam_filter.explain(text)


# The directory


def test_a_filter_is_made_where_there_is_none_and_found_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with Filter.open(place, _bits=12, _durable=False) as spam_filter:
        assert spam_filter.learn(SPAM[0], "spam")
        assert spam_filter.status().buckets == 1 << 12
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    with Filter.open(str(place)) as spam_filter:
        assert spam_filter.status().buckets == 1 << 12  # chosen once
        assert spam_filter.status().classes == {"ham": 0, "spam": 1}


NOBODY = """
import os
from spamguard.errors import SpamguardError
opened(Path(sys.argv[2])).close()
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Filter.open(sys.argv[1])
except SpamguardError as error:
    print(error)
"""


@pytest.mark.parametrize(("mode", "exists"), [*product((0o500, 0o000), (True, False))])
def test_a_directory_that_another_user_may_not_write_or_enter(
    tmp_path: Path, mode: int, exists: bool
) -> None:
    place = tmp_path / "state"
    if exists:
        opened(place).close()
    else:
        place.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    place.chmod(mode)
    done = python(NOBODY, str(place), str(tmp_path / "other"))
    place.chmod(0o700)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert str(place) in done.stdout


def test_a_name_that_looks_like_a_slip_can_be_meant(spam_filter: Filter) -> None:
    spam_filter.define_class("spam2", unwanted=True)
    assert spam_filter.learn(MAIL[0][1], "spam2")
    assert spam_filter.unwanted == {"spam", "spam2"}
    with pytest.raises(UnknownClassError, match="did you mean 'spam2'"):
        spam_filter.learn(MAIL[1][1], "sspam2")
    for name, unwanted in (("ham", True), ("spam", False)):
        with pytest.raises(UnknownClassError, match="is always"):
            spam_filter.define_class(name, unwanted=unwanted)
