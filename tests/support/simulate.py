"""The simulation from the command line: many seeds, or one seed with its trace.

```text
tools/python tests/support/simulate.py --seeds 20000        # a summary; status 1 and the trace if a seed fails
tools/python tests/support/simulate.py --seed 4711          # repeats one seed call by call
```
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from simulation.run import CONTROLS, Result, simulate

__all__ = ["main", "simulate_many"]

_CHUNK = 25


def simulate_many(seeds: Sequence[int], *, without: str | None = None, jobs: int = 1) -> Iterator[Result]:
    """Run many seeds and yield their results in order; the trace only where there is a violation.

    Parameters
    ----------
    seeds
        Which.
    without
        A guarantee to do without, see `simulate`.
    jobs
        Processes to use, 1 or more; with 1 no other process is started.

    Examples
    --------
    >>> [result.violation for result in simulate_many(range(3))]
    [None, None, None]
    """
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _chunk(chunk, without)
        return
    # A fresh interpreter each: Arrow's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for results in pool.map(_chunk, chunks, [without] * len(chunks)):
                yield from results
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _chunk(seeds: Sequence[int], without: str | None) -> list[Result]:
    results = []
    for seed in seeds:
        result = simulate(seed, without=without)
        if result.violation is None:
            result.trace.clear()
        results.append(result)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if every seed held, 1 if one did not."""
    parser = argparse.ArgumentParser(
        prog="tests/support/simulate.py",
        description="Run processes around a store with faults, in an order that a seed decides; check what must hold.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=500, metavar="N", help="how many seeds to run (default 500)")
    which.add_argument("--seed", type=int, metavar="S", help="run only this one, and print every call")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first of the seeds (default 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default one per processor)"
    )
    parser.add_argument("--without", choices=CONTROLS, help="do without a guarantee; some seeds must fail then")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")

    if options.seed is not None:
        result = simulate(options.seed, without=options.without)
        print("\n".join(result.trace))
        print(f"seed {result.seed}: {result.violation or 'everything held'}; trace {result.digest}")
        return int(result.violation is not None)

    started = time.monotonic()
    count = steps = checkpoints = faults = crashes = 0
    failed: Result | None = None
    for result in simulate_many(
        range(options.first, options.first + options.seeds), without=options.without, jobs=options.jobs
    ):
        count += 1
        steps += result.steps
        checkpoints += result.checkpoints
        faults += result.faults
        crashes += result.crashes
        if count % 1000 == 0:
            print(f"{count} of {options.seeds} seeds, {time.monotonic() - started:.0f} s", file=sys.stderr)
        if result.violation is not None:
            failed = result
            break
    if failed is not None:
        print("\n".join(failed.trace))
        again = f"--seed {failed.seed}" + (f" --without {options.without}" if options.without else "")
        print(f"seed {failed.seed}: {failed.violation}; repeat it with {again}")
    print(
        f"{count} seeds, {int(failed is not None)} failed: {steps} calls, {checkpoints} acknowledged checkpoints, "
        f"{faults} faults, {crashes} crashes in {time.monotonic() - started:.0f} s"
    )
    return int(failed is not None)


if __name__ == "__main__":
    sys.exit(main())
