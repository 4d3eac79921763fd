"""Kernels: declared for one signature, compiled at the first call, kept where nobody else can write."""

import errno
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

import arrowstate
import arrowstate_formats
from arrowstate.cli.warm import KERNEL_MODULES
from arrowstate_formats import kernel_cache
from arrowstate_formats.compiled import Kernel, subroutine
from processes import python

PACKAGES = [Path(package.__file__).parent for package in (arrowstate, arrowstate_formats)]


@subroutine
def one_more(value):
    return value + 1


def add_one(values, out):
    for i in range(values.size):
        out[i] = one_more(values[i])


def new_kernel():
    """The kernel as a new process sees it: neither compiled nor loaded."""
    return Kernel(add_one, "int64[], out int64[]")


def call(kernel):
    out = np.zeros(3, np.int64)
    kernel(np.arange(3), out)
    return out.tolist()


@pytest.fixture(autouse=True)
def folders_of_the_test(tmp_path, monkeypatch):
    """No folder but those below the test's own can be written; what they are is looked up anew."""
    tmp_path.chmod(0o700)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv(kernel_cache.CACHE_DIR_VARIABLE, raising=False)
    monkeypatch.setattr(kernel_cache, "_package_folder", lambda: Path("/proc/read-only/__pycache__"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/read-only")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir(mode=0o700)
    kernel_cache.forget_folders()
    yield
    kernel_cache.forget_folders()


def kept_in(folder):
    return sorted(path.name.partition("-")[0] for path in folder.glob("*.kernel"))


def test_a_kernel_is_kept_and_found_by_the_next_process(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(tmp_path / "named"))
    first = new_kernel()
    assert not first.is_kept
    assert call(first) == [1, 2, 3]

    second = new_kernel()

    assert second.is_kept
    assert call(second) == [1, 2, 3]
    assert sum(second.built().stats.cache_hits.values()) == 1
    assert kept_in(tmp_path / "named") == [f"{__name__}.add_one"]
    assert (tmp_path / "named").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-9], lambda data: data[:99] + b"x" + data[100:]]
)
def test_a_damaged_kernel_is_compiled_anew(tmp_path, damage):
    call(new_kernel())
    [path] = (tmp_path / "tmp").rglob("*.kernel")
    path.write_bytes(damage(path.read_bytes()))

    kernel = new_kernel()

    assert not kernel.is_kept
    assert call(kernel) == [1, 2, 3]
    assert not kernel.built().stats.cache_hits
    assert new_kernel().is_kept


def test_a_kernel_is_another_where_what_it_calls_is_another(monkeypatch):
    before = new_kernel().fingerprint()
    monkeypatch.setitem(globals(), "one_more", subroutine(lambda value: value + 2))

    assert new_kernel().fingerprint() != before


def test_arrays_of_every_kind_are_taken_by_one_signature():
    kernel = new_kernel()
    values = np.frombuffer(b"x" + np.arange(3).tobytes(), np.int64, 3, 1)
    out = np.zeros(3, np.int64)

    kernel(values, out)

    assert not values.flags.aligned
    assert not values.flags.writeable
    assert out.tolist() == [1, 2, 3]
    assert len(kernel.built().signatures) == 1


def test_arrays_that_fit_are_known_before_the_first_call():
    # Of the only kernel with such arrays: what one learns at its first call all know.
    kernel = Kernel(add_one, "int16[], out int16[]")
    kernel.compile()

    def search(*_):
        raise AssertionError("numba looks for what fits; two threads that do so at once may break the kernel for good")

    kernel.built()._search_new_conversions = search
    for values in (np.arange(3, dtype=np.int16), np.frombuffer(b"x" + bytes(6), np.int16, 3, 1)):
        kernel(values, np.zeros(3, np.int16))
        kernel(values, np.frombuffer(bytearray(7), np.int16, 3, 1))


def test_what_does_not_fit_the_signature_is_refused():
    kernel = new_kernel()
    read_only = np.zeros(3, np.int64)
    read_only.flags.writeable = False

    for values, out in [(np.arange(3), read_only), (np.arange(3.0), np.zeros(3, np.int64))]:
        with pytest.raises(TypeError):
            kernel(values, out)


def test_where_no_folder_can_be_written_kernels_work_and_one_line_says_what_helps(monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/read-only")

    with caplog.at_level(logging.WARNING, "arrowstate"):
        assert [call(new_kernel()) for _ in range(2)] == [[1, 2, 3]] * 2

    [line] = caplog.messages
    assert kernel_cache.CACHE_DIR_VARIABLE in line


def test_the_last_resort_is_a_folder_of_the_user_among_the_temporary_files(tmp_path, caplog):
    call(new_kernel())

    folder = tmp_path / "tmp" / f"arrowstate-{os.getuid()}"
    assert kept_in(folder) == [f"{__name__}.add_one"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not caplog.messages


def test_a_full_disk_is_no_fault_of_the_call(monkeypatch, caplog):
    def full(**_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)

    assert [call(new_kernel()) for _ in range(2)] == [[1, 2, 3]] * 2

    [line] = caplog.messages
    assert "No space left on device" in line


def make_writable_by_all(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)


def make_writable_by_the_group(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)


def make_a_link(folder):
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def make_anothers(folder):
    folder.mkdir(mode=0o755)
    if os.getuid() == 0:
        os.chown(folder, 54321, -1)


def make_below_what_all_write(folder):
    folder.mkdir(mode=0o700)
    folder.parent.chmod(0o777)


UNSAFE = [make_writable_by_all, make_writable_by_the_group, make_a_link, make_anothers, make_below_what_all_write]


@pytest.mark.parametrize("make", UNSAFE, ids=lambda make: make.__name__.removeprefix("make_"))
@pytest.mark.parametrize("place", ["named", "tmp"])
def test_a_folder_that_another_user_could_write_is_not_used(place, make, tmp_path, monkeypatch, caplog):
    kept = tmp_path / "kept"
    monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(kept))
    call(new_kernel())
    monkeypatch.delenv(kernel_cache.CACHE_DIR_VARIABLE)
    folder = tmp_path / "tmp" / f"arrowstate-{os.getuid()}"
    if place == "named":
        folder = tmp_path / "below" / "named"
        folder.parent.mkdir(mode=0o700)
        monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(folder))
        monkeypatch.setattr(tempfile, "tempdir", "/proc/read-only")
    make(folder)
    if make is make_anothers and os.getuid():
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    # A kernel that would be loaded if the folder were trusted.
    [path] = kept.glob("*.kernel")
    (folder / path.name).write_bytes(path.read_bytes())
    kernel_cache.forget_folders()

    kernel = new_kernel()

    assert not kernel.is_kept
    assert call(kernel) == [1, 2, 3]
    assert not kernel.built().stats.cache_hits
    assert kernel_cache.writable_folder() is None
    if place == "named":
        assert str(folder) in caplog.text


def test_a_sticky_folder_above_is_safe(tmp_path):
    (tmp_path / "tmp").chmod(0o1777)

    call(new_kernel())

    assert kept_in(tmp_path / "tmp" / f"arrowstate-{os.getuid()}") == [f"{__name__}.add_one"]


def test_what_an_image_was_built_with_is_found_where_it_cannot_be_written(tmp_path, monkeypatch):
    built = tmp_path / "built"
    monkeypatch.setattr(kernel_cache, "_package_folder", lambda: built)
    call(new_kernel())
    assert kept_in(built) == [f"{__name__}.add_one"]
    kernel_cache.forget_folders()
    monkeypatch.setattr(kernel_cache, "_make", lambda folder: (_ for _ in ()).throw(PermissionError(folder)))

    kernel = new_kernel()

    assert kernel_cache.writable_folder() is None
    assert kernel.is_kept
    assert call(kernel) == [1, 2, 3]


def test_warm_knows_every_module_that_declares_kernels():
    declaring = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        if re.search(r"^(@|.*= )?.*\bkernel\((\s*\w?\"|\()", path.read_text(), re.MULTILINE)
    }

    assert declaring == set(KERNEL_MODULES)


def test_all_kernels_are_declared_by_the_one_module():
    others = [
        str(path)
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        if re.search(r"^\s*(import|from) (numba|llvmlite)\b", path.read_text(), re.MULTILINE)
        and path.stem not in ("compiled", "kernel_cache", "numba_internals")
    ]

    assert not others


def test_the_import_loads_neither_numba_nor_an_engine():
    engines = [
        "adlfs",
        "duckdb",
        "gcsfs",
        "lance",
        "llvmlite",
        "numba",
        "opentelemetry",
        "pandas",
        "polars",
        "pyspark",
        "rich",
        "s3fs",
    ]
    slow = ["aiohttp", "asyncio", "boto3", "fsspec", "multiprocessing", "requests", "ssl", "unittest", "urllib.request"]
    unwanted = [*engines, *slow, "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet"]
    code = f"import sys, arrowstate; print([name for name in {unwanted!r} if name in sys.modules])"

    done = python("-c", code, check=True)

    assert done.stdout.strip() == "[]"
