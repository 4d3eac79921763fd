"""What is made at its first use is made rightly where eight threads use it first."""

import subprocess
import sys
from pathlib import Path

from long_form import TURN, short_or_long

SCRIPT = Path(__file__).parents[1] / "support/first_uses.py"


def test_eight_threads_may_use_everything_first(s3_endpoint: str) -> None:
    form = short_or_long(["--mixed", "--first", str(TURN)], ["--rounds", "20"])
    command = [sys.executable, str(SCRIPT), "--endpoint", s3_endpoint, *form]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
