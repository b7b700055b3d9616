"""What an examination consists of. Data only."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """Of one step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(NamedTuple):
    """name: what was looked at. detail: what was found. remedy: what to do about it, when it failed."""

    name: str
    outcome: Outcome
    detail: str = ""
    remedy: str = ""


def ok(name: str, detail: str = "") -> Step:
    """It is as it should be."""
    return Step(name, Outcome.OK, detail)


def failed(name: str, detail: str, remedy: str) -> Step:
    """It is not."""
    return Step(name, Outcome.FAILED, detail, remedy)


def skipped(name: str, detail: str) -> Step:
    """It could not be looked at, or is not there to be looked at; which is no failure."""
    return Step(name, Outcome.SKIPPED, detail)
