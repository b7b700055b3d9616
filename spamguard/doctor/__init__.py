"""Shows that teaching by moving mail works here, or at which step it does not.

`checks` looks at what it rests on: the state directory, the kernel, the watcher, mailboxes, other
programs. `proof` then does it: a message of ours goes into a Maildir and is moved to Junk, the
filter must learn it, and everything is taken back. Each reports `Step`s. It must never leave a
message or a lesson behind, and never repair anything. Read `proof` first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class StepOutcome(StrEnum):
    """The outcome of a step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"  # nothing to look at, or no way to look; no failure


class Step(NamedTuple):
    """One thing that was looked at. detail: what was seen. remedy: of a failure."""

    name: str
    outcome: StepOutcome
    detail: str = ""
    remedy: str = ""


def ok(name: str, detail: str = "") -> Step:
    """A step that is as it should be."""
    return Step(name, StepOutcome.OK, detail)


def failed(name: str, detail: str, remedy: str) -> Step:
    """A step that is not as it should be."""
    return Step(name, StepOutcome.FAILED, detail, remedy)


def skipped(name: str, detail: str) -> Step:
    """A step that could not be taken."""
    return Step(name, StepOutcome.SKIPPED, detail)
