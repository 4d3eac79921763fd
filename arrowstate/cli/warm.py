"""`arrowstate warm`: every kernel compiled beforehand, as an image is built or a node of a cluster is set up.

Otherwise a kernel is compiled when it is first called, which a first script pays with seconds.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

from arrowstate.cli.output import print_json, progress_bar, say
from arrowstate.errors import StorageError
from arrowstate_formats import kernel_cache
from arrowstate_formats.compiled import KERNELS

KERNEL_MODULES = (
    "arrowstate_formats._roaring",
    "arrowstate_formats._xxh64",
    "arrowstate.foreign.flink.canonical",
    "arrowstate.foreign.flink.serializers.machine",
    "arrowstate.foreign.flink.serializers.straight",
    "arrowstate.foreign.flink.sst.checksums",
    "arrowstate.foreign.flink.sst.kernels",
    "arrowstate.query.picking",
    "arrowstate.runtime.kafka.flat_json",
    "arrowstate.runtime.kafka.flat_records",
    "arrowstate.state.folds.aggregates.numbers",
    "arrowstate.state.folds.decimals",
    "arrowstate.state.folds.reducers",
    "arrowstate.table.equality",
    "arrowstate.table.kernels",
    "arrowstate.table.pair_kernels",
    "arrowstate.table.place_kernels",
    "arrowstate.table.sparse",
    "arrowstate.table.time_order",
    "arrowstate.table.zones",
    "arrowstate.functions.windows.assigners",
)
"""The modules that declare kernels."""


def warm(options: argparse.Namespace) -> int:
    """Compile what is not there yet and print what was done."""
    started = time.perf_counter()
    _import_kernels()
    missing = [number for number, kernel in enumerate(KERNELS) if not kernel.is_kept]
    folder = kernel_cache.writable_folder() if missing else None
    processes = 0
    if missing:
        if folder is None:
            raise StorageError(
                ", ".join(map(str, kernel_cache.readable_folders())) or kernel_cache.CACHE_DIR_VARIABLE,
                "compiled kernels can be kept in none of the folders they are looked for in; set "
                f"{kernel_cache.CACHE_DIR_VARIABLE} to one that only this user can write",
            )
        processes = min(options.processes or _cores(), len(missing))
        _compile(missing, processes)
        lost = [KERNELS[number].name for number in missing if not KERNELS[number].is_kept]
        if lost:
            raise StorageError(str(folder), f"{len(lost)} compiled kernels could not be kept, such as {lost[0]}")
    seconds = time.perf_counter() - started
    if options.json:
        done = {"kernels": len(KERNELS), "compiled": len(missing), "seconds": seconds, "processes": processes}
        print_json({**done, "folder": None if folder is None else str(folder)})
    elif missing:
        by = "one process" if processes == 1 else f"{processes} processes"
        say(f"{len(missing)} of {len(KERNELS)} kernels compiled in {seconds:.1f} s by {by}, kept in {folder}")
    else:
        say(f"already warm: {len(KERNELS)} kernels are compiled")
    return 0


def _compile(numbers: list[int], processes: int) -> None:
    with progress_bar("compiling") as bar:
        bar.update(total=len(numbers))
        if processes == 1:
            for number in numbers:
                KERNELS[number].compile()
                bar.advance()
            return
        # numba compiles one kernel at a time in a process. They are started anew, as threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context, initializer=_import_kernels) as pool:
            for _ in pool.map(_compile_one, [KERNELS[number].name for number in numbers]):
                bar.advance()


def _import_kernels() -> None:
    for module in KERNEL_MODULES:
        importlib.import_module(module)  # Whatever modules have kernels.


def _compile_one(name: str) -> None:
    next(kernel for kernel in KERNELS if kernel.name == name).compile()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
