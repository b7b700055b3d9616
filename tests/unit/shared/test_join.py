"""A machine that joins judges as the others do before it has copied their log."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.cli import main
from tests.support.postgres import TestDatabase, needs_postgres
from tests.unit.filters import mail, teach
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
