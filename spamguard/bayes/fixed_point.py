"""Exact sums: fixed-point numbers, many at a time, that can be added and taken away again.

Sums of floating-point numbers depend on the order of their terms, so subtracting a term does not
undo having added it. Every float64 is a whole number times a power of two. Here sums are kept as
such whole numbers: learning and unlearning in any order give the same bits. Nothing in this module
may round on the way in, or let an integer wrap around.

It is written by hand because `fractions` is exact too, but for one number at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[Any]
"""An array of int64, or of Python integers (dtype object) where int64 is too small."""

_INT64_LIMIT = 1 << 62  # int64 holds every integer below this, and the sum of any two of them
_MANTISSA_BITS = 53


def divide(numerator: int, denominator: int) -> float:
    """The float64 nearest to a fraction; the greatest finite one if the fraction is greater."""
    try:
        return int(numerator) / int(denominator)
    except OverflowError:
        return float(np.copysign(np.finfo(np.float64).max, 1 if numerator > 0 else -1))


_divide_elementwise = np.frompyfunc(divide, 2, 1)


def divide_arrays(numerators: Integers, denominators: Integers | int) -> NDArray[np.float64]:
    """`divide` elementwise, with broadcasting."""
    return np.asarray(_divide_elementwise(numerators, denominators), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint:
    """The exact numbers numerators * 2**-bits, bits >= 0.

    Sums come out in *canonical* form: as few bits as the values allow, and int64 wherever it can
    hold them. So equal values have equal representations, however they came about.
    """

    numerators: Integers
    bits: int

    @classmethod
    def from_array(cls, values: NDArray[Any]) -> FixedPoint:
        """Exactly these finite numbers: integers as they are, anything else by way of float64."""
        if np.can_cast(values.dtype, np.int64):
            return cls(values.astype(np.int64), 0)
        if np.issubdtype(values.dtype, np.integer):
            return cls(values.astype(object), 0)
        floats = values.astype(np.float64)
        mantissas, exponents = np.frexp(floats)
        integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        trailing_zeros = np.bitwise_count((integers & -integers) - 1).astype(np.int64)
        trailing_zeros[integers == 0] = 0
        lowest = exponents.astype(np.int64) - _MANTISSA_BITS + trailing_zeros
        lowest[integers == 0] = 0  # the exponent of the last bit set
        bits = max(0, -int(lowest.min(initial=0)))
        if int(exponents.max(initial=0)) + bits < _INT64_LIMIT.bit_length():
            return cls(np.ldexp(floats, bits).astype(np.int64), bits)
        wide = (integers >> trailing_zeros).astype(object)
        return cls(wide << (lowest + bits).astype(object), bits)

    def numerators_at(self, bits: int) -> Integers:
        """The numerators of the same values with more fractional bits."""
        shift = bits - self.bits
        return _ensure_room(self.numerators, 1 << shift) << shift

    def __add__(self, other: FixedPoint) -> FixedPoint:
        return self._add(other, 1)

    def __sub__(self, other: FixedPoint) -> FixedPoint:
        return self._add(other, -1)

    def _add(self, other: FixedPoint, sign: int) -> FixedPoint:
        shape, other_shape = self.numerators.shape, other.numerators.shape
        if shape != other_shape:
            raise ValueError(f"Sums of shape {shape} do not go with sums of shape {other_shape}.")
        bits = max(self.bits, other.bits)
        left, right = (_ensure_room(sums.numerators_at(bits), 2) for sums in (self, other))
        return _canonicalise(left + sign * right, bits)

    def to_floats(self) -> NDArray[np.float64]:
        """Each value rounded once, to the nearest float64."""
        if self.numerators.dtype == object or self.bits:
            return divide_arrays(self.numerators, 1 << self.bits)
        return self.numerators.astype(np.float64)


def class_sums(matrix: Any, codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the rows of each class, shape (n_classes, n).

    Parameters
    ----------
    matrix : (N, n), dense or any scipy sparse form.
    codes : the class of each row, in [0, n_classes).
    """
    if isinstance(matrix, np.ndarray):
        fixed = FixedPoint.from_array(matrix)
        rows = _ensure_room(fixed.numerators, len(codes))
        parts = [part.sum(axis=0) for part in _rows_by_class(rows, codes, n_classes)]
        return _canonicalise(np.stack(parts), fixed.bits)
    matrix = matrix.tocoo()
    fixed = FixedPoint.from_array(matrix.data)
    values = _ensure_room(fixed.numerators, max(1, len(matrix.data)))
    sums = np.zeros(n_classes * matrix.shape[1], dtype=values.dtype)
    np.add.at(sums, codes[matrix.row] * matrix.shape[1] + matrix.col, values)
    return _canonicalise(sums.reshape(n_classes, -1), fixed.bits)


def class_squares(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the squares in each column over the rows of each class, (n_classes, n)."""
    rows, bits = _rows_for_products(matrix)
    parts = [(part * part).sum(axis=0) for part in _rows_by_class(rows, codes, n_classes)]
    return _canonicalise(np.stack(parts), bits)


def class_products(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of x xᵀ over the rows x of each class, (n_classes, n, n)."""
    rows, bits = _rows_for_products(matrix)
    parts = [part.T @ part for part in _rows_by_class(rows, codes, n_classes)]
    return _canonicalise(np.stack(parts), bits)


def _rows_by_class(rows: Integers, codes: NDArray[np.intp], n_classes: int) -> list[Integers]:
    return [rows[codes == code] for code in range(n_classes)]


def _rows_for_products(matrix: NDArray[Any]) -> tuple[Integers, int]:
    """Numerators with room for sums of their products, and the bits of these."""
    fixed = FixedPoint.from_array(matrix)
    growth = _max_magnitude(fixed.numerators) * max(1, len(fixed.numerators))
    return _ensure_room(fixed.numerators, growth), 2 * fixed.bits


def _canonicalise(numerators: Integers, bits: int) -> FixedPoint:
    """The one representation of these values."""
    spare = bits
    if bits and (used := int(np.bitwise_or.reduce(numerators, axis=None))):
        spare = min(bits, (used & -used).bit_length() - 1)
    shifted = numerators >> spare
    kind = np.int64 if _max_magnitude(shifted) < _INT64_LIMIT else object
    return FixedPoint(shifted.astype(kind), bits - spare)


def _max_magnitude(numerators: Integers) -> int:
    """The greatest magnitude; abs() will not do, for int64 has one negative number too many."""
    return max(int(numerators.max(initial=0)), -int(numerators.min(initial=0)))


def _ensure_room(numerators: Integers, growth: int) -> Integers:
    """The same integers in a type that still holds them when multiplied by growth."""
    if numerators.dtype == object or _max_magnitude(numerators) * growth < _INT64_LIMIT:
        return numerators
    return numerators.astype(object)
