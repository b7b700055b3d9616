"""`corpus`: public collections of labelled mail, to try a filter on. Needs the network; no other command does."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from spamguard.cli import rim, usage
from spamguard.errors import UsageError

ABOUT = """Fetch public corpora of labelled mail, to measure on. `list` names them, `fetch` makes a directory with a TREC-style index.

Some must be fetched by hand, after agreeing to their terms: give the archive with --archive. Nothing is kept of an archive whose
SHA-256 is not the one that is known or told. Never let such mail out into the world."""
EXAMPLE = """  spamguard corpus list
  spamguard corpus fetch spamassassin /srv/corpora/spamassassin && spamguard evaluate /srv/corpora/spamassassin/index
  spamguard corpus fetch trec07p /srv/corpora/trec07p --archive trec07p.tgz"""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "corpus", run, ABOUT, EXAMPLE)
    actions = usage.add_actions(parser)
    usage.add_action(actions, "list", _list, "corpora that can be had, with their terms")
    fetching = usage.add_action(actions, "fetch", _fetch, "make a directory of one")
    fetching.add_argument("name", metavar="NAME", help="as `list` has it")
    fetching.add_argument("directory", nargs="?", type=usage.directory, metavar="DIR", help="to be made (default: NAME, here)")
    fetching.add_argument(
        "--archive", action="append", default=[], type=usage.file, metavar="FILE", help="fetched already; may be repeated"
    )
    fetching.add_argument(
        "--sha256", action="append", default=[], metavar="HEX", help="that every archive must have one of; may be repeated"
    )


def run(options: argparse.Namespace) -> int:
    """List them, or fetch one."""
    return int(options.work(options))


def _list(options: argparse.Namespace) -> int:
    from spamguard.corpus.recipes import RECIPES

    width = max(map(len, RECIPES))
    text = "\n".join(f"{one.name:{width}}  {one.about}\n{'':{width}}  {one.licence}" for one in RECIPES.values())
    values = [{"name": one.name, "about": one.about, "licence": one.licence, "by_hand": not one.archives} for one in RECIPES.values()]
    rim.answer(options, text, values)
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from spamguard.corpus import making
    from spamguard.corpus.recipes import RECIPES

    if options.name not in RECIPES:
        raise UsageError(f"no corpus {options.name!r}: choose one of {', '.join(RECIPES)}")
    recipe, target = RECIPES[options.name], options.directory or Path(options.name)
    pinned = {one.lower() for one in options.sha256}
    if not all(map(_SHA256.fullmatch, pinned)):
        raise UsageError("--sha256 takes 64 hexadecimal digits")
    with rim.progress(None, "B") as advance:
        made = making.make(recipe, target, options.archive, pinned, advance)
    if not made.known:
        rim.say("note: no checksum of these archives is known, so what came was taken as it is; --sha256 pins it the next time")
    held = ", ".join(f"{rim.counted(number)} of {label}" for label, number in sorted(made.messages.items()))
    digests = "".join(f"\n{digest}  {source}" for source, digest in made.digests.items())
    values = {"directory": str(target), "messages": made.messages, "sha256": made.digests, "checked": made.known}
    rim.answer(options, f"{target / 'index'}: {held}; {recipe.licence}{digests}", values)
    return 0
