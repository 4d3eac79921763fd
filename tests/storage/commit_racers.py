"""Processes that put files under the same names at the same time, and whether each knew how it ended.

    tools/python tests/storage/commit_racers.py LOCAL_FOLDER --rounds 1000
    tools/python tests/storage/commit_racers.py moto --rounds 1000

`moto` runs a simulator of S3 for the race. The exit code is 1 unless every round has exactly one winner, whose file
is there, and everyone else has lost. Also run by tests, in a shorter form.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arrowstate.storage import Storage, open_storage

Outcomes = list[tuple[int, str, str]]
"""Round, commit id, and won, lost or the name of an error."""


def race(url: str, options: Any, rounds: int, process: int, threads: int, start: Any, outcomes: Any) -> None:
    """One process: each of its threads takes part in every round, all threads of all processes at the same time."""
    storage = open_storage(url, create=True, storage_options=options)
    mine: Outcomes = []

    def racer(number: int) -> None:
        for round_number in range(rounds):
            commit_id = f"process-{process}-racer-{number}-round-{round_number}."
            start.wait()
            try:
                outcome = storage.put_if_absent(path_of(round_number), commit_id.encode(), commit_id).value
            except Exception as error:  # noqa: BLE001
                # A racer that stopped would leave the others waiting.
                outcome = f"{type(error).__name__}: {error}"
            mine.append((round_number, commit_id, outcome))

    racers = [threading.Thread(target=racer, args=(number,)) for number in range(threads)]
    for thread in racers:
        thread.start()
    for thread in racers:
        thread.join()
    outcomes.put(mine)


def path_of(round_number: int) -> str:
    return f"log/{round_number:020}.json"


def run(url: str, options: Any, rounds: int, processes: int, threads: int) -> Outcomes:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes * threads)
    queue = context.Queue()
    started = [
        context.Process(target=race, args=(url, options, rounds, number, threads, start, queue))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    found = [outcome for _ in started for outcome in queue.get()]
    for process in started:
        process.join()
    return found


def problems(storage: Storage, outcomes: Outcomes, rounds: int, racers: int) -> list[str]:
    """What is wrong with the outcomes; nothing if every round has one winner and everyone else knows that they lost."""
    found = [f"{commit_id} {outcome}" for _, commit_id, outcome in outcomes if outcome not in ("won", "lost")]
    winners = Counter(number for number, _, outcome in outcomes if outcome == "won")
    there = {number: storage.read(path_of(number)).decode() for number in range(rounds)}
    found += [f"round {number} has {winners[number]} winners" for number in range(rounds) if winners[number] != 1]
    found += [
        f"{commit_id} {outcome}, but {there[number]} is there"
        for number, commit_id, outcome in outcomes
        if (outcome == "won") != (there[number] == commit_id)
    ]
    if Counter(number for number, _, _ in outcomes) != dict.fromkeys(range(rounds), racers):
        found.append("not everyone took part in every round")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url", help="a path or URL of an empty storage, or `moto`")
    parser.add_argument("--storage-options", type=json.loads, metavar="JSON")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    url, options = given.url, given.storage_options
    with ExitStack() as stack:
        if url == "moto":
            sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
            from object_servers import S3_OPTIONS, s3_server

            cache = stack.enter_context(tempfile.TemporaryDirectory())
            endpoint = stack.enter_context(s3_server())
            url, options = "s3://bucket/race", {**S3_OPTIONS, "endpoint_url": endpoint, "cache_dir": cache}
        started = time.monotonic()
        outcomes = run(url, options, given.rounds, given.processes, given.threads)
        seconds = time.monotonic() - started
        racers = given.processes * given.threads
        found = problems(open_storage(url, storage_options=options), outcomes, given.rounds, racers)
    counts = Counter(outcome for _, _, outcome in outcomes)
    print(*found, sep="\n", end="\n" if found else "")
    print(
        f"{given.rounds} rounds of {given.processes} processes with {given.threads} threads on {url}: "
        f"{counts['won']} won, {counts['lost']} lost, {len(found)} problems, {seconds:.1f} s"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
