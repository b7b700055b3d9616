"""`ClassRegistry`: a class is called missing only if the filter says so now."""

from __future__ import annotations

import asyncio

from spamguard.daemon.learner import ClassRegistry
from tests.unit.filters import opened


def test_a_class_made_meanwhile_is_not_missing(tmp_path):
    with opened(tmp_path) as spam_filter:
        classes = ClassRegistry(lambda: classes.update(spam_filter))
        assert not asyncio.run(classes.is_missing("spam"))
        assert asyncio.run(classes.is_missing("newsletter"))
        spam_filter.define_class("newsletter", unwanted=False)
        assert not asyncio.run(classes.is_missing("newsletter"))


def test_without_an_answer_no_class_is_missing():
    assert not asyncio.run(ClassRegistry(lambda: None).is_missing("newsletter"))
