"""Sums and products of decimals over the groups of a batch, exact or refused.

A decimal is an integer of 32 to 256 bits and the number of its digits behind the point. The integers are taken
apart into limbs of 32 bits, for which the 64 bits of a register leave room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import ValueOverflowError
from arrowstate_formats.compiled import kernel, subroutine

Ints = npt.NDArray[np.int64]


def fold_decimals(
    reduce: str,
    values: pa.Array,
    valid: npt.NDArray[np.bool_],
    order: Ints,
    starts: Ints,
    old: pa.Array,
    where: str,
) -> pa.Array:
    """Add or multiply the values of each group to its old value."""
    kind = old.type
    filled = np.array(old.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    results: pa.Array | None = None
    if reduce == "sum":
        sums, between = _sums(values, valid, order, starts, old, filled)
        if _decimals(between, kind, np.ones(len(between), dtype=np.bool_)) is not None:
            results = _decimals(sums, kind, filled)
    else:
        words, bound = _words(old).copy(), _limbs_of(10**kind.precision, kind.byte_width // 4)
        steps = np.array([10**9] * (kind.scale // 9) + [10 ** (kind.scale % 9)], dtype=np.uint64)
        left, right, wide = (np.empty(number * bound.size, dtype=np.uint64) for number in (1, 1, 2))
        factors = np.ascontiguousarray(_words(values)).ravel()
        if _multiply(factors, valid, order, starts, words.ravel(), filled, steps, bound, left, right, wide):
            results = _of_words(words, kind, filled)
    if results is None:
        raise ValueOverflowError(where, reduce, str(kind))
    return results


def _sums(
    values: pa.Array,
    valid: npt.NDArray[np.bool_],
    order: Ints,
    starts: Ints,
    old: pa.Array,
    filled: npt.NDArray[np.bool_],
) -> tuple[Ints, Ints]:
    """Return the limbs of the sums, and of the sums on the way to them that may be greater; 2^31 values can be added.

    Of values with one sign no sum on the way is greater than the last.
    """
    before = np.where(filled[:, None], _limbs(old), 0)
    added, counted = _limbs(values), np.ones(len(values), dtype=np.bool_)
    if valid.size:
        added, counted = np.where(valid[:, None], added, 0), valid
    added = added[order[: starts[-1]]]
    negative = added[:, -1] < 0
    signs = [by_group(np.logical_or, of_sign, starts, False) for of_sign in (negative, ~negative)]
    is_mixed = (signs[0] | (before[:, -1] < 0)) & (signs[1] | (filled & (before[:, -1] >= 0)))
    filled |= by_group(np.logical_or, counted[order], starts, False)
    group = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    mixed = np.flatnonzero(is_mixed[group])
    between, group = np.cumsum(added[mixed], axis=0), group[mixed]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    # What the groups before have added up to.
    so_far = np.where(first[:, None] > 0, between[first - 1], 0)
    between += before[group] - np.repeat(so_far, np.diff(first, append=group.size), axis=0)
    return before + by_group(np.add, added, starts, 0), between


def _decimals(limbs: Ints, kind: pa.DataType, filled: npt.NDArray[np.bool_]) -> pa.Array | None:
    """Return the decimals with these limbs, into each of which many were added; None if one has too many digits."""
    for limb in range(limbs.shape[1] - 1):
        limbs[:, limb + 1] += limbs[:, limb] >> 32
        limbs[:, limb] &= 0xFFFFFFFF
    top = limbs[:, -1]
    fits = (top == top.astype(np.int32)).all()
    return _of_words(np.ascontiguousarray(limbs.astype(np.uint32)), kind, filled) if fits else None


def _of_words(words: npt.NDArray[np.uint32], kind: pa.DataType, filled: npt.NDArray[np.bool_]) -> pa.Array | None:
    """Return the decimals with these bits, null where one is not filled; None if one has too many digits."""
    validity = pa.py_buffer(np.packbits(filled, bitorder="little"))
    decimals = pa.Array.from_buffers(kind, len(words), [validity, pa.py_buffer(words)])
    try:
        # The full validation compares each decimal with the precision of its type.
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return decimals


def by_group(combine: np.ufunc, values: npt.NDArray[Any], starts: Ints, nothing: Any) -> npt.NDArray[Any]:
    """Combine values[starts[g]:starts[g + 1]] for each group g; `nothing` for a group without values."""
    out = np.full((starts.size - 1, *values.shape[1:]), nothing, dtype=values.dtype)
    some = np.flatnonzero(np.diff(starts))
    if some.size:
        out[some] = combine.reduceat(values[: starts[-1]], starts[some])
    return out


def _words(decimals: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the bits of each decimal in little-endian words; those of a null are arbitrary."""
    count = decimals.type.byte_width // 4
    words = np.frombuffer(decimals.buffers()[1], dtype=np.uint32, count=(decimals.offset + len(decimals)) * count)
    return words.reshape(-1, count)[decimals.offset :]


def _limbs(decimals: pa.Array) -> Ints:
    """Return the little-endian 32-bit limbs of each decimal, the last one signed; those of a null are arbitrary."""
    limbs = _words(decimals).view(np.int32).astype(np.int64)
    limbs[:, :-1] &= 0xFFFFFFFF
    return limbs


def _limbs_of(number: int, count: int) -> npt.NDArray[np.uint64]:
    return np.array([number >> 32 * limb & 0xFFFFFFFF for limb in range(count)], dtype=np.uint64)


@subroutine
def _negate(limbs: Any) -> None:
    carry = np.uint64(1)
    for limb in range(limbs.size):
        total = (limbs[limb] ^ np.uint64(0xFFFFFFFF)) + carry
        limbs[limb] = total & np.uint64(0xFFFFFFFF)
        carry = total >> np.uint64(32)


@subroutine
def _load(words: Any, row: Any, limbs: Any) -> Any:
    # The magnitude; returns whether the decimal is negative.
    first = row * limbs.size
    for limb in range(limbs.size):
        limbs[limb] = words[first + limb]
    negative = words[first + limbs.size - 1] >> np.uint32(31) != 0
    if negative:
        _negate(limbs)
    return negative


@kernel(
    "uint32[], boolean[], int64[], int64[], out uint32[], out boolean[], uint64[], uint64[], out uint64[], "
    "out uint64[], out uint64[]"
)
def _multiply(
    words: Any,
    valid: Any,
    order: Any,
    starts: Any,
    results: Any,
    filled: Any,
    steps: Any,
    bound: Any,
    left: Any,
    right: Any,
    wide: Any,
) -> Any:
    # results and filled hold the old values on entry and the new ones on return; bound has a limb for each of a value.
    # steps multiply to the power of ten between the product of two integers and the integer of the product.
    # Returns whether every product is below bound, with no digits lost.
    count = bound.size
    low, bits = np.uint64(0xFFFFFFFF), np.uint64(32)
    for group in range(starts.size - 1):
        have = filled[group]
        negative = have and _load(results, group, left)
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if not (valid.size == 0 or valid[row]):
                continue
            if not have:
                have = True
                negative = _load(words, row, left)
                continue
            negative ^= _load(words, row, right)
            for limb in range(2 * count):
                wide[limb] = np.uint64(0)
            for i in range(count):
                carry = np.uint64(0)
                for j in range(count):
                    total = wide[i + j] + left[i] * right[j] + carry
                    wide[i + j] = total & low
                    carry = total >> bits
                wide[i + count] = carry
            for number in range(steps.size):
                step = steps[number]
                rest = np.uint64(0)
                for limb in range(2 * count - 1, -1, -1):
                    total = rest << bits | wide[limb]
                    wide[limb] = total // step
                    rest = total % step
                if rest != 0:
                    return False
            difference = 0
            for limb in range(2 * count):
                most = bound[limb] if limb < count else np.uint64(0)
                if wide[limb] != most:
                    difference = 1 if wide[limb] > most else -1
            if difference >= 0:
                return False
            for limb in range(count):
                left[limb] = wide[limb]
        if have:
            if negative:
                _negate(left)
            for limb in range(count):
                results[group * count + limb] = np.uint32(left[limb])
        filled[group] = have
    return True
