"""The inner loops in C: hashing tokens, header fields, markup, disguises, rows of tables.

The extension is optional. Each function has a reference in Python or numpy where it is called, and
both give the same bits (`tests/unit/native`), so a state directory may go from one to the other at
any time. A function is here only if it is worth some 5 % of judging or settling (RESULTS, "The
inner loops in C"). Where `functions` is None, callers take the reference. No formula may stand in
C, and nothing may be learnt or judged differently because of it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Buffer = bytes | NDArray[Any]

_ABI_VERSION = 12  # of the functions below, as in module.c
_ENVIRONMENT_VARIABLE = "SPAMGUARD_KERNEL"


class NativeFunctions(Protocol):
    """The compiled functions.

    A buffer is a contiguous array of the items named, or their bytes. ValueError, IndexError and
    TypeError mean that arguments do not fit together, which is the caller's mistake.
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
        """The distinct tokens of one message, sorted, uint32, as `mail.extract` defines them.

        Parameters
        ----------
        texts : the text of the body first.
        seeds : uint64 for each text, and one for grams.
        kinds : a byte for each text: 1 for a text without pairs, plus 2 for a text with grams.
        multipliers : eight uint64.
        classes : 256 bytes, 1 for each byte that belongs to tokens.
        skipped : number of tokens of the first text that have pairs with a gap.
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
        """One token for each bucket, with its origin; other parameters as in `tokens`.

        Parameters
        ----------
        buckets : uint32; the bucket of a token is token >> shift.

        Returns
        -------
        The token; how it was made (0 alone, 1 from neighbours, 2 with one token between, 3 from
        characters); the number of its text; the words it was made from, the second empty unless it
        is a pair. Of several tokens in a bucket the first in the order of these values.

        Raises
        ------
        IndexError
            A bucket has no token.
        """

    def undisguised(
        self, text: bytes, kinds: Buffer, meant: Buffer, longest: int, most: int, /
    ) -> tuple[bytes, bool]:
        """The text with disguised words in letters; whether it may have letters set apart.

        `mail.text` defines both.

        Parameters
        ----------
        kinds : 256 bytes, the kind of each byte.
        meant : 256 bytes, the letter that each byte stands for.
        longest : words of more bytes are no disguise.
        most : number of signs whose words are looked at.
        """

    def fields(
        self, text: bytes, most_bytes: int, most_fields: int, /
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        """The header fields at the start of a text, and the offset behind the last of them.

        Names are in lower case. At most `most_fields` fields and `most_bytes` bytes are read.
        `mail.headers` defines what a field is.
        """

    def markup(
        self, page: str, breaks: frozenset[str], /
    ) -> tuple[str, dict[str, None], dict[str, None], int, bool]:
        """A page in lower case taken apart, as `mail.html` defines it.

        Returns
        -------
        The text without tags, with a blank for each tag of `breaks`; the names of tags and their
        attributes, each once and in order; the number of images; whether an image is in a link.

        Raises
        ------
        UnicodeEncodeError
            The page holds half of a surrogate pair.
        """

    def letters(self, text: str, ranges: Buffer, /) -> str:
        """The text with a blank for each run of signs, and without invisible characters.

        Parameters
        ----------
        ranges : non-ASCII characters in order, three uint32 for each range: the first, the last,
            and 1 for signs or 2 for invisible characters.

        Raises
        ------
        UnicodeEncodeError
            The text holds half of a surrogate pair.
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
        """Fill `out` (uint32) with the tokens of receipts, from the planes of `ledger.codec`.

        Returns False if a receipt is damaged.

        Parameters
        ----------
        counts : int64, the number of tokens of each receipt.
        most_few : a receipt with at most so many tokens has 24 bits in its low planes.
        """

    def place(self, tokens: Buffer, offsets: Buffer | None, bits: int, /) -> bytes:
        """Starts, sizes and buckets of tokens in tables of 2**bits buckets, one intp array.

        Parameters
        ----------
        tokens : uint32, sorted in each message.
        offsets : int64, cut the tokens into messages; None: there is one message.

        Returns
        -------
        Starts and sizes of the four token sets of each message, then all buckets.
        """

    def gather(self, rows: Buffer, buckets: Buffer, out: Buffer, width: int, /) -> None:
        """Fill `out`, int32 (k, n), with the first k columns of these rows (intp) of an int32 table
        of this width.
        """

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
        """Sum runs of buckets (all intp) in one column of a table into `sums` (int64).

        Each cell (int32) is first limited to -most..most, in place.

        Parameters
        ----------
        firsts : the column of each run, or one column for all.
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
        """Add to each cell a share of its run's number, less a part of the cell; the rest as in
        `add_runs`.

        Share and part are in 2**-16 and rounded together. Runs whose number is zero stay as they
        are.

        Parameters
        ----------
        others : int32 table of width `wide`.
        shares : int32; the share is shares[n], or the last one for a larger n. n is the smaller of
            two counts: the cell before this one, and the first column of the same row of `others`.
        fades : int32, the part of each run.
        """


def _load() -> NativeFunctions | None:
    if os.environ.get(_ENVIRONMENT_VARIABLE) == "numpy":  # all tests pass without the extension
        return None
    try:
        compiled = import_module("spamguard.native.compiled")
    except ImportError:  # a pure wheel, no compiler, or built for another machine
        return None
    return (
        cast("NativeFunctions", compiled)
        if getattr(compiled, "VERSION", 0) == _ABI_VERSION
        else None
    )


functions = _load()
"""The compiled functions, or None if the references in Python and numpy are in force."""


def implementation() -> str:
    """Which implementation is in force: "compiled" or "numpy"."""
    return "numpy" if functions is None else "compiled"
