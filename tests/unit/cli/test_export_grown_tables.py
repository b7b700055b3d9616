"""`export` of tables that have grown: the file holds their first size too.

From that size the importing filter settles the same state.
"""

from __future__ import annotations

from spamguard.engine.prepare import ExampleReader
from tests.unit.filters import BITS, held, mail, opened, teach


def test_the_other_side_holds_the_same_and_shrinks_as_this_one(run, tmp_path):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "file"
    lessons = mail(70)
    with opened(here) as here_filter:
        teach(here_filter, lessons)
        here_filter.settle()
        assert here_filter.status().buckets == 2 << BITS
        assert run(here, "export", "--with-key", file).status == 0
        assert run(there, "import", file).status == 0
        with opened(there, bits=8) as there_filter:
            assert held(there_filter) == held(here_filter)
            for each in (here_filter, there_filter):
                reader = ExampleReader(each.key)
                each.forget_digests([reader.digest(raw) for _, raw in lessons[20:]])
                each.settle()
            assert there_filter.status().buckets == 1 << BITS
            assert held(there_filter) == held(here_filter)
