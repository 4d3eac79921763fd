"""`tests/runtime/kill_rounds.py --rounds N [--sink postgres|kafka|...]`: see `tests/support/runtime_kill_rounds.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from runtime_kill_rounds import main

    sys.exit(main())
