"""Whether a lesson names a class that there is: refused only where that is sure, as of now."""

from __future__ import annotations

import asyncio

from spamguard.daemon.teaching import Classes
from tests.unit.filters import opened


def test_a_class_is_missed_only_by_who_has_looked_since(tmp_path):
    with opened(tmp_path) as spam_filter:
        classes = Classes(lambda: classes.tell(spam_filter))
        assert not asyncio.run(classes.lack("spam"))
        assert asyncio.run(classes.lack("newsletter"))
        spam_filter.define_class("newsletter", unwanted=False)
        assert not asyncio.run(classes.lack("newsletter"))


def test_while_nobody_can_tell_there_may_be_such_a_class():
    assert not asyncio.run(Classes(lambda: None).lack("newsletter"))
