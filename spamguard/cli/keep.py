"""`undo`, `backup`, `restore`, `rebuild` and `import`: what the filter knows is kept.

`undo` takes back what a user or a machine has taught: it finds the messages that were voted on,
takes the votes back in batches through `learning`, and settles once at the end.

`backup` writes one file while the daemon runs. `restore` checks that file to its end, opens its
ledger and makes all tables from it before it touches the state directory, and keeps what was there.
`rebuild` makes the tables from the receipts; it reads nothing but the ledger, so that damaged
tables cannot hinder it. `import` takes the receipts of another installation from its backup.

Must never touch what others have taught, never show half a file under its name, or restore under a
running daemon.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command, flag
from spamguard.errors import UsageError
from spamguard.log import printable
from spamguard.storage import BATCH_SIZE
from spamguard.times import local_time

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.learning.undo import UndoneVote

# ---- undo


@command(
    "undo",
    """\
Take back what a user has taught. It is exactly as if it had never been taught: the user's earlier
vote on a message is in force again. Doing it twice changes nothing.

Votes that were replaced more than 30 days ago are not kept; then nothing comes back in their place.
Of several users at once the experts are settled once, which is most of the time it takes. --node
takes back, for all machines that share lessons, what one has taught that somebody broke into.""",
    argument(
        "--user",
        "whose word to take back, as `status` tells it; "
        f"the site's is {arguments.SITE!r}; may be repeated",
        "NAME",
        action="append",
        dest="users",
        default=[],
    ),
    argument("--node", "the name of a machine, or its id (`shared status`)", "NAME"),
    arguments.SINCE,
    arguments.UNTIL,
    argument(
        "--origin", "only what was taught there: cli, folder, 'folder Junk'", "TEXT", default=""
    ),
    arguments.DRY_RUN,
    example="""  spamguard undo --user anna --since tuesday --dry-run
  spamguard undo --user anna --since '2026-11-17 08:00'
  spamguard undo --user anna --origin 'folder Junk'
  spamguard undo --user anna --user ben --origin 'folders, before they were watched'
  spamguard undo --node mx3""",
)
def run_undo(options: Namespace) -> int:
    from spamguard.learning.undo import VoteSelection, undo_votes

    if not all(options.users):  # as of a variable that is not set
        raise UsageError(f"--user is empty: the site's word is {arguments.SITE!r}")
    if bool(options.users) == bool(options.node):
        options.wrong_usage("one of the arguments --user --node is required")
    since, until = options.since, options.until
    with common.open_filter(options, must_exist=True) as spam_filter:
        known, node = spam_filter.ledger.users, ""
        digests: dict[str, list[bytes]] = {}
        for user in map(arguments.parse_teacher, options.users):
            digests[user] = known.voted_digests(user, since)
            if not known.voted_digests(user, 0):
                raise UsageError(
                    f"{user or arguments.SITE!r} has taught nothing here: "
                    "`spamguard status` lists who has"
                )
        if options.node:
            node = _find_node(spam_filter, options.node)
            for user, digest in known.keys_of_node(node, since):
                digests.setdefault(user, []).append(digest)
        undone: dict[str, list[UndoneVote]] = {user: [] for user in digests}
        with common.progress(total=sum(map(len, digests.values()))) as bar:
            for user, of_user in digests.items():
                selection = VoteSelection(user, since, options.origin, until, node)
                for batch in undo_votes(spam_filter, of_user, selection, dry_run=options.dry_run):
                    bar.update(BATCH_SIZE)
                    undone[user] += batch
        # Settle also if there were votes but none is left: the command that took them back may
        # have been interrupted before it settled.
        has_votes = any(digests.values()) and spam_filter.status().unsettled
        if not options.dry_run and (any(undone.values()) or has_votes):
            spam_filter.settle_everywhere()
    verb = "would take" if options.dry_run else "took"
    for user, votes in undone.items():
        count = common.count_text(len(votes), "vote")
        text = f"{verb} back {count}" if votes else "nothing to take back"
        if restored := sum(vote.new_label is not None for vote in votes):
            text += f"; on {restored:,} of these messages an earlier vote is in force again"
        print(f"{printable(user or arguments.SITE)}: {text}")
    return 0


def _find_node(spam_filter: Filter, name: str) -> str:
    """The id of the machine of this name or id, which must have taught something."""
    from spamguard.shared.status import read_status

    nodes = read_status(spam_filter.directory).nodes
    found = {node.node for node in nodes if name in (node.name, node.node)} or {name}
    known = [node for node in found if spam_filter.ledger.users.keys_of_node(node, 0)]
    if len(known) != 1:
        ids = ", ".join(sorted(known)) or "none that has taught anything"
        raise UsageError(
            f"{printable(name)!r} is the name of {ids}: give an id of `shared status --json`"
        )
    return known[0]


# ---- backup


@command(
    "backup",
    """\
Back up to one file, while the daemon runs. It holds everything that cannot be made again: the key,
the ledger, and where messages were seen.

The file is as secret as the key in it. Tables are made again from the ledger; the history of
verdicts, mail that waits in the quarantine and in spools, tokens and sessions of page and API, and
the configuration are not in it. `restore` puts it back.""",
    argument("file", "where to, or - for standard output; a file of that name is replaced", "FILE"),
    example="""  spamguard backup /srv/backup/spamguard-$(date +%F)
  spamguard backup - | ssh elsewhere 'umask 077; cat > spamguard-backup'""",
)
def run_backup(options: Namespace) -> int:
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

_SOURCE = argument("file", "a file that `backup` wrote, or - for standard input", "FILE")


@command(
    "restore",
    """\
Put what `backup` wrote into the state directory. The daemon there must have been stopped.

Where systemd listens for the daemon, stop that too: the next mail would start it again.

The file is read to its end, its ledger opened and all tables made from it before anything there is
touched; with --replace what was there is kept beside it in a directory before-restore-TIME.""",
    flag("--replace", "put aside what is in the state directory"),
    _SOURCE,
    example="""  systemctl stop spamguard.socket spamguard
  spamguard restore --replace backup
  systemctl start spamguard.socket spamguard
  spamguard --state /new/place restore backup""",
)
def run_restore(options: Namespace) -> int:
    from spamguard import backup
    from spamguard.learning import undo

    state = common.state_directory(options)
    backup.check_overwrite(state, replace=options.replace)
    with common.open_seekable(options.file) as stream:
        reader = backup.BackupReader(options.file, stream)
        header = reader.verify()
        with (
            common.stopped_daemon(state),
            common.progress(total=sum(header.sizes.values()), unit="B") as bar,
            backup.prove_backup(reader, state, bar.update) as draft,
        ):
            aside = backup.install_backup(draft, state)
    with common.open_filter(options, must_exist=True) as spam_filter:
        lessons = common.count_text(sum(spam_filter.status().classes.values()))
        outdated = undo.count_outdated(spam_filter.ledger)
    there = f"; what was there is in {aside}" if aside else ""
    place = f"{local_time(header.time)} into {state}"
    print(f"restored the backup of {place}: lessons of {lessons}{there}")
    if outdated:
        common.say(f"note: {undo.describe_outdated(outdated)}")
    return 0


# ---- rebuild


@command(
    "rebuild",
    """\
Make the tables again from the receipts. It repairs tables that are damaged or missing; nothing is
taught again.

If the ledger has provably lost events, as from a damaged log, it says so.""",
    example="""  spamguard rebuild""",
)
def run_rebuild(options: Namespace) -> int:
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


# ---- import


@command(
    "import",
    """\
Take in what another installation with the same key has learnt. FILE is a backup of it.

Receipts are added to those that are here; what was taught here stays, and of two votes of one user
about one message the later one counts. Doing it twice changes nothing.

To have all of the other's in a new directory, `restore` it. Of other filters nothing is taken in:
teach from the folders instead.""",
    _SOURCE,
    example="""  spamguard import backup
  spamguard backup - | ssh second spamguard import -""",
)
def run_import(options: Namespace) -> int:
    """Check the whole backup, then take it in. Classes that are here stay as they are."""
    from spamguard import backup
    from spamguard.engine.filter import Filter

    with (
        common.open_seekable(options.file) as stream,
        common.open_filter(options, must_exist=True) as spam_filter,
    ):
        reader, ours = backup.BackupReader(options.file, stream), spam_filter.ledger
        theirs = reader.verify().fingerprint
        if theirs != ours.fingerprint:
            raise UsageError(
                f"{options.file}: was taught with key {theirs}, this filter with "
                f"{ours.fingerprint}: restore it into a new state directory"
            )
        with (
            backup.prove_backup(reader, spam_filter.directory, lambda _: None) as draft,
            Filter.open(draft, _load=False) as other,
        ):
            known = ours.classes()
            for name, unwanted in other.ledger.classes().items():
                if name not in known:
                    spam_filter.define_class(name, unwanted=unwanted)
                elif unwanted != known[name]:
                    # With the same receipts both filters would go on judging differently.
                    common.say(
                        f"note: {name} is unwanted {'there' if unwanted else 'here'} alone; "
                        f"`learn --unwanted --as {name}` on the other side ends that"
                    )
            new = ours.merge(other.ledger.all_votes())
        # Settle from the receipts at once: to fold each of them first would take longer. Also if
        # there is nothing new, since an earlier import may have been interrupted.
        if new or spam_filter.status().unsettled:
            spam_filter.settle_everywhere()
    print(f"imported {common.count_text(new, 'receipt')}")
    return 0
