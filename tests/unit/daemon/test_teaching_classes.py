"""Whether a lesson names a class that there is: refused only where that is sure, as of now."""

from __future__ import annotations

import asyncio

from spamguard.daemon.teach import ClassRegistry
from tests.unit.filters import opened


def test_a_class_is_missed_only_by_who_has_looked_since(tmp_path):
    with opened(tmp_path) as spam_filter:
        classes = ClassRegistry(lambda: classes.update(spam_filter))
        assert not asyncio.run(classes.is_missing("spam"))
        assert asyncio.run(classes.is_missing("newsletter"))
        spam_filter.define_class("newsletter", unwanted=False)
        assert not asyncio.run(classes.is_missing("newsletter"))


def test_while_nobody_can_tell_there_may_be_such_a_class():
    assert not asyncio.run(ClassRegistry(lambda: None).is_missing("newsletter"))
