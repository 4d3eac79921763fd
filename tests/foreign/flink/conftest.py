"""Savepoints that Flink wrote, with what its jobs said of their state."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flink_truth import unpack

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def savepoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a fixture by its name: `savepoint`, and `truth.json` beside it."""
    root = tmp_path_factory.mktemp("flink")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            unpack(FIXTURES / f"{name}.tar.xz", root)
        return root / name

    return folder
