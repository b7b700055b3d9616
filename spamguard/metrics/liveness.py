"""Whether the processes of the daemon live, by what they note in their slots; a line for each thing that is wrong. Only reads."""

from __future__ import annotations

from spamguard.metrics.counters import MASTER, SERVER, TEACHER, WATCHER, Board, Slot

SILENT_SECONDS = 10.0  # since a process was last well
_NANOSECONDS = 1_000_000_000
_BESIDE = (
    (SERVER, SILENT_SECONDS, "page and API: nobody serves them"),
    (TEACHER, SILENT_SECONDS, "the teaching door: nobody opens it"),
    (WATCHER, 150.0, "folders: nobody watches them"),  # a long look at many mailboxes lets beats out
)


def unwell(board: Board, now: int) -> list[str]:
    """Processes that are not there or have not been heard. now: nanoseconds of the monotonic clock."""
    return [*cannot_pass(board, now), *absent(board, now)]


def cannot_pass(board: Board, now: int) -> list[str]:
    """Those of them that mail passes through."""
    workers = list(board.workers())
    found = [] if workers else ["workers: none runs"]
    found += _silent("master", board.slot(MASTER), now)
    return [*found, *(line for worker in workers if worker.heard for line in _silent("worker", worker, now))]


def absent(board: Board, now: int) -> list[str]:
    """Those beside the mail that are to be there, as they have an owner, and are not."""
    silent = [(board.slot(number), most, told) for number, most, told in _BESIDE]
    return [f"{told} for {_silence(slot, now):.0f} s" for slot, most, told in silent if slot.pid and _silence(slot, now) > most]


def _silent(name: str, slot: Slot, now: int) -> list[str]:
    seconds = _silence(slot, now)
    return [f"{name} {slot.pid}: not heard for {seconds:.0f} s"] if seconds > SILENT_SECONDS else []


def _silence(slot: Slot, now: int) -> float:
    """Seconds since it was heard."""
    return (now - slot.heard) / _NANOSECONDS


def cannot_judge(board: Board) -> list[str]:
    """Whether any worker has a process that judges."""
    return [] if any(worker.scoring for worker in board.workers()) else ["scorers: none is ready"]
