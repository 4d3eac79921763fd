"""Processes of several threads that put files under the same names; prints who won what, as JSON. Run by a test."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from typing import Any

from arrowstate.storage import open_storage

PROCESSES = 4
RACERS = 8


def race(root: str, rounds: int, process: int, start: Any, outcomes: Any) -> None:
    """One process: each of its threads takes part in every round, all threads of all processes at the same time."""
    storage = open_storage(root)
    mine: list[tuple[int, str, str]] = []

    def racer(number: int) -> None:
        for round_number in range(rounds):
            commit_id = f"process-{process}-racer-{number}-round-{round_number}."
            start.wait()
            outcome = storage.put_if_absent(f"log/{round_number:020}.json", commit_id.encode(), commit_id)
            mine.append((round_number, commit_id, outcome.value))

    threads = [threading.Thread(target=racer, args=(number,)) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes.put(mine)


def main(root: str, rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES * RACERS)
    outcomes = context.Queue()
    processes = [
        context.Process(target=race, args=(root, rounds, number, start, outcomes)) for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    found = [outcome for _ in processes for outcome in outcomes.get()]
    for process in processes:
        process.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
