"""The inner loops in C, where they could be compiled: line ends, header fields, markup, hashing
tokens, receipts, numbers in tables.

Optional: Python and numpy do the same, bit for bit, only slower, and a state directory may go from
one to the other at any time. No formula may stand there, and nothing may be learnt or judged
differently because of it. Whoever would loop asks for `functions()`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Buffer = bytes | NDArray[Any]

_ABI_VERSION = 11  # of the functions below; that of module.c
_ENVIRONMENT_VARIABLE = "SPAMGUARD_KERNEL"


class NativeFunctions(Protocol):
    """The compiled functions. Buffers are contiguous arrays, or bytes, of the items named;
    ValueError, IndexError and TypeError say that they do not fit together, which is a mistake of
    the caller.
    """

    def tokens(
        self,
        texts: tuple[bytes, ...],
        seeds: Buffer,
        kinds: Buffer,
        multipliers: Buffer,
        classes: Buffer,
        skipped: int,
        /,
    ) -> bytes:
        """The distinct tokens of one message, sorted, uint32, as `mail.tokens` defines them; the
        first text is the body's.

        seeds: uint64 of each text, and of grams; kinds: a byte of each text, 1 where no pairs are
        made, plus 2 where grams are; multipliers: eight uint64; classes: 256 bytes, 1 where a byte
        belongs to tokens; skipped: of how many tokens behind the first text's there are pairs with
        a gap.
        """

    def places(
        self,
        texts: tuple[bytes, ...],
        seeds: Buffer,
        kinds: Buffer,
        multipliers: Buffer,
        classes: Buffer,
        buckets: Buffer,
        skipped: int,
        shift: int,
        /,
    ) -> list[tuple[int, int, int, bytes, bytes]]:
        """One token for each of these buckets (uint32), which are tokens >> shift; the rest as in
        `tokens`.

        Of each: the token; how it was made, 0 alone, 1 of neighbours, 2 with one token between, 3
        of characters: of several in one bucket the first in this order, then that of the text; the
        number of its text; what it was made of; the same of the other token of a pair. IndexError:
        a bucket has none.
        """

    def undisguised(
        self, text: bytes, kinds: Buffer, meant: Buffer, longest: int, most: int, /
    ) -> tuple[bytes, bool]:
        """A text with the first words in disguise in letters, and whether it may have letters set
        apart, as `mail.scripts` defines both.

        kinds: 256 bytes, what each byte is; meant: 256 bytes, what each stands for; longest: bytes
        that such a word may not have; most: of how many signs the words are looked at.
        """

    def fields(
        self, text: bytes, most_bytes: int, most_fields: int, /
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        """The header fields at the start of a text, names in lower case, so many at most; where the
        first line stands that is part of none, so far into the text at most. As `mail.split`
        defines them.
        """

    def markup(
        self, page: str, breaks: frozenset[str], /
    ) -> tuple[str, dict[str, None], dict[str, None], int, bool]:
        """A page in lower case without its tags, a blank where one of `breaks` stood; names and
        attributes of the tags, each once, in order; how many images there are; whether one stands
        within a link. As `mail.html` defines them.

        UnicodeEncodeError: half of a surrogate pair is in it.
        """

    def kinds(self, text: bytes, /) -> tuple[int, int, int]:
        """How many bytes of a text are capitals, digits and beyond ASCII."""

    def letters(self, text: str, ranges: Buffer, /) -> str:
        """A text with a blank in place of each run of signs and characters that nobody sees, or
        nothing where no sign is among them.

        ranges: these characters in order, none of them ASCII, three numbers (uint32) for each
        range: the first, the last, and 1 for signs, 2 for what nobody sees. UnicodeEncodeError:
        half of a surrogate pair is in it.
        """

    def line_ends(self, text: bytes, /) -> tuple[int, int]:
        """Which odd bytes are in a text, and where the first line end with a dot behind it is, as
        `wire.data` defines both.
        """

    def receipts(
        self,
        counts: Buffer,
        out: Buffer,
        lows: tuple[bytes, ...],
        middles: tuple[bytes, ...],
        bitmaps: tuple[bytes, ...],
        most_few: int,
        /,
    ) -> bool:
        """Fill `out` (uint32) with the tokens of receipts of so many (int64) each, from the planes
        of `ledger.codec`.

        False: a receipt is damaged. most_few: up to so many tokens the low part has 24 bits.
        """

    def planes(self, tokens: Buffer, most_few: int, /) -> bytes:
        """The planes of one receipt with these tokens (uint32), one behind the other; most_few as
        in `receipts`.

        ValueError: the tokens are not sorted and unique.
        """

    def place(self, tokens: Buffer, offsets: Buffer | None, bits: int, /) -> bytes:
        """Where tokens (uint32, sorted in each message) lie in tables of 2**bits buckets: starts,
        sizes, buckets, one intp array.

        Starts and sizes are of the four token sets of each message; offsets (int64) cut the tokens
        into messages, None: there is one.
        """

    def gather(self, rows: Buffer, buckets: Buffer, out: Buffer, width: int, /) -> None:
        """Fill `out`, int32 (k, n), with the first k columns of these rows (intp) of a table of
        int32, so wide.
        """

    def sums(self, cells: Buffer, sizes: Buffer, /) -> list[int]:
        """Sums over runs of so many (intp) cells (int32), which stand side by side."""

    def run_sums(
        self,
        width: int,
        cells: Buffer,
        firsts: Buffer,
        buckets: Buffer,
        sizes: Buffer,
        sums: Buffer,
        most: int,
        /,
    ) -> None:
        """Sums (int64) over runs of buckets (all intp) in one column of a table, each cell (int32)
        first brought inside -most..most.

        firsts: the column of each run, or one for all.
        """

    def add_runs(
        self,
        width: int,
        cells: Buffer,
        firsts: Buffer,
        buckets: Buffer,
        sizes: Buffer,
        moves: Buffer,
        /,
    ) -> None:
        """Add to the cells of each run a number (int32) of its own; the rest as in `run_sums`."""

    def add_shares(
        self,
        width: int,
        cells: Buffer,
        firsts: Buffer,
        buckets: Buffer,
        sizes: Buffer,
        moves: Buffer,
        others: Buffer,
        wide: int,
        shares: Buffer,
        fades: Buffer,
        /,
    ) -> None:
        """The same, but each cell gets a share of the number, less a part of itself, both in 2^-16,
        rounded together.

        The share is shares[n] (int32), the last of them for every larger n: n is the smaller one of
        two counts, none below zero, in the cell before it, and in the first column of the same row
        of `others` (int32), a table so wide. The part is that of its run in `fades` (int32). Runs
        whose number is zero stay as they are.
        """


def _load() -> NativeFunctions | None:
    if (
        os.environ.get(_ENVIRONMENT_VARIABLE) == "numpy"
    ):  # for tests, which must all pass without the kernel
        return None
    try:
        found = import_module("spamguard.native.compiled")
    except ImportError:  # no compiler when this was installed, or built for another machine
        return None
    return cast("NativeFunctions", found) if getattr(found, "VERSION", 0) == _ABI_VERSION else None


_functions = _load()


def functions() -> NativeFunctions | None:
    """The compiled functions, or None: numpy has to do."""
    return _functions


def implementation() -> str:
    """Which of the two works here, in words."""
    return "numpy" if _functions is None else "compiled"
