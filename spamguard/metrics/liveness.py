"""Whether the processes of the daemon live, by what they note in their slots; a line for each thing that is wrong. Only reads."""

from __future__ import annotations

from spamguard.metrics.counters import MASTER, SERVER, Board, Slot

SILENT_SECONDS = 10.0  # since a process was last well
_NANOSECONDS = 1_000_000_000


def unwell(board: Board, now: int) -> list[str]:
    """Processes that are not there or have not been heard. now: nanoseconds of the monotonic clock."""
    workers = list(board.workers())
    found = [] if workers else ["workers: none runs"]
    found += _silent("master", board.slot(MASTER), now)
    found += serves_nothing(board, now)
    return [*found, *(line for worker in workers if worker.heard for line in _silent("worker", worker, now))]


def serves_nothing(board: Board, now: int) -> list[str]:
    """Whether page and API are to be there and are not."""
    slot = board.slot(SERVER)
    seconds = (now - slot.heard) / _NANOSECONDS
    return [f"page and API: nobody serves them for {seconds:.0f} s"] if slot.pid and seconds > SILENT_SECONDS else []


def _silent(name: str, slot: Slot, now: int) -> list[str]:
    seconds = (now - slot.heard) / _NANOSECONDS
    return [f"{name} {slot.pid}: not heard for {seconds:.0f} s"] if seconds > SILENT_SECONDS else []


def cannot_judge(board: Board) -> list[str]:
    """Whether any worker has a process that judges."""
    return [] if any(worker.scoring for worker in board.workers()) else ["scorers: none is ready"]
