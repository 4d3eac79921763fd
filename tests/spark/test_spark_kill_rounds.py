"""What a stateful query leaves when parts of it are killed at random moments; the long form is a script beside this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCALE = int(os.environ.get("ARROWSTATE_LONG_TESTS", "1"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.slow
def test_killed_drivers_workers_and_executors_lose_no_row_and_repeat_none(tmp_path: Path) -> None:
    script = Path(__file__).with_name("spark_kill_rounds.py")
    rounds = 3 * SCALE

    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "--rounds", str(rounds), "--seed", "2942"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{rounds} rounds" in ran.stdout
    assert all(f" {what}" in ran.stdout.splitlines()[-1] for what in ("driver", "worker", "executor"))
