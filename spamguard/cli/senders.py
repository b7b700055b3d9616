"""`learn --sender` and `forget --sender`: say that mail of a sender is wanted, or unwanted.

Such a word is evidence in the mail of one user, or of all users where it is the site's. It counts
only where a server named in the configuration (`authserv_ids`) has authenticated the sender, and
one user's word only with `personal: true`. What is kept is a keyed hash of the address: no command
can list the addresses.

Must never teach a message, never take an address for authentic, and never keep a word that will
not count.
"""

from __future__ import annotations

import argparse
import time

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.users import SENDER_NATS, Origin


def add_sender(parser: argparse.ArgumentParser) -> None:
    """Add the option --sender."""
    about = "not a message, but a sender: all mail from this address, where it is authenticated"
    parser.add_argument("--sender", type=_parse_address, metavar="ADDRESS", help=about)


def _parse_address(text: str) -> str:
    from spamguard.mail.authentication import parse_author

    address = parse_author([text.encode("utf-8", "replace")])
    if not address:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as anna@example.org")
    return address


def _check_counts(options: argparse.Namespace) -> None:
    """UsageError: a word about a sender would not count."""
    from spamguard.daemon.status import ask_daemon

    if getattr(options, "config", None):
        settings = common.load_config(options)
        servers, is_personal = settings.believed_servers, settings.personal
    else:
        state = common.state_directory(options)
        daemon = ask_daemon(state) or {}
        if "authserv_ids" not in daemon:
            raise UsageError(
                f"{options.sender}: nothing tells whether this would count, as no daemon answers "
                f"on {state}: start it, or name its directory with --state"
            )
        servers, is_personal = daemon["authserv_ids"], daemon["personal"]
    missing = []
    if not servers:
        missing.append(
            "`authserv_ids: [mx.example.org]`, with the name that your mail server gives itself "
            "in Authentication-Results, and a listener behind it (position after-queue, LMTP, or "
            "`strips_authentication_results: true`)"
        )
    if options.user and not is_personal:
        missing.append("`personal: true`, or else leave out --user to say it for everybody")
    if missing:
        raise UsageError(
            f"{options.sender}: not kept, as this would never count: "
            f"the configuration lacks {', and '.join(missing)}"
        )


def cast_word(options: argparse.Namespace, label: str) -> int:
    """Keep that mail of the sender is ham or spam; "": take that back."""
    from spamguard.learning.lessons import LessonOutcome, LessonService
    from spamguard.ledger.senders import make_sender_vote

    names = ("paths", "ids", "unwanted", "new", "force", "dry_run")
    if any(getattr(options, name, False) for name in names):
        options.wrong_usage("argument --sender: only --as, --user and --json go with it")
    if label not in {*SENDER_NATS, ""}:
        raise UsageError(f"{options.sender}: say --as ham if its mail is wanted, or --as spam")
    if label:
        _check_counts(options)
    opener = common.open_filter if label else common.open_existing
    with opener(options) as spam_filter:
        digest, nats = spam_filter.senders.digest(options.sender), SENDER_NATS.get(label)
        vote = make_sender_vote(digest, options.user, nats, Origin.COMMAND, int(time.time()))
        outcome = LessonService(spam_filter).submit_vote(vote)
    changed = outcome is LessonOutcome.LEARNT
    if label:
        text = f"its mail is {'wanted' if label == 'ham' else 'unwanted'}, where authenticated"
        text += "" if changed else " (already known)"
    else:
        text = "forgot what was said of it" if changed else "nothing was said of it"
    values = {"sender": options.sender, "user": options.user, "class": label, "changed": changed}
    whose = options.user or arguments.SITE
    common.print_answer(options, f"{options.sender}, for {whose}: {text}", values)
    return 0
