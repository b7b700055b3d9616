"""`shared`: several machines learn as one, through a log of lessons in PostgreSQL.

`init` and `upgrade` make the schema and the nodes' role, with the rights of the database's owner.
`join` lets the filter of this machine take part, `leave` ends that, and `status` tells what the
courier of the running daemon says. What the commands do is in `shared.admin`; here it becomes lines
for people, and JSON.

Must never print a password, and never change the state of a daemon that runs.
"""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from spamguard import keys
from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command, flag, group
from spamguard.errors import UsageError
from spamguard.log import printable
from spamguard.storage import KEY_FILE
from spamguard.times import duration_text, local_time

if TYPE_CHECKING:
    from spamguard.config.shared import SharedSettings
    from spamguard.engine.filter import Filter
    from spamguard.ledger.events import Server
    from spamguard.ledger.shared import SharedLog
    from spamguard.shared.mac import RowMac


_PASSWORD_FILE = "database-password"  # noqa: S105  the name of a file


_DSN = argument(
    "dsn", "connection string of PostgreSQL: 'host=db.example dbname=spamguard …'", "DSN"
)


_PASSWORD = argument(
    "--password-file",
    "password of the nodes' role, which `init` makes if there is none (default: "
    f"{_PASSWORD_FILE} in the state directory)",
    "FILE",
    type=arguments.parse_path,
)


def _load_admin() -> ModuleType:
    try:
        return import_module("spamguard.shared.admin")
    except ModuleNotFoundError as error:
        raise UsageError("needs psycopg: pip install 'spamguard[shared]'") from error


group(
    "shared",
    """\
Let several machines learn as one. They share a log of lessons in PostgreSQL, and each judges with
its own copy: no mail waits for the database.

DSN is a connection string of PostgreSQL, such as 'host=db.example dbname=spamguard'; several hosts
may stand in it. Without an sslmode in it, the connection needs TLS and a valid certificate. `init`
and `upgrade` connect as the owner of the database, who may create roles; the password comes from
~/.pgpass. All others connect as the role spamguard_node. It can read, and with the key of the
machines add lessons, but change and delete none.

All machines have the same key: copy the file `key` of the first one's state directory by a safe way
(scp). `init` on the first machine, then `join` on each while its daemon is stopped; what a filter
has learnt before is shared too.""",
    example="""\
  spamguard shared init 'host=db.example dbname=spamguard user=spamguard_owner'
  spamguard shared join 'host=db.example dbname=spamguard'
  spamguard shared join 'host=db.example dbname=spamguard' --key key --password-file password
  spamguard shared status
  spamguard shared forget mx3
  spamguard shared leave""",
)

# ---- the owner of the database


@command(
    "shared init",
    "make tables, functions and the role of the nodes in an empty database",
    _DSN,
    _PASSWORD,
)
def init(options: Namespace) -> int:
    admin = _load_admin()
    from spamguard.shared.mac import RowMac

    with common.open_filter(options) as spam_filter:
        key = keys.load_key(spam_filter.directory / KEY_FILE, create=False)
        bits, mac = spam_filter.min_bits, RowMac(key)
    file = _password_file(options)
    may_make_objects = admin.init(options.dsn, mac, bits, file)
    print(f"the database is ready for nodes with key {mac.fingerprint}")
    print(f"password of {admin.NODE_ROLE}: in {file}; every node needs a copy, and the key")
    if may_make_objects:
        common.say(
            f"note: {admin.NODE_ROLE} can make large objects: in this database, let a superuser "
            "run `REVOKE EXECUTE ON FUNCTION lo_creat(int), lo_create(oid), "
            "lo_from_bytea(oid, bytea) FROM PUBLIC`"
        )
    return 0


def _password_file(options: Namespace) -> Path:
    file: Path | None = options.password_file
    return (file or common.state_directory(options) / _PASSWORD_FILE).absolute()


# ---- this machine


@command(
    "shared join",
    "let this machine's filter, a new one or one with lessons, take part",
    _DSN,
    argument(
        "--key",
        "the key of the other machines (default: the one in the state directory)",
        "FILE",
        type=arguments.parse_path,
    ),
    _PASSWORD,
)
def join(options: Namespace) -> int:
    """Check key and database, then make the ledger a copy of the shared log."""
    import asyncio

    from spamguard.config.schema import dump_settings
    from spamguard.engine.snapshot import SNAPSHOT_KEY
    from spamguard.engine.store import disown_tables
    from spamguard.shared.mac import RowMac

    admin = _load_admin()
    state, file = common.state_directory(options), _password_file(options)
    key = _find_key(state, options.key)
    settings = admin.node_settings(options.dsn, file, user=admin.NODE_ROLE)
    if not file.exists():
        raise UsageError(
            f"{file}: there is no such file: copy the one that `shared init` made, or name it with "
            "--password-file"
        )
    bits, server = asyncio.run(_read_cluster(settings, RowMac(key)))
    with common.stopped_daemon(state):
        keys.store_key(state / KEY_FILE, key)
        with common.open_filter(options, _bits=bits) as spam_filter:
            if spam_filter.min_bits != bits:
                raise UsageError(
                    f"{state}: its tables begin with 2**{spam_filter.min_bits} buckets, those of "
                    f"the others with 2**{bits}: join with a new state directory"
                )
            has_joined = spam_filter.ledger.shared is not None
            if not has_joined:
                line = spam_filter.ledger.get_meta(SNAPSHOT_KEY)
                spam_filter.ledger.join()
                disown_tables(spam_filter.ledger, line)
            log = _shared_log(spam_filter)
            log.note_server(server)
            counts = log.counts()
    text = "had joined already; it takes this server for the primary" if has_joined else "joined"
    if counts.waiting:
        waiting = common.count_text(counts.waiting, "lesson")
        text += f"; {waiting} of this machine will go to the others"
    common.say(f"{state}: {text}")
    common.say("put these lines into spamguard.yaml, then start the daemon:")
    print(dump_settings(settings, "shared"), end="")
    return 0


def _find_key(state: Path, file: Path | None) -> bytes:
    """The key of the other machines. UsageError: there is none, or the filter here has another."""
    own = state / KEY_FILE
    source = file or own
    if not source.exists():
        raise UsageError(f"{source}: no key there: name that of the other machines with --key FILE")
    key = keys.load_key(source, create=False)
    if own.exists() and keys.load_key(own, create=False) != key:
        raise UsageError(
            f"{state}: its filter has another key than {file}: move it away, join with a new one, "
            "and teach that from the folders (`spamguard teach-folders`)"
        )
    return key


async def _read_cluster(settings: SharedSettings, mac: RowMac) -> tuple[int, Server]:
    """The least size of all tables, and the server.

    SharedError: the database is not there, or not for this key.
    """
    from spamguard.shared.postgres import SharedDatabase

    with closing(await SharedDatabase.connect(settings, "join", mac)) as database:
        return (await database.cluster()).bits, database.server


# ---- status


@command(
    "shared status",
    "how this machine and the others are, as the running daemon has it",
    arguments.JSON,
)
def status(options: Namespace) -> int:
    """Print what the ledger knows, and what the courier last said."""
    from spamguard.shared.status import describe_status

    now = time.time()
    with common.open_filter(options, must_exist=True, _load=False) as spam_filter:
        counts = _shared_log(spam_filter).counts()
        values = describe_status(spam_filter.directory, counts, now)
    oldest = f", the oldest since {local_time(counts.oldest)}" if counts.waiting else ""
    lines = [
        f"position   {counts.position:,} of {max(values['last'], counts.position):,}",
        f"waiting    {counts.waiting:,}{oldest}",
        *values["notes"],
        "",
        f"{'node':20}  {'position':>12}  {'waiting':>8}  last seen",
    ]
    for node in values["nodes"]:
        mark = " (this one)" if node["node"] == values["node"] else ""
        lines.append(
            f"{printable(node['name']):20}  {node['position']:12,}  {node['waiting']:8,}  "
            f"{duration_text(now - node['seen'])} ago, "
            f"spamguard {printable(node['program'])}{mark}"
        )
    common.print_answer(options, "\n".join(lines), values)
    return 0


@command(
    "shared forget",
    "drop a node that does not come back from the list that `status` shows",
    argument("node", "its name, or its id", "NODE"),
)
def forget(options: Namespace) -> int:
    from spamguard.shared import client
    from spamguard.shared.status import ABSENT_SECONDS, read_status

    state, now = common.existing_state_directory(options), time.time()
    nodes = read_status(state).nodes
    found = [node for node in nodes if options.node in (node.name, node.node)]
    if len(found) != 1:
        known = ", ".join(f"{printable(node.name)} ({node.node})" for node in nodes)
        raise UsageError(
            f"{len(found)} nodes are called {options.node!r}: name one of {known}, or its id"
        )
    (node,), name = found, printable(found[0].name)
    if now - node.seen < ABSENT_SECONDS:
        raise UsageError(f"{name} was seen {duration_text(now - node.seen)} ago: stop it first")
    client.forget(state, node.node)
    print(f"{name} is forgotten, until it comes back")
    return 0


# ---- leaving


@command(
    "shared leave",
    "go on alone, with everything that was learnt",
    flag("--force", "also while lessons wait for the database"),
)
def leave(options: Namespace) -> int:
    from spamguard.engine.snapshot import SNAPSHOT_KEY
    from spamguard.engine.store import parse_if_whole

    state = common.existing_state_directory(options)
    with common.stopped_daemon(state):
        with common.open_filter(options, must_exist=True, _load=False) as spam_filter:
            log = _shared_log(spam_filter)
            counts = log.counts()
            if counts.waiting and not options.force:
                raise UsageError(
                    f"{common.count_text(counts.waiting, 'lesson')} wait for the database: let the "
                    "daemon run until they are there, or use --force"
                )
            if parse_if_whole(spam_filter.ledger.get_meta(SNAPSHOT_KEY)).is_disowned:
                spam_filter.ledger.drop_meta([SNAPSHOT_KEY])
            log.leave(force=options.force)
        with common.open_filter(options, must_exist=True, _load=False) as spam_filter:
            spam_filter.settle()
    print("left: this filter learns alone from now on; take `shared` out of spamguard.yaml")
    if counts.waiting:
        print(
            f"{common.count_text(counts.waiting, 'lesson')} that the others do not have: "
            "`spamguard backup` here and `spamguard import` there take them over"
        )
    return 0


def _shared_log(spam_filter: Filter) -> SharedLog:
    if spam_filter.ledger.shared is None:
        raise UsageError(
            f"{spam_filter.directory}: this filter learns alone: `spamguard shared join` ends that"
        )
    return spam_filter.ledger.shared


# ---- a new version


@command(
    "shared upgrade",
    "bring tables and functions of the database up to this version",
    _DSN,
)
def upgrade(options: Namespace) -> int:
    admin = _load_admin()

    before, after = admin.upgrade(options.dsn)
    print(f"the database has schema {after}, before {before}")
    return 0
