"""Deletion vectors: byte for byte those of the reference implementation, and safe to read whatever they are."""

import array

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from arrowstate_formats import CorruptDataError, InvalidInputError, integers
from arrowstate_formats.deletion_vectors import clear_dead_rows, write_deletion_vector

ROWS = [0, 1, 63, 64, 65, 4097, 65_535, 65_536, 65_537, 200_003, 400_000]
FIRST_ROWS = [0, 1, 8, 63, 65_535, 65_536, 100_003, 2**32 - 400_000]


def packed(live: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(live, bitorder="little")


def reference(dead: npt.NDArray[np.int64], *, optimize: bool = True) -> bytes:
    return BitMap(array.array("I", dead.astype(np.uint32).tobytes()), optimize=optimize).serialize()


def dead_of(shape: str, rows: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows are dead: each for itself, in blocks of 500, or in a few long ranges."""
    random = np.random.default_rng(seed)
    if shape == "single":
        return random.random(rows) < share
    if shape == "blocks":
        return np.repeat(random.random(rows // 500 + 1) < share, 500)[:rows]
    dead = np.zeros(rows, dtype=np.bool_)
    for start, stop in np.sort(random.integers(0, rows + 1, (4, 2)), axis=1):
        dead[start:stop] = True
    return dead


vectors = st.tuples(
    st.sampled_from(["single", "blocks", "ranges"]),
    st.sampled_from(ROWS),
    st.sampled_from([0.0, 0.001, 0.0625, 0.07, 0.5, 1.0]),
    st.integers(0, 1000),
)


@given(vectors, st.sampled_from(FIRST_ROWS))
def test_the_bytes_are_those_of_the_reference_implementation(vector, first_row):
    dead = dead_of(*vector)

    data = write_deletion_vector(packed(~dead), dead.size, first_row)

    assert data == reference(np.flatnonzero(dead) + first_row)


@given(vectors, st.sampled_from(FIRST_ROWS), st.integers(-70_000, 70_000), st.sampled_from(ROWS), st.booleans())
def test_the_rows_of_any_range_are_cleared_and_counted(vector, first_row, shift, rows, optimize):
    numbers = np.flatnonzero(dead_of(*vector)) + first_row
    start = max(0, first_row + shift)
    inside = numbers[(numbers >= start) & (numbers < start + rows)] - start
    expected = np.ones(rows, dtype=np.bool_)
    expected[inside] = False
    live = packed(np.ones(rows, dtype=np.bool_))

    cleared = clear_dead_rows(reference(numbers, optimize=optimize), live, rows, start)

    assert cleared == inside.size
    assert live.tobytes() == packed(expected).tobytes()


def test_a_row_that_is_dead_already_is_not_counted_again():
    live = packed(np.array([True, False, True, False, True, True]))

    cleared = clear_dead_rows(reference(np.array([0, 1, 4])), live, 6, 0)

    assert (cleared, live[0]) == (2, 0b100100)


@pytest.mark.parametrize("shape", ["single", "blocks", "ranges"])
def test_damaged_bytes_clear_some_bits_or_are_refused_and_touch_nothing_else(shape):
    random = np.random.default_rng(3)
    whole = reference(np.flatnonzero(dead_of(shape, 300_000, 0.1, 4)))
    around = np.full(3000, 0xA5, dtype=np.uint8)
    live = around[1000:2000]

    refused = 0
    for trial in range(500):
        damaged = bytearray(whole[: random.integers(0, len(whole))] if trial % 2 else whole)
        for place in random.integers(0, max(1, len(damaged)), 3 if trial % 3 else 200):
            if place < len(damaged):
                damaged[place] ^= 1 << random.integers(8)
        live[:] = 0xFF
        try:
            clear_dead_rows(bytes(damaged), live, 7995, int(random.integers(0, 70_000)), path="a.roaring")
        except CorruptDataError as error:
            refused += 1
            assert "a.roaring" in str(error)
        assert (around[:1000] == 0xA5).all()
        assert (around[2000:] == 0xA5).all()
    assert refused > 200


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "end too early"),
        (b"\x01\x02\x03\x04\0\0\0\0", "no cookie"),
        (reference(np.arange(5)) + b"\0", "after the last container"),
        (reference(np.arange(9), optimize=False)[:-1], "end too early"),
        (np.array([12346, 70_000], "<u4").tobytes(), "more rows than there are"),
    ],
)
def test_what_is_no_roaring_bitmap_is_refused_with_the_reason(data, message):
    with pytest.raises(CorruptDataError, match=message):
        clear_dead_rows(data, np.full(2, 255, np.uint8), 16, 0, path="a.roaring")


def test_containers_must_ascend():
    data = bytearray(reference(np.array([1, 70_000, 200_000]), optimize=False))
    data[12:14] = data[8:10]

    with pytest.raises(CorruptDataError, match="do not ascend"):
        clear_dead_rows(bytes(data), np.full(2, 255, np.uint8), 16, 0)


def test_rows_past_32_bits_and_too_few_bits_are_refused():
    live = np.full(1, 255, np.uint8)

    with pytest.raises(InvalidInputError, match="2\\^32"):
        write_deletion_vector(live, 8, 2**32 - 7)
    with pytest.raises(InvalidInputError, match="in 1 bytes"):
        write_deletion_vector(live, 9, 0)
    with pytest.raises(InvalidInputError, match="9 rows need as many live bits, got 8"):
        clear_dead_rows(reference(np.array([1])), live, 9, 0)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_bits_are_counted_without_numpys_word_for_it(kind):
    values = np.random.default_rng(3).integers(0, np.iinfo(kind).max, (5, 9), kind, endpoint=True)

    counts = integers._bit_counts_by_bytes(values[1:, ::2])

    assert counts.tolist() == [[value.bit_count() for value in row] for row in values[1:, ::2].tolist()]
