"""The savepoints of `tools/bench flink`, made without Flink: what is read of each form is what was written."""

from pathlib import Path

import pytest

from arrowstate.foreign.flink.savepoint import open_flink_savepoint
from benchmarks.flink_savepoints import FORMS, STATE, write_savepoint


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_whole(form: str, tmp_path: Path) -> None:
    write_savepoint(tmp_path / "savepoint", form, 3000, max_parallelism=100)

    rows = open_flink_savepoint(tmp_path / "savepoint")[STATE].to_arrow().sort_by("key").to_pydict()

    assert rows["key"] == list(range(3000))
    assert rows["value"] == [3 * key for key in range(3000)]
    assert set(rows["_key_group"]) == set(range(100))
