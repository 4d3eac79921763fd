"""`tests/runtime/standby_rounds.py --rounds N`: see `tests/support/standby_rounds.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from standby_rounds import main

    sys.exit(main())
