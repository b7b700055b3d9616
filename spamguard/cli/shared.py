"""`shared`: several machines learn as one, through a log of lessons in PostgreSQL.

`init` and `upgrade` make the schema and the nodes' role, with the rights of the database's owner.
`join` lets the filter of this machine take part, `leave` ends that, and `status` tells what the
courier of the running daemon says. What the commands do is in `shared.admin`; here it becomes lines
for people, and JSON.

Must never print a password, and never change the state of a daemon that runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from spamguard.cli import arguments, common
from spamguard.errors import UsageError

SHARED_ABOUT = """\
Let several machines learn as one. They share a log of lessons in PostgreSQL, and each judges with
its own copy: no mail waits for the database.

DSN is a connection string of PostgreSQL, such as 'host=db.example dbname=spamguard'; several hosts
may stand in it. Without an sslmode in it, the connection needs TLS and a valid certificate. `init`
and `upgrade` connect as the owner of the database, who may create roles; the password comes from
~/.pgpass. All others connect as the role spamguard_node, which can add lessons and read, but change
and delete nothing.

All machines have the same key: copy the file `key` of the first one's state directory by a safe way
(scp). `init` on the first machine, then `join` on each while its daemon is stopped; what a filter
has learnt before is shared too."""
SHARED_EXAMPLE = """\
  spamguard shared init 'host=db.example dbname=spamguard user=spamguard_owner'
  spamguard shared upgrade 'host=db.example dbname=spamguard user=spamguard_owner'"""

_PASSWORD_FILE = "database-password"  # noqa: S105  the name of a file
_DSN_HELP = "connection string of PostgreSQL: 'host=db.example dbname=spamguard …'"


def add_shared(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "shared", run_shared, SHARED_ABOUT, SHARED_EXAMPLE)
    actions = arguments.add_actions(parser)
    about = "make tables, functions and the role of the nodes in an empty database"
    making = arguments.add_action(actions, "init", _init, about)
    _add_dsn(making)
    about = "password of the nodes' role; made when absent"
    _add_password_file(making, about)
    about = "bring tables and functions of the database up to this version"
    _add_dsn(arguments.add_action(actions, "upgrade", _upgrade, about))


def _add_dsn(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dsn", metavar="DSN", help=_DSN_HELP)


def _add_password_file(parser: argparse.ArgumentParser, about: str) -> None:
    about = f"{about} (default: {_PASSWORD_FILE} in the state directory)"
    parser.add_argument("--password-file", type=arguments.parse_file, metavar="FILE", help=about)


def run_shared(options: argparse.Namespace) -> int:
    """Perform the action. UsageError: the driver of the database is missing."""
    try:
        return int(options.work(options))
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise UsageError("needs psycopg: pip install 'spamguard[shared]'") from error


# ---- the owner of the database


def _init(options: argparse.Namespace) -> int:
    """Make everything in the database."""
    from spamguard.shared import admin

    with common.open_filter(options) as spam_filter:
        fingerprint, bits = spam_filter.ledger.fingerprint, spam_filter.min_bits
    file = _password_file(options)
    done = admin.init(options.dsn, fingerprint, bits, file)
    text = f"the database is ready for nodes with key {fingerprint}"
    if not done.is_new:
        text = f"the database was ready already, for nodes with key {fingerprint}"
    text += f"\npassword of {admin.NODE_ROLE}: in {file}; every node needs a copy, and the key"
    if done.password_replaced:
        common.say(
            f"note: {admin.NODE_ROLE} was there already and has got a new password: nodes that "
            f"know another one need a copy of {file}"
        )
    values = {"new": done.is_new, "key": fingerprint, "bits": bits, "password_file": str(file)}
    common.print_answer(options, text, values)
    return 0


def _upgrade(options: argparse.Namespace) -> int:
    """Bring the database up to date."""
    from spamguard.shared import admin

    before, after = admin.upgrade(options.dsn)
    text = f"the database has schema {after}" + (f", before {before}" if before != after else "")
    common.print_answer(options, text, {"before": before, "after": after})
    return 0


def _password_file(options: argparse.Namespace) -> Path:
    file: Path | None = options.password_file
    return (file or common.state_directory(options) / _PASSWORD_FILE).absolute()
