"""Ageing where many machines share a log: one node forgets for all, and all have the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.config.values import KeptLessons
from spamguard.learning.undo import age_votes, find_old_votes
from tests.support.postgres import TestDatabase, needs_postgres
from tests.unit.filters import READER, mail
from tests.unit.shared.nodes import FilterNode, Site, site

pytestmark = needs_postgres
DAY = 86_400
NOW = 1_790_000_000
MAIL = mail(70)
KEPT = KeptLessons(number=40)


@pytest.fixture
def nodes(tmp_path: Path, shared_database: TestDatabase) -> Iterator[Site]:
    with site(tmp_path, shared_database) as place:
        yield place


def teach(node: FilterNode, numbers: range, user: str = "") -> None:
    """Teach messages, each a day later than the one before."""
    for number in numbers:
        label, raw = MAIL[number]
        (vote,) = node.filter.make_votes([READER.read_example(raw)], label, user=user)
        node.filter.cast_votes([vote._replace(time=NOW - (70 - number) * DAY)])


def test_what_one_node_forgets_all_have_forgotten(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first, range(30, 60))
    nodes.converge()
    teach(second, range(30))  # older, though they come later
    nodes.converge()
    choices = [
        find_old_votes(node.filter.ledger, KEPT, NOW, node.log.head().position)
        for node in nodes.nodes
    ]
    assert choices[0] == choices[1]
    assert sorted(choices[0]) == list(range(31, 51))
    assert age_votes(first.filter, KEPT, NOW) == 20
    nodes.converge()
    assert first.settle()
    nodes.converge()
    for node in nodes.nodes:
        assert sum(node.filter.status().classes.values()) == 40
        assert age_votes(node.filter, KEPT, NOW) == 0
    assert len({node.tables() for node in nodes.nodes}) == 1
    # an aged message that is taught again, and lessons of both after one of the two has compacted
    teach(second, range(5), "anna")
    ledger = first.filter.ledger
    assert ledger.compact(first.log.head().position, NOW + 1) == 39
    teach(first, range(60, 70))
    nodes.converge()
    assert len({node.tables() for node in nodes.nodes}) == 1
    for node in nodes.nodes:
        node.filter.settle()
    assert len({node.stamp().lineage for node in nodes.nodes}) == 1
    assert sum(first.filter.status().classes.values()) == 55
