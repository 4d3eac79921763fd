"""What a stateful query leaves when parts of it are killed at random moments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.long
def test_killed_drivers_workers_and_executors_lose_no_row_and_repeat_none(tmp_path: Path) -> None:
    script = Path(__file__).with_name("spark_kill_rounds.py")

    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "--rounds", str(ROUNDS), "--seed", "2942"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{ROUNDS} rounds" in ran.stdout
    assert all(f" {what}" in ran.stdout.splitlines()[-1] for what in ("driver", "worker", "executor"))
