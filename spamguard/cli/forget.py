"""`forget`: take teaching back, exactly, as if it had never been. Never needs to know what the messages were taught as."""

from __future__ import annotations

import argparse
from itertools import chain

from spamguard.batches import batches
from spamguard.cli import learn, remembered, rim, usage

ABOUT = """Take back what was taught about messages. What was never taught is no error. What others have said stays: `explain` tells who has
said what, --user takes it back."""
EXAMPLE = """  spamguard forget message.eml
  spamguard forget ~/Maildir/.Junk
  spamguard forget --id 0iq5r8jo4c1n2f3g"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "forget", run, ABOUT, EXAMPLE)
    learn.add_user(parser)
    usage.add_json(parser)
    remembered.add_paths_or_ids(parser)


def run(options: argparse.Namespace) -> int:
    """Forget; say how many."""
    from spamguard.prepare import Preparer
    from spamguard.remembered import digest

    remembered.names_messages(options)
    rows = remembered.rows(options, options.ids)
    forgotten = unknown = others = 0
    found = rim.with_progress(rim.messages(options.paths), rim.expected(options.paths))
    with rim.open_existing(options) as spam_filter:
        preparer = Preparer(spam_filter.key)
        known = [digest(spam_filter, row) for row in rows]
        for batch in batches(chain(known, (preparer.digest(message.raw) for message in found))):
            changed = spam_filter.forget_ready(batch, user=options.user, origin="cli")
            forgotten += sum(changed)
            unknown += len(changed) - sum(changed)
            left = [digest for digest, done in zip(batch, changed, strict=True) if not done]
            others += sum(one.label is not None for one in spam_filter.ledger.users.standing(left, options.user).values())
        settled = rim.settle_if_due(spam_filter)
    text = f"forgot {rim.counted(forgotten)}" + (f" ({unknown:,} not known)" if unknown else "")
    if others:
        text += f"; {others:,} of these stay taught by others: `explain` tells by whom, --user takes it back"
    rim.answer(options, text, {"forgotten": forgotten, "unknown": unknown, "by_others": others, "settled": settled})
    return 0
