"""What the role of the nodes may not do: everything that is no function of the schema."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import errors, sql

from tests.support.postgres import TestDatabase, needs_postgres, show_key
from tests.unit.shared.events import event

pytestmark = needs_postgres
NODE = "a" * 16
TABLES = ("cluster", "log", "events", "nodes", "credentials")
FUNCTIONS = (
    "append", "compact", "note_node", "forget_node", "put_credential", "end_credential",
    "burn_link",
)  # fmt: skip


def node_connection(place: TestDatabase) -> psycopg.Connection[tuple[object, ...]]:
    """A connection with the rights of a node, by password and TLS."""
    settings = place.settings()
    assert settings.password_file is not None
    password = settings.password_file.read_text().strip()
    return psycopg.connect(settings.database, password=password, autocommit=True)


def test_the_schema_has_the_tables_and_functions_that_are_tested_here(
    shared_database: TestDatabase,
) -> None:
    tables = shared_database.query(
        "SELECT relname FROM pg_class WHERE relnamespace = 'spamguard'::regnamespace "
        "AND relkind NOT IN ('i', 't')"
    )
    assert {name for (name,) in tables} == set(TABLES)
    callable_by_node = shared_database.query(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'spamguard'::regnamespace "
        "AND has_function_privilege('spamguard_node', oid, 'EXECUTE')"
    )
    assert {name for (name,) in callable_by_node} == set(FUNCTIONS)


@pytest.mark.parametrize("table", TABLES)
def test_a_node_changes_no_table(shared_database: TestDatabase, table: str) -> None:
    statements = (
        "INSERT INTO {0} DEFAULT VALUES", "UPDATE {0} SET {1} = {1}", "DELETE FROM {0}",
        "TRUNCATE {0}", "TRUNCATE {0} CASCADE", "DROP TABLE {0}", "DROP TABLE {0} CASCADE",
        "ALTER TABLE {0} ADD COLUMN other int", "ALTER TABLE {0} DROP COLUMN {1}",
        "ALTER TABLE {0} DISABLE TRIGGER ALL", "ALTER TABLE {0} OWNER TO spamguard_node",
        "ALTER TABLE {0} RENAME TO other", "CREATE INDEX ON {0} ({1})",
        "DO $$BEGIN LOCK TABLE {0}; END$$",
        "CREATE RULE other AS ON DELETE TO {0} DO INSTEAD NOTHING", "REINDEX TABLE {0}",
        "CREATE TRIGGER other BEFORE INSERT ON {0} EXECUTE FUNCTION tsvector_update_trigger()",
        "SELECT * FROM {0} FOR UPDATE", "SELECT * FROM {0} FOR SHARE", "COPY {0} FROM STDIN",
        "COMMENT ON TABLE {0} IS ''",
    )  # fmt: skip
    ((column,),) = shared_database.query(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1",
        f"spamguard.{table}",
    )
    name = sql.Identifier("spamguard", table)
    before = shared_database.query(f"SELECT * FROM spamguard.{table}")
    with node_connection(shared_database) as node:
        node.execute(sql.SQL("SELECT * FROM {}").format(name))
        for statement in statements:
            with pytest.raises(errors.InsufficientPrivilege):
                node.execute(sql.SQL(statement).format(name, sql.Identifier(str(column))))
        node.execute(sql.SQL("GRANT ALL ON {} TO PUBLIC").format(name))  # a warning: it has none
    assert shared_database.query(f"SELECT * FROM spamguard.{table}") == before
    rights = "SELECT has_table_privilege('public', %s::regclass, 'SELECT')"
    assert shared_database.query(rights, f"spamguard.{table}") == [(False,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE spamguard.other (one int)",
        "CREATE VIEW spamguard.other AS SELECT 1",
        "CREATE FUNCTION spamguard.other() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE FUNCTION spamguard.require_key() RETURNS void LANGUAGE sql AS ''",
        "ALTER FUNCTION spamguard.append SECURITY INVOKER",
        "ALTER FUNCTION spamguard.append RESET ALL",
        "DROP FUNCTION spamguard.append",
        "DROP SCHEMA spamguard CASCADE",
        "ALTER SCHEMA spamguard OWNER TO spamguard_node",
        "CREATE SCHEMA other",
        "CREATE ROLE other",
        "ALTER ROLE spamguard_node SUPERUSER",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "COPY (SELECT 1) TO '/tmp/other'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT spamguard.next_change()",
        "SELECT spamguard.require_key()",
        "SELECT lo_create(0)",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
        "ALTER SYSTEM SET fsync = off",
    ],
)
def test_a_node_has_no_right_beside_the_functions(
    shared_database: TestDatabase, statement: str
) -> None:
    with (
        node_connection(shared_database) as node,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        node.execute(statement.encode())


def test_no_function_looks_elsewhere_or_makes_statements(shared_database: TestDatabase) -> None:
    functions = shared_database.query(
        "SELECT proname, prosecdef, proconfig, prosrc FROM pg_proc "
        "WHERE pronamespace = 'spamguard'::regnamespace"
    )
    assert len(functions) == len(FUNCTIONS) + 2
    for name, is_definer, settings, source in functions:
        assert is_definer, name
        assert settings == ["search_path=spamguard, pg_temp"], name
        assert not re.search(r"\bexecute\b", source, re.IGNORECASE), name
    node = "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls "
    assert shared_database.query(f"{node} FROM pg_roles WHERE rolname = 'spamguard_node'") == [
        (False,) * 5
    ]


def test_tables_of_the_nodes_own_deceive_no_function(shared_database: TestDatabase) -> None:
    one = event(1)
    with node_connection(shared_database) as node:
        node.execute("CREATE TEMP TABLE log AS SELECT 40::bigint AS last, ''::bytea AS chain")
        node.execute("CREATE TEMP TABLE events (LIKE spamguard.events)")
        node.execute("SET search_path = pg_temp")
        show_key(node)
        values = [[value] for value in (*one, b"m" * 16)]
        cursor = node.execute(
            "SELECT * FROM spamguard.append(%b::bytea[], %b::bigint[], %b::text[], %b::bytea[], "
            "%b::bigint[], %b::bytea[], %b::bytea[])",
            values,
        )
        assert cursor.fetchall() == [(1, 1)]
        assert node.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    assert shared_database.query("SELECT last FROM spamguard.log") == [(1,)]


@pytest.mark.parametrize(
    "clocks", ["'{}'", "'{1,2}'", "'{{1}}'", "'[0:0]={1}'", "NULL", "'{9223372036854775807,1}'"]
)
def test_lists_of_another_length_are_refused(shared_database: TestDatabase, clocks: str) -> None:
    one = event(1)
    statement = (
        f"SELECT spamguard.append(ARRAY[%b]::bytea[], {clocks}::bigint[], ARRAY['a'], "
        "ARRAY[%b]::bytea[], ARRAY[1]::bigint[], ARRAY[%b]::bytea[], ARRAY[%b]::bytea[])"
    )
    with node_connection(shared_database) as node:
        show_key(node)
        with pytest.raises(errors.InvalidParameterValue):
            node.execute(statement.encode(), (one.subject, one.content, one.body, b"m" * 16))
