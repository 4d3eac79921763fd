"""Jobs of the runtime that seeds make, under every kind of bad luck.

    tools/python tests/support/simulate_jobs.py --seeds 50000 [--first N]
    tools/python tests/support/simulate_jobs.py --seed 4711
    tools/python tests/support/simulate_jobs.py --seeds 500 --without blocking

With `--without`, a rule of the runtime is broken, and some seed must notice. It exits with 1 after a violation, or
where a broken rule was not noticed.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext

from job_simulation.controls import CONTROLS, without
from job_simulation.run import simulate_seed

_SHOWN = 10
"""So many violations are shown, then it ends."""


def main() -> int:
    """Run seeds, and return 1 if one of them is not as it should be."""
    # Failures, restarts and collections are what the seeds are for: only what is found is told.
    logging.getLogger("arrowstate").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--without", choices=sorted(CONTROLS))
    arguments = parser.parse_args()
    first, count = (arguments.first, arguments.seeds) if arguments.seed is None else (arguments.seed, 1)
    began, processor = time.monotonic(), time.process_time()
    done: Counter[str] = Counter()
    violations = seeds = 0
    with nullcontext() if arguments.without is None else without(arguments.without):
        for seed in range(first, first + count):
            seeds += 1
            try:
                result = simulate_seed(seed)
            except Exception:  # noqa: BLE001 (whatever it is, it is a finding)
                violations += 1
                traceback.print_exc(limit=-4)
                if violations == _SHOWN or arguments.without is not None:
                    break
                continue
            counted = ("steps", "checkpoints", "kills", "crashes", "rescales", "in_flight")
            done.update({name: getattr(result, name) for name in counted})
            if arguments.seed is not None:
                print(result)
            if seeds % 1_000 == 0:
                print(f"{seeds} seeds, {violations} violations", flush=True)
    what = ", ".join(f"{number:,} {name}" for name, number in done.items())
    seconds = time.monotonic() - began
    print(f"{what} in {seconds:.0f} s, of which {time.process_time() - processor:.0f} s of processor time")
    print(f"{seeds} seeds, {violations} violations", flush=True)
    return int((violations > 0) == (arguments.without is None))


if __name__ == "__main__":
    sys.exit(main())
