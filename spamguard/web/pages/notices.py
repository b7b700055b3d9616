"""What a click has done, as the next page tells it."""

from __future__ import annotations

from dataclasses import dataclass

from spamguard.web.pages.texts import counted, named
from spamguard.web.service.values import Receipt, Released


@dataclass(frozen=True, slots=True)
class Notice:
    """words: a sentence. undo: address of the form that takes it back, "" if none does. held: id of a message that was held back and is
    good by what has been said, "" for none."""

    words: str
    receipt: Receipt | None = None
    released: Released | None = None
    undo: str = ""
    held: str = ""


def learnt(receipt: Receipt, undo: str, held: str = "") -> Notice:
    """A message was taught. undo, held: as of a notice; what has changed nothing is not undone."""
    if not receipt.changed:
        return Notice(f"You had said so already: {named(receipt.label)}. Nothing has changed.", receipt, held=held)
    before = f" You had said {named(receipt.was)} before." if receipt.was else ""
    return Notice(f"Learnt as {named(receipt.label)}.{before}", receipt, undo=undo, held=held)


def taken_back(receipt: Receipt) -> Notice:
    """What somebody had said about a message was taken back."""
    if not receipt.changed:
        return Notice("You had said nothing about this message: there is nothing to take back.", receipt)
    return Notice(f"Taken back: you had said {named(receipt.was)}. It is as if that had never been taught.", receipt)


def released(done: Released) -> Notice:
    """A message was handed on after all, or was to be."""
    if not done.recipients:
        return Notice("It had been released before.", released=done)
    who = counted(len(done.recipients), "recipient")
    told = f"Released to {who}." if done.released else "Not everybody has got it: the next server's answers are below. Try again later."
    return Notice(f"{told} Learnt as not spam." if done.taught else told, released=done)
