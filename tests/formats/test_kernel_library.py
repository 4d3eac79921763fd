"""The library of compiled kernels in a wheel: it gives what numba gives in the process, and checks what it is given."""

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arrowstate.state.folds import reducers
from arrowstate.table import kernels
from arrowstate_formats import _xxh64, compiled, kernel_cache
from arrowstate_formats.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
# One for each type of argument and of what is returned.
CHOSEN = [kernels.count_buckets, kernels.live_places, kernels._sort, _xxh64.hash_bytes, reducers._ADD[np.dtype(float)]]
MAKE = """
import sys
from pathlib import Path
from kernel_library import building

if __name__ == "__main__":
    building.for_any_processor()
    building.make_library(building.compiled(sys.argv[2:], 1), Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of the chosen kernels."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "make.py").write_text(MAKE)
    places = [str(ROOT / name) for name in ("", "formats", "tools")]
    subprocess.run(
        [sys.executable, folder / "make.py", folder / "_kernels.abi3.so", *(kernel.name for kernel in CHOSEN)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        check=True,
    )
    spec = importlib.util.spec_from_file_location("_kernels", folder / "_kernels.abi3.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(function, *arguments):
    """Return what a kernel returns and what it leaves in its arrays."""
    own = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    return function(*own), own


def assert_same(library, kernel, *arguments):
    found, found_arrays = call(getattr(library, kernel.name), *arguments)
    expected, expected_arrays = call(kernel, *arguments)
    assert (found, type(found)) == (expected, type(expected))
    for found_array, expected_array in zip(found_arrays, expected_arrays, strict=True):
        np.testing.assert_array_equal(found_array, expected_array)


def test_the_library_gives_what_numba_gives(library):
    random = np.random.default_rng(7)
    hashes = random.integers(-(2**63), 2**63, 1000)
    lowest = int(hashes.min())
    span = int(hashes.max()) - lowest
    base, shift = np.uint64(lowest & (2**64 - 1)), np.uint64(span.bit_length() - 9)
    ends, placed, rows = (
        np.zeros((span >> int(shift)) + 1, np.uint32),
        np.empty(1000, np.int64),
        np.empty(1000, np.int64),
    )
    assert_same(library, kernels._sort, hashes, base, shift, ends, placed * 0, rows * 0)
    assert_same(library, kernels.count_buckets, hashes, np.uint64(1 << 63), np.uint64(60), np.zeros(17, np.uint32))
    live = random.integers(0, 256, 125, np.uint8)
    zeros = np.zeros(100, np.int64)
    assert_same(library, kernels.live_places, live, 8, random.integers(0, 1000, 100), 3, zeros, zeros)
    values, valid = random.normal(size=100), random.integers(0, 2, 100).astype(bool)
    starts = np.array([0, 30, 30, 100])
    add = reducers._ADD[np.dtype(float)]
    assert_same(
        library, add, np.int64(0), values, valid, np.arange(100), starts, np.zeros(3), np.zeros(3, bool), 0.0, 0.0
    )
    texts = random.integers(0, 256, 997, np.uint8)
    offsets = np.sort(random.integers(0, 997, 41)).astype(np.int32)
    where = [np.uint64(address) for address in (texts.ctypes.data, offsets.ctypes.data, offsets.ctypes.data + 4)]
    rows = np.arange(40)
    assert_same(library, _xxh64.hash_bytes, *where, False, 40, rows, rows, np.full(40, 42, np.uint64))


def test_an_array_may_begin_anywhere_and_be_read_only(library):
    hashes = np.frombuffer(b"?" + np.arange(-50, 50).tobytes(), np.int64, offset=1)
    assert not hashes.flags.aligned
    assert not hashes.flags.writeable

    assert_same(library, kernels.count_buckets, hashes, np.uint64(1 << 63), np.uint64(60), np.zeros(17, np.uint32))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((np.zeros(4),), TypeError, "takes 4 arguments, got 1"),
        ((np.zeros(4), 0, 0, np.zeros(4, np.uint32)), TypeError, "elements lq of 8 bytes, got d of 8"),
        ((np.zeros(4, np.int32), 0, 0, np.zeros(4, np.uint32)), TypeError, "elements lq of 8 bytes, got i of 4"),
        ((np.zeros((2, 2), np.int64), 0, 0, np.zeros(4, np.uint32)), TypeError, "of one dimension"),
        ((np.zeros(8, np.int64)[::2], 0, 0, np.zeros(4, np.uint32)), ValueError, "contiguous"),
        ((np.zeros(4, np.int64), 0.5, 0, np.zeros(4, np.uint32)), TypeError, "integer"),
        ((np.zeros(4, np.int64), 0, 0, np.zeros(16, np.uint8).data.toreadonly()), ValueError, "writable|read-only"),
        (([1, 2], 0, 0, np.zeros(4, np.uint32)), TypeError, "bytes-like"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(library, arguments, error, says):
    with pytest.raises((error, BufferError), match=says):
        getattr(library, kernels.count_buckets.name)(*arguments)


def test_a_kernel_of_the_library_needs_no_compiler(library, monkeypatch):
    monkeypatch.setattr(compiled, "_library", library)
    monkeypatch.setitem(sys.modules, "numba", None)
    counts = np.zeros(2, np.uint32)
    own = compiled.Kernel(kernels.count_buckets.function, kernels.count_buckets.signature)

    own(np.arange(3), np.uint64(1 << 63), np.uint64(63), counts)

    assert counts.tolist() == [0, 3]
    assert own.is_kept


def test_without_a_library_and_without_numba_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kernel = compiled.Kernel(kernels.count_buckets.function, "int32[], uint64, uint64, out uint32[]")

    with pytest.raises(MissingDependencyError, match=r"needs the package numba: pip install 'arrowstate\[jit\]'"):
        kernel(np.zeros(1, np.int32), np.uint64(0), np.uint64(0), np.zeros(1, np.uint32))


def test_a_process_says_once_that_it_compiles(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(tmp_path))
    kernel_cache.forget_folders()
    compiled._tell_of_compiling.cache_clear()
    caplog.set_level(logging.INFO, "arrowstate")

    for element in ("int8", "int16"):
        compiled.Kernel(_negate, f"out {element}[]").compile()

    kernel_cache.forget_folders()
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["compiling kernels once"]


def _negate(values):
    values[0] = -values[0]
