"""What `export` says of tables that have grown: how large they were at first, from which the other
side settles the same state.
"""

from __future__ import annotations

from tests.unit.filters import BITS, held, mail, opened, teach


def test_the_other_side_holds_the_same_and_shrinks_as_this_one(run, tmp_path):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "file"
    lessons = mail(70)
    with opened(here) as one:
        teach(one, lessons)
        one.settle()
        assert one.status().buckets == 2 << BITS
        assert run(here, "export", "--with-key", file).status == 0
        assert run(there, "import", file).status == 0
        with opened(there, bits=8) as other:
            assert held(other) == held(one)
            for each in (one, other):
                each.forget_digests([each._reader.digest(raw) for _, raw in lessons[20:]])
                each.settle()
            assert other.status().buckets == 1 << BITS
            assert held(other) == held(one)


def test_tables_without_receipts_come_as_large_as_they_are(run, tmp_path):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "file"
    with opened(here) as one:
        teach(one, mail(70))
        one.settle()
        assert run(here, "export", "--with-key", "--without-receipts", file).status == 0
        assert run(there, "import", file).status == 0
        assert (
            run(there, "status", "--json").json["buckets"]
            == run(here, "status", "--json").json["buckets"]
            == 2 << BITS
        )
        with opened(there) as other:
            assert held(other) == held(one)
