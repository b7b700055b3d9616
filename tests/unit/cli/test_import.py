"""`import`: what another installation has learnt comes in from its backup, once.

A backup with another key, or with damage, is refused as a whole.
"""

from __future__ import annotations

import numpy as np
import pytest

from spamguard.engine.filter import Filter
from tests.contract.ledgers import winning_votes
from tests.unit.bayes.lessons import counted_arrays


def knowledge(state):
    """Votes in force, counts and classes of a filter.

    Replaced votes are left out: only one of two filters may have compacted them.
    """
    with Filter.open(state) as spam_filter:
        votes = winning_votes(spam_filter.ledger.all_votes())
        return (
            votes,
            {name: np.array(values) for name, values in counted_arrays(spam_filter._store.tables)},
            spam_filter.ledger.classes(),
        )


def assert_same(first, second):
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert first[1].keys() == second[1].keys()
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])


@pytest.fixture
def file(run, taught, tmp_path):
    """A backup of the taught filter."""
    assert run(taught, "backup", tmp_path / "backup").status == 0
    return tmp_path / "backup"


@pytest.fixture
def new(taught, tmp_path):
    """A filter with the same key that knows nothing."""
    (tmp_path / "new").mkdir(mode=0o700)
    (tmp_path / "new" / "key").touch(0o600)
    (tmp_path / "new" / "key").write_bytes((taught / "key").read_bytes())
    with Filter.open(taught, _load=False) as other:
        bits = other.min_bits
    with Filter.open(tmp_path / "new", _bits=bits):
        return tmp_path / "new"


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True)])
def test_a_class_that_is_unwanted_in_one_filter_only_gives_a_note(
    run, status_of, taught, new, file, here, there
):
    for state, unwanted in [(taught, there), (new, here)]:
        with Filter.open(state) as spam_filter:
            spam_filter.define_class("promo", unwanted=unwanted)
    run(taught, "backup", file)
    done = run(new, "import", file)
    assert f"promo is unwanted {'here' if here else 'there'} alone" in done.err
    assert status_of(new)["classes"]["promo"]["unwanted"] is here


def _interrupted(_: Filter) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_settling_is_made_up_for(run, status_of, file, new, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Filter, "settle_everywhere", _interrupted)
        assert run(new, "import", file).status == 130
    assert status_of(new)["unsettled"] >= 120
    assert run(new, "import", file).out == "imported 0 receipts\n"
    assert status_of(new)["unsettled"] == 0


def test_everything_comes_in(run, taught, new, file, corpus):
    with Filter.open(taught) as spam_filter:
        spam_filter.define_class("offers", unwanted=True)
    run(taught, "forget", corpus / "data" / "00001")
    run(taught, "learn", "--as", "newsletter", "--user", "änna", corpus / "data" / "00002")
    run(taught, "backup", file)
    done = run(new, "import", file)
    assert done.status == 0
    assert done.out != "imported 0 receipts\n"
    assert_same(knowledge(taught), knowledge(new))
    run(taught, "rebuild")
    judge = ("judge", "--json", corpus / "data")
    assert run(new, *judge).out == run(taught, *judge).out


def test_a_pipe(run, taught, new):
    out = run(taught, "backup", "-")
    assert run(new, "import", "-", stdin=out.raw).out == "imported 120 receipts\n"


def test_a_directory_that_is_not_there(run, taught, tmp_path):
    """The error names the directory, not the draft file in it."""
    message = f"{tmp_path / 'nowhere'}: No such file or directory: check the path"
    failed = run(taught, "backup", tmp_path / "nowhere" / "file")
    assert failed.status == 2
    assert failed.err == f"spamguard: {message}\n"
    assert run(taught, "backup", tmp_path).failed("Is a directory: name a file")


def test_another_key(run, status_of, state, file):
    with Filter.open(state):
        assert run(state, "import", file).failed("was taught with key", "new state directory")
    assert status_of(state)["events"] == 0


def test_a_new_directory_is_for_restore(run, tmp_path, file):
    assert run(tmp_path / "nothing", "import", file).failed("no filter there")
    assert not (tmp_path / "nothing").exists()


def test_damage_imports_nothing(run, status_of, new, file):
    whole = file.read_bytes()
    for at in (0, 600, 2000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert run(new, "import", file).failed(str(file)), at
        file.write_bytes(whole[:at])
        assert run(new, "import", file).failed(str(file)), at
    assert status_of(new)["events"] == 0
