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
from arrowstate_formats.compiled import kernel

__all__ = ["fold_decimals"]

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
    """Add or multiply the values of each group to its old value.

    Parameters
    ----------
    reduce
        `sum`, whose results must fit the type at the end of the batch, or `product`, which must fit it after each
        value, with no digits behind those that the type has.
    values, order, starts, old, where
        As in `reduce_column`; values and old of one decimal type.
    valid
        Which values are not null; empty if all are.

    Returns
    -------
    pa.Array
        One entry a group, null where a group has neither an old nor a new value.

    Raises
    ------
    ValueOverflowError
        If a result does not fit.
    """
    kind = old.type
    filled = np.array(old.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    if reduce == "sum":
        words, fits = _sums(values, valid, order, starts, old, filled)
    else:
        words, bound = _words(old).copy(), _limbs_of(10**kind.precision, kind.byte_width // 4)
        steps = np.array([10**9] * (kind.scale // 9) + [10 ** (kind.scale % 9)], dtype=np.uint64)
        fits = _multiply(_words(values), valid, order, starts, words, filled, steps, bound)
    validity = pa.py_buffer(np.packbits(filled, bitorder="little"))
    results = pa.Array.from_buffers(kind, len(old), [validity, pa.py_buffer(words)])
    try:
        # The full validation compares each decimal with the precision of its type.
        results.validate(full=True)
    except pa.ArrowInvalid:
        fits = False
    if not fits:
        raise ValueOverflowError(where, reduce, str(kind))
    return results


def _sums(
    values: pa.Array,
    valid: npt.NDArray[np.bool_],
    order: Ints,
    starts: Ints,
    old: pa.Array,
    filled: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.uint32], bool]:
    """Return the words of the sums, and whether these have as many bits; 2^31 values can be added."""
    totals = np.where(filled[:, None], _limbs(old), 0)
    _add_limbs(_limbs(values), valid, order, starts, totals, filled)
    for limb in range(totals.shape[1] - 1):
        totals[:, limb + 1] += totals[:, limb] >> 32
        totals[:, limb] &= 0xFFFFFFFF
    top = totals[:, -1]
    return np.ascontiguousarray(totals.astype(np.uint32)), bool((top == top.astype(np.int32)).all())


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


@kernel
def _add_limbs(limbs: Any, valid: Any, order: Any, starts: Any, totals: Any, filled: Any) -> None:
    for group in range(starts.size - 1):
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if valid.size == 0 or valid[row]:
                totals[group] += limbs[row]
                filled[group] = True


@kernel
def _negate(limbs: Any) -> None:
    carry = np.uint64(1)
    for limb in range(limbs.size):
        total = (limbs[limb] ^ np.uint64(0xFFFFFFFF)) + carry
        limbs[limb] = total & np.uint64(0xFFFFFFFF)
        carry = total >> np.uint64(32)


@kernel
def _load(words: Any, limbs: Any) -> Any:
    # The magnitude; returns whether the decimal is negative.
    for limb in range(limbs.size):
        limbs[limb] = words[limb]
    negative = words[limbs.size - 1] >> np.uint32(31) != 0
    if negative:
        _negate(limbs)
    return negative


@kernel
def _multiply(
    words: Any, valid: Any, order: Any, starts: Any, results: Any, filled: Any, steps: Any, bound: Any
) -> Any:
    # results and filled hold the old values on entry and the new ones on return.
    # steps multiply to the power of ten between the product of two integers and the integer of the product.
    # Returns whether every product is below bound, with no digits lost.
    count = words.shape[1]
    low, bits = np.uint64(0xFFFFFFFF), np.uint64(32)
    left, right = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    wide = np.zeros(2 * count, np.uint64)
    for group in range(starts.size - 1):
        have = filled[group]
        negative = have and _load(results[group], left)
        for place in range(starts[group], starts[group + 1]):
            row = order[place]
            if not (valid.size == 0 or valid[row]):
                continue
            if not have:
                have = True
                negative = _load(words[row], left)
                continue
            negative ^= _load(words[row], right)
            wide[:] = np.uint64(0)
            for i in range(count):
                carry = np.uint64(0)
                for j in range(count):
                    total = wide[i + j] + left[i] * right[j] + carry
                    wide[i + j] = total & low
                    carry = total >> bits
                wide[i + count] = carry
            for step in steps:
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
            left[:] = wide[:count]
        if have:
            if negative:
                _negate(left)
            for limb in range(count):
                results[group, limb] = left[limb]
        filled[group] = have
    return True
