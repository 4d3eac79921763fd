"""The id that Flink gives an operator by its uid: savepoints before version 5 of the metadata hold nothing else."""

from __future__ import annotations

from collections.abc import Container

_MASK = (1 << 64) - 1
_FIRST, _SECOND = 0x87C37B91114253D5, 0x4CF5AD432745937F


def operator_id(uid: str) -> str:
    """Return the id of an operator, 32 hexadecimal digits: Murmur's hash of 128 bits of its uid.

    Examples
    --------
    >>> operator_id("core-long")
    'a01d33dbe8fd0631e9b9336719098a98'
    """
    data = uid.encode()
    one = other = 0
    whole = len(data) & ~15
    for place in range(0, whole, 16):
        first = int.from_bytes(data[place : place + 8], "little")
        second = int.from_bytes(data[place + 8 : place + 16], "little")
        one = (_rotated(one ^ _of_first(first), 27) + other) & _MASK
        one = (one * 5 + 0x52DCE729) & _MASK
        other = (_rotated(other ^ _of_second(second), 31) + one) & _MASK
        other = (other * 5 + 0x38495AB5) & _MASK
    rest = data[whole:]
    other ^= _of_second(int.from_bytes(rest[8:], "little"))
    one ^= _of_first(int.from_bytes(rest[:8], "little"))
    one, other = one ^ len(data), other ^ len(data)
    one = (one + other) & _MASK
    other = (other + one) & _MASK
    one, other = _finished(one), _finished(other)
    one = (one + other) & _MASK
    other = (other + one) & _MASK
    return one.to_bytes(8, "little").hex() + other.to_bytes(8, "little").hex()


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def _of_first(word: int) -> int:
    return _rotated(word * _FIRST & _MASK, 31) * _SECOND & _MASK


def _of_second(word: int) -> int:
    return _rotated(word * _SECOND & _MASK, 33) * _FIRST & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def resolved(name: str, states: Container[str]) -> str | None:
    """Return what `operator.state` is called in a savepoint, None if it has no such state.

    A savepoint may know operators by their ids alone, and a state of PyFlink has a longer name than its job gave it.
    """
    for place, letter in enumerate(name):
        if letter == ".":
            operator, state = name[:place], name[place + 1 :]
            for label in (operator, operator_id(operator)):
                for each in (f"{label}.{state}", f"{label}.python-state-{state}"):
                    if each in states:
                        return each
    return None
