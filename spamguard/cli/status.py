"""`status`: what the filter knows and from whom, how full its tables are, how large its files, and how the daemon is that runs on it.

Never changes anything."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spamguard.cli import rim, running, usage
from spamguard.times import moment

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.records import Status

ABOUT = """Show what the filter knows, and how the daemon is. It tells messages of each class, who taught them, table load, sizes, versions.

Of the daemon on this state directory: whether it is ready (its workers, scorers and next hops), and its messages since it began.

Of each user: when somebody's move of a message into a folder was last learnt, the lessons in force, and how many more were refused,
as beyond lessons_per_day. Warnings tell what should teach and does not.

A new word that falls on a bucket in use (a collision) is taken for the word that has it: the load tells how often that happens. With many
lessons the tables become twice as large, when the experts are settled."""
_KERNELS = {
    "compiled": "compiled",
    "numpy": "numpy (no C compiler was there at the installation: the same verdicts, slower)",
}
_ONE_WRONG_IN = 1000  # the bound that is shown; which one is in force where is the configuration's business
_REMEDY = "teach what people have filed (teach-folders), or let reading and answering teach (ham_evidence)"
EXAMPLE = """  spamguard status
  spamguard status --json | jq .classes.spam.messages"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "status", run, ABOUT, EXAMPLE)
    usage.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look and print."""
    with rim.open_existing(options) as spam_filter:
        values = _values(spam_filter, options.profile)
    rim.answer(options, "" if options.json else _text(values), values)
    return 0


def _values(spam_filter: Filter, profile: str) -> dict[str, Any]:
    from spamguard.cli import people

    found = spam_filter.status()
    return {
        **_program(spam_filter, found),
        **_profiles(profile),
        **_lessons(spam_filter, found),
        "buckets": found.buckets,
        "tables": _tables(found),
        "imports": _imports(spam_filter),
        **people.values(spam_filter),
        "daemon": running.values(spam_filter.directory),
        "bytes": {"ledger": found.ledger_bytes, "tables": found.tables_bytes},
    }


def _program(spam_filter: Filter, found: Status) -> dict[str, Any]:
    from spamguard import __version__, kernel
    from spamguard.ledger.migration import SCHEMA_VERSION

    return {
        "state": str(spam_filter.directory),
        "versions": {"program": __version__, "extractor": found.extractor, "ledger": SCHEMA_VERSION},
        "kernel": kernel.in_force(),
        "key": found.fingerprint,
    }


def _profiles(chosen: str) -> dict[str, Any]:
    from spamguard.bayes.profiles import PROFILES

    return {"profile": chosen, "profiles": {one.name: one.about for one in PROFILES.values()}}


def _lessons(spam_filter: Filter, found: Status) -> dict[str, Any]:
    """What was taught, and what of it is of no use, or missing."""
    from spamguard.policy import missing
    from spamguard.renewal import left_behind

    return {
        "classes": {name: {"messages": number, "unwanted": name in found.unwanted} for name, number in found.classes.items()},
        "lost": asdict(lost) if (lost := spam_filter.loss()) else None,
        "outdated": left_behind(spam_filter.ledger),
        "missing": missing(found.classes, found.unwanted),
        "events": found.events,
        "unsettled": found.unsettled,
        "threshold": _bound(spam_filter),
        "receipts": not spam_filter.adopted,
    }


def _bound(spam_filter: Filter) -> dict[str, Any]:
    """From which probability on mail is spam, and what is known of good mail."""
    from spamguard import policy

    good, bound = spam_filter.good_mail(), spam_filter.threshold(_ONE_WRONG_IN)
    return {
        "fixed": policy.SPAM_FROM,
        "one_wrong_in": _ONE_WRONG_IN,
        "confirmed": good.confirmed,
        "probability": bound.spam_from if bound.in_force else None,
    }


def _imports(spam_filter: Filter) -> list[dict[str, Any]]:
    """The word lists of other filters in force."""
    lists = spam_filter.ledger.word_lists()
    return [{"name": one.name, "source": one.about.source, "words": one.about.used, "time": one.time} for one in lists]


def _tables(found: Status) -> dict[str, dict[str, float]]:
    """By token set: buckets in use, and their share of all. The hash is as good as random: so many new tokens fall on one of them."""
    return {name: {"used": found.vocabulary[name], "load": load} for name, load in found.used.items()}


def _text(values: dict[str, Any]) -> str:
    from spamguard import renewal
    from spamguard.cli import people
    from spamguard.model import loss

    versions, sizes = values["versions"], values["bytes"]
    return "\n".join(
        (
            f"state      {values['state']}" + ("" if values["receipts"] else " (tables without receipts: can only judge)"),
            f"version    spamguard {versions['program']}, extractor {versions['extractor']}, ledger {versions['ledger']}",
            f"kernel     {_KERNELS[values['kernel']]}",
            f"key        {values['key']}",
            f"profile    {values['profile']} (of {', '.join(values['profiles'])})",
            f"events     {values['events']:,}, {values['unsettled']:,} since the experts were settled",
            f"threshold  {_threshold(values['threshold'])}",
            f"watcher    {people.watcher(values)}",
            *running.lines(values["daemon"]),
            f"size       ledger {_size(sizes['ledger'])}, tables {_size(sizes['tables'])}",
            "",
            *_class_lines(values["classes"]),
            *([f"{loss.describe(loss.Loss(**values['lost']))}: {loss.REMEDY}"] if values["lost"] else []),
            *([f"{renewal.told(values['outdated'])}; {renewal.REMEDY}"] if values["outdated"] else []),
            *([f"{values['missing']}: {_REMEDY}"] if values["missing"] else []),
            "",
            *_table_lines(values["tables"]),
            *_import_lines(values["imports"]),
            *people.lines(values),
        )
    )


def _threshold(values: dict[str, Any]) -> str:
    from spamguard.policy import FEWEST_CONFIRMED

    fixed, rate, confirmed = f"spam from {values['fixed']}", f"1 good message in {values['one_wrong_in']:,}", f"{values['confirmed']:,}"
    if values["probability"] is None:
        return f"{fixed}; to be wrong about at most {rate} needs {FEWEST_CONFIRMED:,} confirmed good messages, there are {confirmed}"
    return f"{fixed}; from {values['probability']:.4f} to be wrong about at most {rate}, by {confirmed} confirmed"


def _class_lines(classes: dict[str, dict[str, Any]]) -> list[str]:
    width = max(len("class"), *map(len, classes))
    head = f"{'class':{width}}  messages"
    return [
        head,
        *(f"{name:{width}}  {one['messages']:8,}  {'unwanted' if one['unwanted'] else 'wanted'}" for name, one in classes.items()),
    ]


def _table_lines(tables: dict[str, dict[str, float]]) -> list[str]:
    head = "tokens     buckets used     load: so many new ones collide"
    return [head, *(f"{name:9}  {one['used']:12,}  {one['load']:7.2%}" for name, one in tables.items())]


def _import_lines(imports: list[dict[str, Any]]) -> list[str]:
    if not imports:
        return []
    lines = [f"{one['name']}  {one['words']:,} words from {rim.printable(one['source'])}, {moment(one['time'])[:10]}" for one in imports]
    return ["", "word lists imported", *lines]


def _size(number: int) -> str:
    return f"{number / 1_000_000:,.1f} MB"
