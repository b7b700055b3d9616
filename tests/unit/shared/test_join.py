"""A machine that joins judges as the others do before it has copied their log."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.cli import main
from spamguard.engine.filter import Filter
from spamguard.shared import snapshots
from tests.support.postgres import TestDatabase, needs_postgres
from tests.unit.filters import mail, opened, teach
from tests.unit.shared.nodes import FilterNode, site

pytestmark = needs_postgres
MAIL, MORE = mail(80), [raw for _, raw in mail(100)[80:]]


def join(node: FilterNode, state: Path) -> None:
    database = node.database
    database.query("UPDATE spamguard.cluster SET fingerprint = %s", node.filter.ledger.fingerprint)
    server = database.server
    dsn = f"host=127.0.0.1 port={server.port} dbname={database.name} sslmode=disable"
    secrets = ["--key", str(node.filter.directory / "key"), "--password-file"]
    line = ["--state", str(state), "shared", "join", dsn, *secrets, str(server.password_file)]
    assert main(line) == 0


@pytest.mark.parametrize("before", [0, 5])
def test_it_has_the_tables_of_the_others_at_once_and_their_log_later(
    tmp_path: Path,
    shared_database: TestDatabase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: int,
) -> None:
    """Also where it was taught other mail before."""
    monkeypatch.setattr(snapshots, "MAX_BEHIND", 10)
    state = tmp_path / "joining"
    with site(tmp_path, shared_database) as place:
        first = place.node()
        teach(first.filter, MAIL)
        first.turn()
        first.publish()
        expected = first.verdicts(MORE)
        if before:
            with opened(state) as alone:
                teach(alone, [("ham", raw) for raw in MORE[:before]])
        join(first, state)
        whose = f"until then mail is judged by the tables of {first.filter.ledger.node}"
        assert whose in capsys.readouterr().err
        with Filter.open(state) as joined:
            assert [(one.label, one.log_odds) for one in map(joined.judge, MORE)] == expected
        late = place.node(state)
        assert late.log.counts().hold.endswith(first.filter.ledger.node)
        place.converge()
        assert late.log.counts().hold == ""
        assert late.log.head().position == len(MAIL) + before
        assert late.tables() == first.tables()
        assert late.settle() == bool(before)  # due or not, a settling follows
        place.converge()
        assert late.stamp().settled == first.stamp().settled == len(MAIL) + before


def test_it_says_that_there_are_no_tables_yet(
    tmp_path: Path, shared_database: TestDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "joining"
    with site(tmp_path, shared_database) as place:
        first = place.node()
        teach(first.filter, MAIL[:5])
        first.turn()
        join(first, state)
        assert "until then mail is judged by none" in capsys.readouterr().err
        late = place.node(state)
        place.converge()
        assert late.log.counts().hold == ""
        assert late.tables() == first.tables()
