"""`learn --sender` and `forget --sender`: say that mail of a sender is wanted, or unwanted.

Such a word is evidence in the mail of one user, or of all users where it is the site's. It counts
only where a server named in the configuration (`authserv_ids`) has authenticated the sender, so
these commands need to know nothing of servers. What is kept is a keyed hash of the address: no
command can list the addresses.

Must never teach a message, and never take an address for authentic.
"""

from __future__ import annotations

import argparse
import time

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.users import SENDER_STRENGTHS

_USUAL = "usual"


def add_sender(parser: argparse.ArgumentParser, *, strength: bool) -> None:
    """Add the option --sender, and --strength if the command gives a word."""
    about = "not a message, but a sender: all mail from this address, where it is authenticated"
    parser.add_argument("--sender", type=_parse_address, metavar="ADDRESS", help=about)
    if strength:
        steps = ", ".join(f"{name} ({nats} nats)" for name, nats in SENDER_STRENGTHS.items())
        about = f"how much that counts: {steps}; default: {_USUAL}"
        parser.add_argument("--strength", choices=tuple(SENDER_STRENGTHS), help=about)


def _parse_address(text: str) -> str:
    from spamguard.mail.authentication import parse_author

    address = parse_author([text.encode("utf-8", "replace")])
    if not address:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as anna@example.org")
    return address


def learn_sender(options: argparse.Namespace) -> int:
    """Keep what a user says of a sender."""
    _check_options(options)
    if options.label not in ("ham", "spam"):
        raise UsageError(f"{options.sender}: say --as ham if its mail is wanted, or --as spam")
    nats = SENDER_STRENGTHS[options.strength or _USUAL]
    return _cast(options, nats if options.label == "spam" else -nats)


def forget_sender(options: argparse.Namespace) -> int:
    """Take back what a user has said of a sender."""
    _check_options(options)
    return _cast(options, None)


def _check_options(options: argparse.Namespace) -> None:
    names = ("paths", "ids", "unwanted", "new", "force", "dry_run")
    if any(getattr(options, name, False) for name in names):
        options.wrong_usage(
            "argument --sender: only --as, --strength, --user and --json go with it"
        )


def _cast(options: argparse.Namespace, nats: int | None) -> int:
    from spamguard.learning.lessons import LessonOutcome, LessonService
    from spamguard.ledger.senders import make_sender_vote

    opener = common.open_existing if nats is None else common.open_to_teach
    with opener(options) as spam_filter:
        digest = spam_filter.senders.digest(options.sender)
        vote = make_sender_vote(digest, options.user, nats, "cli", int(time.time()))
        outcome = LessonService(spam_filter).submit_vote(vote)
    changed = outcome is LessonOutcome.LEARNT
    if nats is None:
        text = "forgot what was said of it" if changed else "nothing was said of it"
    else:
        text = f"its mail is {'wanted' if nats < 0 else 'unwanted'}, by {abs(nats)} nats"
        text += "" if changed else " (already known)"
    values = {"sender": options.sender, "user": options.user, "nats": nats, "changed": changed}
    whose = options.user or arguments.SITE
    common.print_answer(options, f"{options.sender}, for {whose}: {text}", values)
    return 0
