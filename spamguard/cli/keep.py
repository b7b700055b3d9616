"""`undo`, `backup`, `restore`, `rebuild`, `export` and `import`: what the filter knows is kept.

`undo` takes back what one user has taught: it finds the messages that the user voted on, takes the
votes back in batches through `learning`, and settles once at the end.
`backup` writes one file while the daemon runs. `restore` checks that file to its end, opens its
ledger and makes all tables from it before it touches the state directory, and keeps what was there.
`rebuild` makes the tables from the receipts; it reads nothing but the ledger, so that damaged
tables cannot hinder it.

`export` writes the filter as one file that another installation takes in: a SQLite database. Its
tables are `about` (what the file is), `classes` and `votes` (the receipts, in the order of the
ledger). Behind the last page of SQLite stands the SHA-256 of all bytes before it: SQLite itself
keeps no checksum. `PRAGMA user_version` is the number of the format. `import` checks the whole file
before it takes in anything; importing twice changes nothing.

Must never touch what others have taught, never show half a file under its name, never restore under
a running daemon, hold a whole export in memory, or let SQLite read one whose checksum is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

from spamguard import keys
from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command, flag
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.log import printable
from spamguard.records import EXTRACTOR, Vote
from spamguard.storage import BATCH_SIZE, KEY_FILE, LEDGER_FILE, batches
from spamguard.times import local_time

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.learning.undo import UndoneVote, VoteSelection

# ---- undo


@command(
    "undo",
    """\
Take back what a user has taught. It is exactly as if it had never been taught: the user's earlier
vote on a message is in force again. Doing it twice changes nothing.

Votes that were replaced more than 30 days ago are not kept; then nothing comes back in their place.
Of several users at once the experts are settled once, which is most of the time it takes.""",
    argument(
        "--user",
        action="append",
        dest="users",
        required=True,
        metavar="NAME",
        help="whose word to take back, as `status` tells it; "
        f"the site's is {arguments.SITE!r}; may be repeated",
    ),
    arguments.SINCE,
    arguments.UNTIL,
    argument(
        "--origin",
        default="",
        metavar="TEXT",
        help="only what was taught there: cli, folder, 'folder Junk'",
    ),
    arguments.DRY_RUN,
    example="""  spamguard undo --user anna --since tuesday --dry-run
  spamguard undo --user anna --since '2026-11-17 08:00'
  spamguard undo --user anna --origin 'folder Junk'
  spamguard undo --user anna --user ben --origin 'folders, before they were watched'""",
)
def run_undo(options: argparse.Namespace) -> int:
    from spamguard.learning.undo import VoteSelection

    if not all(options.users):  # as of a variable that is not set
        raise UsageError(f"--user is empty: the site's word is {arguments.SITE!r}")
    since, until = arguments.parse_period(options)
    selections = [
        VoteSelection(arguments.parse_teacher(user), since, options.origin, until)
        for user in options.users
    ]
    with common.open_filter(options, must_exist=True) as spam_filter:
        users = spam_filter.ledger.users
        digests = [users.voted_digests(chosen.user, chosen.since) for chosen in selections]
        for found, selection in zip(digests, selections, strict=True):
            if not found and not users.voted_digests(selection.user, 0):
                raise UsageError(
                    f"{selection.user or arguments.SITE!r} has taught nothing here: "
                    "`spamguard status` lists who has"
                )
        undone = undo_selections(spam_filter, digests, selections, dry_run=options.dry_run)
        # Settle also if there were votes but none is left: the command that took them back may
        # have been interrupted before it settled.
        if not options.dry_run and (
            any(undone) or (any(digests) and spam_filter.status().unsettled)
        ):
            spam_filter.settle_everywhere()
    for name, votes in zip(options.users, undone, strict=True):
        verb = "would take" if options.dry_run else "took"
        count = common.count_text(len(votes), "vote")
        text = f"{verb} back {count}" if votes else "nothing to take back"
        if restored := sum(vote.new_label is not None for vote in votes):
            text += f"; on {restored:,} of these messages an earlier vote is in force again"
        print((f"{printable(name)}: " if len(undone) > 1 else "") + text)
    return 0


def undo_selections(
    spam_filter: Filter,
    digests: Sequence[list[bytes]],
    selections: Sequence[VoteSelection],
    *,
    dry_run: bool,
) -> list[list[UndoneVote]]:
    """Undo each selection on its messages."""
    from spamguard.learning import undo

    undone: list[list[UndoneVote]] = []
    with common.progress(total=sum(map(len, digests))) as bar:
        for user_digests, selection in zip(digests, selections, strict=True):
            undone.append([])
            for batch in undo.undo_votes(spam_filter, user_digests, selection, dry_run=dry_run):
                bar.update(BATCH_SIZE)
                undone[-1] += batch
    return undone


# ---- backup

_TARGET = argument(
    "file",
    type=arguments.parse_stream,
    metavar="FILE",
    help="where to, or - for standard output; a file of that name is replaced",
)


@command(
    "backup",
    """\
Back up to one file, while the daemon runs. It holds everything that cannot be made again: the key,
the ledger, and where messages were seen.

The file is as secret as the key in it. Tables are made again from the ledger; the history of
verdicts, mail that waits in the quarantine and in spools, tokens and sessions of page and API, and
the configuration are not in it. `restore` puts it back.""",
    _TARGET,
    example="""  spamguard backup /srv/backup/spamguard-$(date +%F)
  spamguard backup - | ssh elsewhere 'umask 077; cat > spamguard-backup'""",
)
def run_backup(options: argparse.Namespace) -> int:
    from spamguard import backup

    with common.open_filter(options, must_exist=True, _load=False) as spam_filter:
        fingerprint = spam_filter.ledger.fingerprint
    name = options.file
    copies = Path(name).parent if common.is_regular_file(name) else Path(tempfile.gettempdir())
    with (
        common.terminate_cleanly(),
        common.open_output(name, lambda file: backup.BackupReader(name, file).verify()) as stream,
        backup.copy_state(common.state_directory(options), copies) as files,
    ):
        total = sum(file.stat().st_size for file in files.values())
        with common.progress(total=total, unit="B") as bar:
            size = backup.write_backup(stream, files, fingerprint, bar.update)
    common.say(
        f"backed up {', '.join(files)} to {name} ({size:,} bytes); "
        "it holds the key: keep it as secret as a password"
    )
    return 0


# ---- restore


@command(
    "restore",
    """\
Put what `backup` wrote into the state directory. The daemon there must have been stopped.

Where systemd listens for the daemon, stop that too: the next mail would start it again.

The file is read to its end, its ledger opened and all tables made from it before anything there is
touched; with --replace what was there is kept beside it in a directory before-restore-TIME.""",
    flag("--replace", "put aside what is in the state directory"),
    argument(
        "file",
        type=arguments.parse_stream,
        metavar="FILE",
        help="a file that `backup` wrote, or - for standard input",
    ),
    example="""  systemctl stop spamguard.socket spamguard
  spamguard restore --replace backup
  systemctl start spamguard.socket spamguard
  spamguard --state /new/place restore backup""",
)
def run_restore(options: argparse.Namespace) -> int:
    from spamguard import backup
    from spamguard.learning import undo

    state = common.state_directory(options)
    _check_overwrite(state, replace=options.replace)
    with common.open_seekable(options.file) as stream:
        reader = backup.BackupReader(options.file, stream)
        header = reader.verify()
        with (
            common.progress(total=sum(header.sizes.values()), unit="B") as bar,
            backup.prove_backup(reader, state, bar.update) as draft,
        ):
            aside = backup.install_backup(
                draft, state, lambda: _check_overwrite(state, replace=options.replace)
            )
    with common.open_filter(options, must_exist=True) as spam_filter:
        lessons = common.count_text(sum(spam_filter.status().classes.values()))
        outdated = undo.count_outdated(spam_filter.ledger)
    there = f"; what was there is in {aside}" if aside else ""
    place = f"{local_time(header.time)} into {state}"
    print(f"restored the backup of {place}: lessons of {lessons}{there}")
    if outdated:
        common.say(f"note: {undo.describe_outdated(outdated)}")
    return 0


def _check_overwrite(state: Path, *, replace: bool) -> None:
    """Raise UsageError if the state directory must not be replaced."""
    from spamguard import backup
    from spamguard.daemon import status

    backup.check_overwrite(state, replace=replace)
    if state.is_dir() and (daemon := status.ask_daemon(state)) is not None:
        raise UsageError(
            f"{state}: a daemon runs on it (process {daemon['pid']}): stop it, then restore"
        )


# ---- rebuild


@command(
    "rebuild",
    """\
Make the tables again from the receipts. It repairs tables that are damaged or missing; nothing is
taught again.

If the ledger has provably lost events, as from a damaged log, it says so.""",
    example="""  spamguard rebuild""",
)
def run_rebuild(options: argparse.Namespace) -> int:
    from spamguard.engine import snapshot

    with common.open_filter(options, must_exist=True, _load=False) as spam_filter:
        spam_filter.settle()
        classes, loss = spam_filter.status().classes, spam_filter.find_loss()
        spam_filter.ledger.forget_lost()
    messages = common.count_text(sum(classes.values()))
    print(f"rebuilt the tables from the receipts of {messages}")
    if loss is not None:
        print(f"{snapshot.describe_loss(loss)}: {snapshot.LOSS_ADVICE}")
    return 0


# ---- export


@command(
    "export",
    """Write the filter to a file for another installation.

Where it is imported, all can be taught, taken back and merged. It needs the same key there;
--with-key puts it into the file, which then is as secret as the key.""",
    flag("--with-key", "put the key into the file too"),
    _TARGET,
    example="""  spamguard export filter.spamguard
  spamguard export --with-key - | ssh gateway spamguard import -""",
)
def run_export(options: argparse.Namespace) -> int:
    from spamguard import __version__
    from spamguard.database import Schema
    from spamguard.ledger.arriving import check_votes

    with (
        common.open_filter(options, must_exist=True) as spam_filter,
        common.open_output(options.file) as stream,
        _export_path(options.file, stream) as path,
    ):
        ledger = spam_filter.ledger
        key = spam_filter.key.hex() if options.with_key else ""
        header = ExportHeader(
            __version__, EXTRACTOR, ledger.fingerprint, key, spam_filter.min_bits, ledger.classes()
        )
        schema = Schema("export", UsageError, _APPLICATION_ID, EXPORT_FORMAT, "")
        with schema.errors(Path(options.file)):
            receipts = write_export(path, header, check_votes(ledger.all_votes()))
        size = path.stat().st_size
    common.say(f"exported {common.count_text(receipts, 'receipt')} ({size:,} bytes)")
    if options.with_key:
        common.say("note: the file holds the key: keep it as secret as a password")
    return 0


@contextmanager
def _export_path(name: str, stream: BinaryIO) -> Iterator[Path]:
    """Yield the path of the file that the stream writes; for a pipe, that of a temporary file."""
    if common.is_regular_file(name):
        yield Path(stream.name)
        return
    with tempfile.NamedTemporaryFile() as file:
        yield Path(file.name)
        shutil.copyfileobj(file, stream)
        stream.flush()


# ---- import


@command(
    "import",
    """Take in an export of another installation.

Receipts are added to those that are here; what was taught here stays, and of two votes of one user
about one message the later one counts. The key here must be the one of the file; a new state
directory takes the file's, if it holds one.

Of other filters nothing is taken in: teach from the folders instead.""",
    arguments.DRY_RUN,
    argument(
        "file",
        type=arguments.parse_stream,
        metavar="FILE",
        help="a file that `export` wrote, or - for standard input",
    ),
    example="""  spamguard import filter.spamguard
  spamguard --state /new/place import filter-with-key.spamguard""",
)
def run_import(options: argparse.Namespace) -> int:
    """Check the whole export, then take it in. Classes that are here stay as they are."""
    from spamguard.engine.fold import unpack_features
    from spamguard.ledger import codec
    from spamguard.ledger.arriving import check_votes
    from spamguard.ledger.votes import is_class_label

    with (
        common.open_seekable(options.file) as stream,
        closing(ExportReader(options.file, Path(stream.name))) as reader,
    ):
        header, labels, receipts = reader.check()
        # Receipts of another extractor are kept for a program that reads them. One of ours that
        # cannot be read would stop every reader for good.
        readable = (
            vote
            for vote in check_votes(reader.read_votes())
            if vote.label is not None and vote.extractor == EXTRACTOR
        )
        try:
            for votes in batches(readable):
                unpack_features([vote.packed for vote in votes])
                for vote in votes:
                    codec.unpack_scores(vote.scores)
        except LedgerError as error:
            raise SourceError(
                f"{options.file}: a receipt in it cannot be read; nothing was imported"
            ) from error
        content = common.count_text(receipts, "receipt")
        if options.dry_run:
            print(f"would import {content}")
            return 0
        _ensure_key(common.state_directory(options), options.file, header)
        with common.open_filter(options, _bits=header.bits) as spam_filter:
            classes = spam_filter.ledger.classes()
            for name in sorted({*filter(is_class_label, labels), *header.classes}):
                spam_filter.check_class(name, new=True)
            for name, unwanted in header.classes.items():
                if name not in classes:
                    spam_filter.define_class(name, unwanted=unwanted)
                elif unwanted != classes[name]:
                    # With the same receipts both filters would go on judging differently.
                    common.say(
                        f"note: {name} is unwanted {'there' if unwanted else 'here'} alone; "
                        f"`learn --unwanted --as {name}` on the other side ends that"
                    )
            new = spam_filter.ledger.merge(reader.read_votes())
            # Settle from the receipts at once: to fold each of them first would take longer. Also
            # if there is nothing new, since an earlier import may have been interrupted.
            if new or spam_filter.status().unsettled:
                spam_filter.settle_everywhere()
    print(f"imported {content}, {new:,} of them new")
    return 0


def _ensure_key(state: Path, name: str, header: ExportHeader) -> None:
    """Require the key of the file; a directory without key and ledger takes it from the file."""
    from spamguard.engine import store

    path = state / KEY_FILE
    if not path.exists() and not (state / LEDGER_FILE).exists():
        if not header.key:
            raise UsageError(
                f"{name}: needs the key {header.fingerprint}, {state} has none: "
                "put its key file there, or export --with-key"
            )
        store.make_state_directory(state)
        keys.store_key(path, bytes.fromhex(header.key))
    fingerprint = keys.key_fingerprint(keys.load_key(path, create=False))
    if fingerprint != header.fingerprint:
        raise UsageError(
            f"{name}: was taught with key {header.fingerprint}, {state} has {fingerprint}: "
            "import it into a new state directory"
        )


# ---- the file

EXPORT_FORMAT = 2
_APPLICATION_ID = 0x7367_6578  # "sgex" in the file's header, bytes 68 to 71
_DIGEST_BYTES = 32
_PIECE_BYTES = 1 << 20  # that are read at a time
_MAX_VALUE_BYTES = 64 << 20  # a longer value is damage, not a reason to take memory

_TABLES = {
    "about": "CREATE TABLE about (program TEXT, extractor INTEGER, fingerprint TEXT, key TEXT,"
    " bits INTEGER)",
    "classes": "CREATE TABLE classes (name TEXT, unwanted INTEGER)",
    "votes": "CREATE TABLE votes (digest BLOB, user TEXT, clock INTEGER, node TEXT, label TEXT,"
    " packed BLOB, scores BLOB, origin TEXT, time INTEGER, extractor INTEGER)",
}
# SQLite lets any column hold a value of any type, so the reader looks for rows that no export has.
_SELECT_FOREIGN_ROW = """
SELECT 1 FROM votes WHERE typeof(digest) != 'blob' OR typeof(user) != 'text'
OR typeof(clock) != 'integer' OR typeof(node) != 'text' OR typeof(label) NOT IN ('text', 'null')
OR typeof(packed) != 'blob' OR typeof(scores) != 'blob' OR typeof(origin) != 'text'
OR typeof(time) != 'integer' OR typeof(extractor) != 'integer' OR extractor NOT BETWEEN 0 AND 255
OR max(length(digest), length(user), length(node), ifnull(length(label), 0), length(origin),
       length(scores)) > 65535
UNION ALL SELECT 1 FROM classes WHERE typeof(name) != 'text' OR unwanted NOT IN (0, 1)
UNION ALL SELECT 1 FROM about WHERE typeof(program) != 'text' OR typeof(extractor) != 'integer'
OR typeof(fingerprint) != 'text' OR typeof(key) != 'text' OR typeof(bits) != 'integer'
LIMIT 1"""


class ExportHeader(NamedTuple):
    """What the file holds.

    fingerprint: of the key. key: the key itself in hexadecimal, or "". bits: the least size of the
    tables. classes: name to unwanted.
    """

    program: str
    extractor: int
    fingerprint: str
    key: str
    bits: int
    classes: dict[str, bool]


def write_export(path: Path, header: ExportHeader, votes: Iterable[Vote]) -> int:
    """Write an export into the empty file at `path`; return the number of votes.

    OSError, sqlite3.Error: the file cannot be written.
    """
    from spamguard.database import open_database

    with closing(open_database(path, 0)) as db:
        db.execute("PRAGMA journal_mode = MEMORY")  # no second file; half a file is thrown away
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {EXPORT_FORMAT}")
        db.execute("BEGIN")
        for statement in _TABLES.values():
            db.execute(statement)
        *about, classes = header
        db.execute("INSERT INTO about VALUES (?, ?, ?, ?, ?)", about)
        db.executemany("INSERT INTO classes VALUES (?, ?)", classes.items())
        number = db.executemany(
            "INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", votes
        ).rowcount
        db.execute("COMMIT")
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").digest()
    with path.open("ab") as file:
        file.write(digest)
    return max(number, 0)


class ExportReader:
    """An export whose checksum is right. Every method raises SourceError for a damaged file.

    name: of the file, for errors. path: of a file that nobody changes meanwhile.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)

    def close(self) -> None:
        self._db.close()

    def check(self) -> tuple[ExportHeader, set[str], int]:
        """Look at the whole file: its header, the labels of all votes, and how many there are."""
        checksum, unread = hashlib.sha256(), self._path.stat().st_size - _DIGEST_BYTES
        with self._path.open("rb") as file:
            while unread > 0 and (data := file.read(min(unread, _PIECE_BYTES))):
                checksum.update(data)
                unread -= len(data)
            if file.read() != checksum.digest():
                self._refuse(
                    "it is damaged, or no file of `spamguard export`, but of `backup`: "
                    "`spamguard restore`"
                )
        with self._map_errors():
            if self._db.execute("PRAGMA user_version").fetchone() != (EXPORT_FORMAT,):
                self._refuse("it is of another version: export it again")
            self._db.execute("PRAGMA trusted_schema = OFF")
            if dict(self._db.execute("SELECT name, sql FROM sqlite_schema")) != _TABLES:
                self._refuse("it is damaged: it holds other tables than an export")
            if self._db.execute(_SELECT_FOREIGN_ROW).fetchone():
                self._refuse("it is damaged: it holds a value of a wrong type or size")
            ((*about,),) = self._db.execute("SELECT * FROM about")
            sides = self._db.execute("SELECT * FROM classes")
            header = ExportHeader._make((*about, {name: bool(side) for name, side in sides}))
            if header.key and keys.key_fingerprint(bytes.fromhex(header.key)) != header.fingerprint:
                self._refuse("its key is not the one it was taught with")
            labels = self._db.execute("SELECT DISTINCT label FROM votes WHERE label IS NOT NULL")
            ((number,),) = self._db.execute("SELECT count(*) FROM votes")
            return header, {label for (label,) in labels}, number

    def read_votes(self) -> Iterator[Vote]:
        with self._map_errors():
            yield from map(Vote._make, self._db.execute("SELECT * FROM votes ORDER BY rowid"))

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._refuse(f"it is damaged ({error})")

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._name}: {why}; nothing was imported")
