"""`arrowstate warm`."""

import json
import tempfile
from pathlib import Path

import pytest

from arrowstate.cli import main, warm
from arrowstate_formats import kernel_cache
from arrowstate_formats.compiled import Kernel


def negate(values, out):
    for i in range(values.size):
        out[i] = -values[i]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The only folder that can be written, empty, with two kernels to compile."""
    kernels = [Kernel(negate, f"{number}[], out {number}[]") for number in ("int64", "float64")]
    monkeypatch.setattr(warm, "KERNELS", kernels)
    monkeypatch.setattr(kernel_cache, "_package_folder", lambda: Path("/proc/read-only/__pycache__"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/read-only")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/read-only")
    monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    kernel_cache.forget_folders()
    yield tmp_path / "cache"
    kernel_cache.forget_folders()


def test_warm_compiles_what_is_missing_and_says_so(folder, capsys):
    warm.KERNELS[1].compile()

    code = main(["warm", "--processes", "1"])

    printed = capsys.readouterr().out
    assert code == 0
    assert printed.startswith("1 of 2 kernels compiled in ")
    assert str(folder) in printed
    assert len(list(folder.glob("*.kernel"))) == 2


def test_warm_twice_does_nothing_the_second_time(folder, capsys):
    assert main(["warm", "--processes", "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)

    assert main(["warm"]) == 0

    assert capsys.readouterr().out == "already warm: 2 kernels are compiled\n"
    assert (first["kernels"], first["compiled"], first["processes"], first["folder"]) == (2, 2, 1, str(folder))
    assert first["seconds"] > 0


def test_warm_fails_where_nothing_can_be_kept(folder, monkeypatch, capsys):
    monkeypatch.setenv(kernel_cache.CACHE_DIR_VARIABLE, "/proc/read-only/cache")
    kernel_cache.forget_folders()

    code = main(["warm", "--processes", "1"])

    assert code == 1
    assert kernel_cache.CACHE_DIR_VARIABLE in capsys.readouterr().err
