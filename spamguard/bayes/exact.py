"""Sums that can be taken back: exact fixed-point numbers, many at a time.

Floating-point sums depend on the order of their terms, so subtracting a term does not undo having added it. Every
float64 is an integer times a power of two; here sums are kept as such integers, hence learning and unlearning in any
order give the same bits. Nothing here may ever round on the way in, or let an integer wrap around.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[Any]
"""An array of int64, or of Python integers (dtype object) where int64 is too small."""

_ROOM = 1 << 62  # int64 holds every integer below this, and the sum of any two of them
_MANTISSA_BITS = 53


def quotient(numerator: int, denominator: int) -> float:
    """The float64 nearest to a fraction; the greatest finite one where the fraction is greater still."""
    try:
        return int(numerator) / int(denominator)
    except OverflowError:
        return float(np.copysign(np.finfo(np.float64).max, 1 if numerator > 0 else -1))


_quotients = np.frompyfunc(quotient, 2, 1)


def quotients(numerators: Integers, denominators: Integers | int) -> NDArray[np.float64]:
    """`quotient` elementwise, with broadcasting."""
    return np.asarray(_quotients(numerators, denominators), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint:
    """Numbers numerators * 2**-bits, bits >= 0, all exact.

    Sums come out in *canonical* form: bits as small as the values allow, int64 wherever it can hold them. So the
    same values have the same representation, however they came about.
    """

    numerators: Integers
    bits: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> FixedPoint:
        """Exactly these finite numbers: integers as they are, anything else by way of float64."""
        if np.can_cast(values.dtype, np.int64):
            return cls(values.astype(np.int64), 0)
        if np.issubdtype(values.dtype, np.integer):
            return cls(values.astype(object), 0)
        return _of_floats(values.astype(np.float64))

    def at(self, bits: int) -> Integers:
        """The numerators of the same values with more fractional bits."""
        shift = bits - self.bits
        return with_room(self.numerators, 1 << shift) << shift

    def __add__(self, other: FixedPoint) -> FixedPoint:
        return self._combined(other, 1)

    def __sub__(self, other: FixedPoint) -> FixedPoint:
        return self._combined(other, -1)

    def _combined(self, other: FixedPoint, sign: int) -> FixedPoint:
        if self.numerators.shape != other.numerators.shape:
            raise ValueError(f"Sums of shape {self.numerators.shape} do not go with sums of shape {other.numerators.shape}.")
        bits = max(self.bits, other.bits)
        return canonical(with_room(self.at(bits), 2) + sign * with_room(other.at(bits), 2), bits)

    def floats(self) -> NDArray[np.float64]:
        """Each value rounded once, to the nearest float64."""
        if self.numerators.dtype == object or self.bits:
            return quotients(self.numerators, 1 << self.bits)
        return self.numerators.astype(np.float64)


def _of_floats(values: NDArray[np.float64]) -> FixedPoint:
    mantissas, exponents = np.frexp(values)
    integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    zeros = np.where(integers == 0, 0, np.bitwise_count((integers & -integers) - 1)).astype(np.int64)  # trailing
    lowest = np.where(integers == 0, 0, exponents.astype(np.int64) - _MANTISSA_BITS + zeros)  # exponent of the last bit set
    bits = max(0, -int(lowest.min(initial=0)))
    if int(exponents.max(initial=0)) + bits < _ROOM.bit_length():
        return FixedPoint(np.ldexp(values, bits).astype(np.int64), bits)
    return FixedPoint((integers >> zeros).astype(object) << (lowest + bits).astype(object), bits)


def canonical(numerators: Integers, bits: int) -> FixedPoint:
    """The one representation of these values."""
    spare = bits
    if bits and (used := int(np.bitwise_or.reduce(numerators, axis=None))):
        spare = min(bits, (used & -used).bit_length() - 1)
    shifted = numerators >> spare
    return FixedPoint(shifted.astype(np.int64) if _largest(shifted) < _ROOM else shifted.astype(object), bits - spare)


def _largest(numerators: Integers) -> int:
    """The greatest magnitude; abs() will not do, for int64 has one negative number too many."""
    return max(int(numerators.max(initial=0)), -int(numerators.min(initial=0)))


def with_room(numerators: Integers, growth: int) -> Integers:
    """The same integers in a type that still holds them when multiplied by growth."""
    if numerators.dtype == object or _largest(numerators) * growth < _ROOM:
        return numerators
    return numerators.astype(object)


def class_sums(matrix: Any, codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the rows of each class, shape (n_classes, n).

    matrix: shape (N, n), dense or any scipy sparse form; codes: the class of each row, in [0, n_classes).
    """
    return _dense_sums(matrix, codes, n_classes) if isinstance(matrix, np.ndarray) else _sparse_sums(matrix.tocoo(), codes, n_classes)


def _dense_sums(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    fixed = FixedPoint.of(matrix)
    rows = with_room(fixed.numerators, len(codes))
    return canonical(np.stack([part.sum(axis=0) for part in _by_class(rows, codes, n_classes)]), fixed.bits)


def _sparse_sums(matrix: Any, codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    fixed = FixedPoint.of(matrix.data)
    values = with_room(fixed.numerators, max(1, len(matrix.data)))
    sums = np.zeros(n_classes * matrix.shape[1], dtype=values.dtype)
    np.add.at(sums, codes[matrix.row] * matrix.shape[1] + matrix.col, values)
    return canonical(sums.reshape(n_classes, -1), fixed.bits)


def class_squares(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the squares in each column over the rows of each class, shape (n_classes, n)."""
    fixed = FixedPoint.of(matrix)
    rows = _room_for_products(fixed.numerators)
    return canonical(np.stack([(part * part).sum(axis=0) for part in _by_class(rows, codes, n_classes)]), 2 * fixed.bits)


def class_products(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the products of each two columns over the rows of each class, shape (n_classes, n, n)."""
    fixed = FixedPoint.of(matrix)
    rows = _room_for_products(fixed.numerators)
    return canonical(np.stack([part.T @ part for part in _by_class(rows, codes, n_classes)]), 2 * fixed.bits)


def _by_class(rows: Integers, codes: NDArray[np.intp], n_classes: int) -> list[Integers]:
    return [rows[codes == code] for code in range(n_classes)]


def _room_for_products(rows: Integers) -> Integers:
    return with_room(rows, _largest(rows) * max(1, len(rows)))
